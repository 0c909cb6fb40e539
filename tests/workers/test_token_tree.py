"""A token tree knows its levels, paths and spine, and which of a card's trees a K takes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.token_tree import ROOT, TokenTree, chain_of, read_trees, tree_for

TREE = TokenTree((-1, -1, 0, 0, 1, 2, 5, 6))


@st.composite
def trees(draw):
    parents: list[int] = []
    for node in range(draw(st.integers(1, 16))):
        parents.append(draw(st.integers(-1, node - 1)))
    return TokenTree(tuple(parents))


def test_its_parts_are_read_off_its_parents() -> None:
    assert TREE.depths == (0, 0, 1, 1, 1, 2, 3, 4)
    assert TREE.children[:4] == ((0, 1), (2, 3), (4,), (5,))
    assert (TREE.depth, TREE.most_children, TREE.spine) == (5, 2, (0, 2, 5, 6, 7))
    assert TREE.path(4) == (1, 4)


def test_the_nodes_down_to_a_level_are_those_that_somebody_continues() -> None:
    assert [TREE.to_level(depth) for depth in range(3)] == [(0, 1), (0, 1, 2), (0, 1, 2, 5)]


@given(trees())
def test_a_path_goes_from_the_first_level_down_one_level_at_a_time(tree) -> None:
    for node in range(len(tree)):
        path = tree.path(node)
        assert [tree.depths[n] for n in path] == list(range(tree.depths[node] + 1))
        assert [tree.parents[n] for n in path] == [ROOT, *path[:-1]]


@given(trees())
def test_every_node_is_a_child_once(tree) -> None:
    assert sorted(node for own in tree.children for node in own) == list(range(len(tree)))


@pytest.mark.parametrize("parents", [(0,), (-1, 1), (-1, -2)])
def test_a_parent_that_does_not_come_before_its_child_is_refused(parents) -> None:
    with pytest.raises(ValueError, match="a parent comes before its child"):
        TokenTree(parents)


@pytest.mark.parametrize("length", [1, 4])
def test_a_chain_is_one(length) -> None:
    assert (chain_of(length).is_chain, chain_of(length).depth) == (True, length)


def test_a_k_takes_the_largest_tree_that_it_pays_for() -> None:
    known = read_trees({"1": [-1], "4": [-1, 0, 1, 2], "6": [-1, -1, 0, 2, 3, 4], "8": list(TREE.parents)})
    assert [len(tree_for(known, k) or ()) for k in (0, 1, 3, 5, 6, 7, 8, 16)] == [0, 0, 0, 0, 6, 6, 8, 8]


def test_trees_with_more_levels_than_a_drafter_are_left_out() -> None:
    assert list(read_trees({"2": [-1, -1], "4": [-1, 0, 1, 2]}, deepest=3)) == [2]


@pytest.mark.parametrize(
    "said", [{"2": [-1]}, {"2": "ab"}, {"2": [-1, 0.5]}, {"2": [-1, 1]}, {"two": [-1, -1]}, {"1": None}]
)
def test_what_is_no_tree_of_that_size_is_refused(said) -> None:
    with pytest.raises(ValueError, match=r"trees\.|parents"):
        read_trees(said)
