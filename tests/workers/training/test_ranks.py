"""Acceptance by rank: against its definition when greedy, against all draws there are when sampled."""

from __future__ import annotations

from itertools import permutations

import pytest
import torch

from workers.training.ranks import RANKS, greedy_ranks, over_draft_vocabulary, sampled_ranks


def test_a_greedy_token_stands_at_its_rank_and_lower_ranks_were_tried() -> None:
    logits = torch.tensor([[0.1, 3.0, 2.0, 1.0], [0.1, 3.0, 2.0, 1.0]])
    tried, stood = greedy_ranks(logits, torch.tensor([1, 3]), torch.tensor([True, True]))
    assert stood[:, :4].tolist() == [[1, 0, 0, 0], [0, 0, 1, 0]]
    assert tried[:, :4].tolist() == [[1, 0, 0, 0], [1, 1, 1, 0]]


def test_of_equal_logits_the_first_ranks_first() -> None:
    _, stood = greedy_ranks(torch.zeros(1, 3), torch.tensor([1]), torch.tensor([True]))
    assert stood[0, :3].tolist() == [0, 1, 0]


def test_of_a_token_outside_the_draft_vocabulary_no_child_stands() -> None:
    tried, stood = greedy_ranks(torch.randn(1, 12), torch.tensor([4]), torch.tensor([False]))
    assert (stood.sum(), tried.sum()) == (0, RANKS)


def expected(target: list[float], draft: list[float], ranks: int) -> list[float]:
    """Chance that the child of each rank stands, by going through every order in which tokens can be drawn."""
    stands = [0.0] * ranks
    for order in permutations(range(len(draft)), ranks):
        probability, reached = 1.0, 1.0
        residual, left = list(target), list(draft)
        for rank, token in enumerate(order):
            probability *= left[token]
            chance = min(1.0, residual[token] / left[token])
            # The chance that this order is drawn up to here and its last token stands, spread over what follows.
            stands[rank] += probability * reached * chance / count_after(len(draft), rank, ranks)
            reached *= 1 - chance
            rest = [max(p - q, 0.0) for p, q in zip(residual, left, strict=False)] + residual[len(left) :]
            residual = [p / (sum(rest) or 1.0) for p in rest]
            left = [0.0 if i == token else q for i, q in enumerate(left)]
            left = [q / (sum(left) or 1.0) for q in left]
    return stands


def count_after(size: int, rank: int, ranks: int) -> int:
    count = 1
    for used in range(rank + 1, ranks):
        count *= size - used
    return count


def test_sampled_children_stand_as_often_as_over_all_draws() -> None:
    target, draft = [0.35, 0.05, 0.25, 0.1, 0.25], [0.1, 0.5, 0.15, 0.25]
    rows = 40_000
    outcome = sampled_ranks(
        torch.tensor([target]).expand(rows, -1),
        torch.tensor([draft]).expand(rows, -1),
        torch.Generator().manual_seed(1),
    )
    got = outcome.stood.mean(0)[:3].tolist()
    assert got == pytest.approx(expected(target, draft, 3), abs=0.006)


def test_a_drafter_that_is_the_target_is_kept_at_once() -> None:
    probs = torch.tensor([[0.5, 0.3, 0.2]])
    outcome = sampled_ranks(torch.cat((probs, torch.zeros(1, 1)), -1), probs, torch.Generator().manual_seed(0))
    assert outcome.stood[0, 0] == 1


def test_of_fewer_tokens_than_ranks_the_last_ranks_are_tried_in_vain() -> None:
    target, draft = torch.tensor([[0.2, 0.3, 0.5]]), torch.tensor([[0.6, 0.4]])
    tried, stood = sampled_ranks(target, draft, torch.Generator().manual_seed(0))
    assert tried.shape == stood.shape == (1, RANKS)
    assert tried[0, 2:].tolist() == pytest.approx([1 - stood.sum().item()] * (RANKS - 2))
    assert not stood[0, 2:].any()


def test_mass_outside_the_draft_vocabulary_is_kept_together() -> None:
    probs = torch.tensor([[0.1, 0.2, 0.3, 0.4]])
    split = over_draft_vocabulary(probs, torch.tensor([1, 3]))
    torch.testing.assert_close(split, torch.tensor([[0.2, 0.4, 0.4]]))
