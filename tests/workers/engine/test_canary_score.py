"""What counts as rounding and what as wrong: at the best token, and at the borders of top-k, top-p and min_tokens."""

from __future__ import annotations

import math

import pytest
import torch

from workers.canary_score import NEAR_TIE, Comparison, compare
from workers.verifier import target_scores

EOS = 0
LAW = torch.tensor([0.0, 0.6, 0.3, 0.1]).log().clamp(min=-30.0)
"""Logits of token 1 at 60 %, 2 at 30 %, 3 at 10 %, and EOS at nothing; the largest is 30 in size."""
TOLERANCE = NEAR_TIE[torch.float32] * 30.0


@pytest.fixture
def look(ask):
    """Compare one emitted token with one row of logits."""

    def one(logits, token, at=0, **sampling) -> Comparison:
        return compare(torch.as_tensor(logits)[None], ask([3, 3], **sampling), [1] * at + [token], at, [EOS])

    return one


def seed_for(token, logits=LAW):
    """A seed whose noise makes `token` the best of all of them at the first place of the completion."""
    return next(s for s in range(10_000) if int(target_scores(logits[None], 1.0, s, 2).argmax()) == token)


@pytest.mark.parametrize(("below", "kind"), [(0.0, "same"), (0.5, "near_ties"), (2.0, "mismatches")])
def test_a_greedy_token_is_judged_by_how_far_it_lies_below_the_best(look, below, kind) -> None:
    logits = torch.tensor([-30.0, 5.0, 5.0 - below * TOLERANCE, 1.0])
    found = look(logits, 1 if kind == "same" else 2)
    assert (found.near_ties, found.mismatches) == (kind == "near_ties", kind == "mismatches")
    assert found.worst_gap == pytest.approx(below * TOLERANCE, rel=0.01)
    assert found.first_mismatch == (0 if kind == "mismatches" else None)


def test_of_equal_ones_the_lowest_token_is_the_targets(look) -> None:
    logits = torch.tensor([-30.0, 5.0, 5.0, 1.0])
    assert (look(logits, 1).near_ties, look(logits, 2).near_ties) == (0, 1)


def test_the_tolerance_is_a_share_of_the_largest_logit_by_its_type(look) -> None:
    logits = torch.tensor([-30.0, 5.0, 4.5, 1.0], dtype=torch.bfloat16)
    assert look(logits, 2).near_ties == 1
    assert look(logits.float(), 2).mismatches == 1


def test_a_seeded_token_is_judged_under_its_noise(look) -> None:
    seed = seed_for(3)
    assert look(LAW, 3, temperature=1.0, seed=seed) == Comparison(1)
    assert look(LAW, 1, temperature=1.0, seed=seed).mismatches == 1


def test_the_distance_is_in_logits_at_any_temperature(look) -> None:
    logits = torch.tensor([-30.0, 5.0, 3.0, 1.0])
    noise = target_scores(torch.zeros_like(logits)[None], 0.25, 1, 2)[0]
    scores = logits * 4.0 + noise
    best, other = scores.topk(2).indices.tolist()
    found = look(logits, other, temperature=0.25, seed=1)
    assert found.worst_gap == pytest.approx(float(scores[best] - scores[other]) * 0.25, rel=1e-4)


@pytest.mark.parametrize(("below", "near"), [(0.5, True), (50.0, False)])
def test_a_token_at_the_border_of_top_k_may_have_been_in(look, below, near) -> None:
    logits = torch.tensor([-30.0, 5.0, 5.0 - below * TOLERANCE, 1.0])
    seed = seed_for(2, logits)
    found = look(logits, 2, temperature=1.0, seed=seed, top_k=1)
    assert (found.near_ties, found.mismatches) == (near, not near)
    assert math.isinf(found.worst_gap) != near


@pytest.mark.parametrize(("top_p", "near"), [(0.9, True), (0.8, False)])
def test_a_token_at_the_border_of_the_nucleus_may_have_been_in(look, top_p, near) -> None:
    """Before token 3 lies 90 % of the mass, up to rounding."""
    found = look(LAW, 3, temperature=1.0, seed=seed_for(3), top_p=top_p)
    assert found.near_ties + found.mismatches <= 1
    assert (found.mismatches == 0) == near
    assert math.isinf(found.worst_gap) != near


@pytest.mark.parametrize(("min_p", "near"), [(1 / 6, True), (0.25, False)])
def test_a_token_at_the_border_of_min_p_may_have_been_in(look, min_p, near) -> None:
    """Token 3 has a sixth of the likeliest one's probability, up to rounding."""
    found = look(LAW, 3, temperature=1.0, seed=seed_for(3), min_p=min_p)
    assert (found.mismatches == 0) == near
    assert math.isinf(found.worst_gap) != near


@pytest.mark.parametrize(("at", "token"), [(0, 1), (1, 1), (3, 2)])
def test_a_penalty_counts_what_was_emitted_before(look, at, token) -> None:
    """`look` has token 1 emitted at every place before; the prompt holds 3 alone."""
    logits = torch.tensor([-30.0, 5.0, 4.0, 1.0])
    assert look(logits, token, at=at, frequency_penalty=0.4) == Comparison(1)
    assert look(logits, 3 - token, at=at, frequency_penalty=0.4).mismatches == 1


def test_a_repetition_penalty_moves_rounding_as_well(look) -> None:
    """Two logits that differ by a rounding differ by more of it where both are multiplied."""
    logits = torch.tensor([-30.0, -5.0, -5.0 - 1.5 * TOLERANCE, -20.0])
    wished = {"repetition_penalty": 2.0, "logit_bias": ((1, -5.0), (2, -5.0))}
    assert look(logits, 2).mismatches == 1
    assert look(logits, 2, **wished).near_ties == 1


@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.0, "seed": 3}], ids=["greedy", "seeded"])
def test_an_end_before_min_tokens_was_not_allowed(look, sampling) -> None:
    logits = torch.tensor([20.0, 5.0, 3.0, 1.0])
    early = look(logits, EOS, at=4, min_tokens=5, **sampling)
    assert (early.mismatches, early.worst_gap) == (1, math.inf)
    assert look(logits, EOS, at=5, min_tokens=5, **sampling) == Comparison(1)


def test_sums_keep_the_worst_and_the_first() -> None:
    first, second = Comparison(3, 0, 1, 2.0, 0.1, 2), Comparison(4, 1, 1, 5.0, 0.2, 6)
    assert Comparison() + first + second == Comparison(7, 1, 2, 5.0, 0.2, 2)
