"""Acceptance by rank, and what a tree is worth by it."""

import random

import pytest

from controlplane.decision.ranks import RankEstimate
from controlplane.telemetry import CohortWindow, RankCount, StepCell


def test_a_chain_is_worth_one_token_and_its_survival() -> None:
    estimate = RankEstimate.of_nothing().absorb([RankCount(d, 0, 10_000, 8_000) for d in range(3)])
    assert estimate.tree_tokens([-1, 0, 1]) == pytest.approx(1 + 0.8 + 0.64 + 0.512, abs=0.02)


def test_a_second_child_counts_where_the_first_was_rejected() -> None:
    estimate = RankEstimate.of_nothing().absorb([RankCount(0, 0, 10_000, 6_000), RankCount(0, 1, 4_000, 2_000)])
    assert estimate.tree_tokens([-1, -1]) == pytest.approx(1 + 0.6 + 0.4 * 0.5, abs=0.02)


def test_the_value_of_a_tree_is_what_trees_emit() -> None:
    rng, by_rank, parents = random.Random(3), (0.6, 0.3), [-1, -1, 0, 0, 2]
    counts: dict[tuple[int, int], list[int]] = {}
    emitted = 0
    for _ in range(20_000):
        node, depth = -1, 0
        emitted += 1
        while True:
            kept = None
            for rank, child in enumerate(i for i, parent in enumerate(parents) if parent == node):
                seen = counts.setdefault((depth, rank), [0, 0])
                seen[0] += 1
                if rng.random() < by_rank[rank]:
                    seen[1] += 1
                    kept = child
                    break
            if kept is None:
                break
            emitted, node, depth = emitted + 1, kept, depth + 1
    estimate = RankEstimate.of_nothing()
    for _ in range(5):
        estimate = estimate.absorb([RankCount(*key, tried // 5, kept // 5) for key, (tried, kept) in counts.items()])
    assert estimate.tree_tokens(parents) == pytest.approx(emitted / 20_000, rel=0.02)


def test_a_rank_that_was_never_tried_at_a_depth_leans_on_the_other_depths() -> None:
    estimate = RankEstimate.of_nothing().absorb([RankCount(0, 0, 500, 450)])
    assert estimate.acceptance()[5, 0] == pytest.approx(0.9, abs=0.02)


def test_a_parent_after_its_child_is_refused() -> None:
    with pytest.raises(ValueError, match=r"parents\[0\] is 1"):
        RankEstimate.of_nothing().tree_tokens([1, -1])


def test_windows_add_up_what_became_of_their_trees() -> None:
    one, other = (
        CohortWindow("c", (StepCell(0, 2, (), 0.0, tree=(-1, -1), ranks=(RankCount(0, 0, *counts),)),))
        for counts in ((5, 3), (2, 1))
    )
    assert one.merge(other).ranks == (RankCount(0, 0, 7, 4),)
