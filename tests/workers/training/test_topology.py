"""The tree that `best_tree` finds, against every tree there is."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.decision.ranks import ROOT, expected_tokens, marginal_acceptance
from workers.training.topology import best_tree


def every_tree(nodes: int, depths: int, ranks: int) -> Iterator[tuple[int, ...]]:
    """All trees of up to so many nodes, each grown node by node."""
    seen = {()}
    level: set[tuple[int, ...]] = {()}
    for _ in range(nodes):
        grown = set()
        for tree in level:
            for parent in range(ROOT, len(tree)):
                new = (*tree, parent)
                if depth_of(new) < depths and new.count(parent) <= ranks:
                    grown.add(new)
        level = grown
        seen |= grown
    yield from seen


def depth_of(parents: tuple[int, ...]) -> int:
    node, depth = len(parents) - 1, 0
    while parents[node] != ROOT:
        node, depth = parents[node], depth + 1
    return depth


tables = st.integers(1, 3).flatmap(
    lambda ranks: st.lists(st.lists(st.floats(0.01, 0.99), min_size=ranks, max_size=ranks), min_size=1, max_size=3)
)


@settings(deadline=None, max_examples=25, derandomize=True)
@given(tables, st.integers(0, 4))
def test_no_tree_of_as_many_nodes_is_worth_more(table: list[list[float]], nodes: int) -> None:
    marginal = marginal_acceptance(np.array(table))
    best = max(expected_tokens(marginal, tree) for tree in every_tree(nodes, *marginal.shape))
    assert expected_tokens(marginal, best_tree(marginal, nodes)) == pytest.approx(best)


def test_a_drafter_whose_second_guesses_are_worthless_gets_a_chain() -> None:
    marginal = np.array([[0.6, 0.0], [0.6, 0.0], [0.6, 0.0]])
    assert best_tree(marginal, 3) == (ROOT, 0, 1)


def test_where_the_second_guess_beats_going_deeper_the_tree_is_wide_first() -> None:
    marginal = np.array([[0.4, 0.3], [0.1, 0.05]])
    assert best_tree(marginal, 2) == (ROOT, ROOT)


def test_nodes_stand_level_by_level() -> None:
    marginal = marginal_acceptance(np.full((4, 4), 0.4))
    tree = best_tree(marginal, 16)
    depths = [depth_of(tree[: n + 1]) for n in range(len(tree))]
    assert all(a <= b for a, b in pairwise(depths))


def test_a_tree_has_no_more_nodes_than_there_are_places() -> None:
    assert len(best_tree(np.full((2, 2), 0.3), 50)) == 6


@pytest.mark.parametrize("parents", [(0,), (ROOT, 2), (-2,)])
def test_a_parent_after_its_child_is_refused(parents: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="parents"):
        expected_tokens(np.full((2, 2), 0.3), parents)


def test_a_chance_over_one_is_refused() -> None:
    with pytest.raises(ValueError, match="marginal"):
        best_tree(np.array([[1.2]]), 1)
