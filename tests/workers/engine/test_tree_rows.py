"""Trees are drafted only where their rows were seen to have the bits of chains."""

from __future__ import annotations

import pytest
import torch

import workers.attention
from workers.kv_cache import KVSlots
from workers.step_layout import Rows, lay_out
from workers.token_tree import read_trees
from workers.tree_rows import tree_obstacle

HIDDEN = 64
"""Heads of 16, which the attention that knows trees computes; the tiny model's own have 8."""
TREES = read_trees({"4": [-1, -1, 0, 1]})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_where_rows_have_the_bits_of_chains_nothing_is_in_the_way(make_runner, dtype) -> None:
    assert tree_obstacle(make_runner(dtype=dtype, hidden_size=HIDDEN)) is None


def test_gathered_attention_is_in_the_way(make_runner) -> None:
    assert tree_obstacle(make_runner()) == "gathered attention computes no trees; draft chains"


def test_rows_with_other_bits_are_in_the_way(make_runner, monkeypatch) -> None:
    """As if a row saw those before it, whether they are its ancestors or not."""
    real = workers.attention.tree_attention
    monkeypatch.setattr(
        workers.attention, "tree_attention", lambda *args, **options: real(*args[:6], None, None, **options)
    )
    assert "a tree's row differs" in tree_obstacle(make_runner(hidden_size=HIDDEN))


def test_a_cache_too_small_to_try_is_in_the_way(make_runner) -> None:
    assert "too small to try one out" in tree_obstacle(make_runner(hidden_size=HIDDEN, slots=1, context=32))


def test_an_engine_with_an_obstacle_drafts_chains(make_engine, ask, drain, prompts) -> None:
    engine = make_engine(4, "paths", trees=TREES, eos=())
    engine.submit(ask(prompts[3]))
    drain(engine)
    (window,) = engine.close_window().cohorts
    assert {cell.tree for cell in window.cells} == {()}
    assert window.draft_tokens > 0


def test_an_engine_tells_which_tree_a_rehearsed_k_drafts(make_engine) -> None:
    from workers.latency_profile import StepSize

    engine = make_engine(4, "eagle", trees=TREES, hidden=HIDDEN)
    assert [engine.rehearse(StepSize(2, k, 32)).tree for k in (0, 3, 4)] == [(), (), TREES[4].parents]


def test_rows_of_a_tree_stand_as_deep_as_they_have_ancestors() -> None:
    blocks = KVSlots(1, 64).blocks(0)
    layout = lay_out([Rows(blocks, 5, [7, 8, 9, 10], [-1, 0, 0, 2]), Rows(blocks, 9, [3, 4])], [0], None)
    assert layout.positions.tolist()[:6] == [5, 6, 6, 7, 9, 10]
    assert layout.ancestors[:, 0].tolist() == [0b1, 0b11, 0b101, 0b1101, 0b1, 0b11]
    assert (layout.flat_index.tolist()[:4], layout.context_lens.tolist()) == ([21, 22, 23, 24], [5, 9])
