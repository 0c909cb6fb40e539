"""Hazards: right-censored, discounted by evidence, shrunk to the cohort and the model."""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.decision.estimate import FIRST_SHARE, HALF_LIFE, Estimate
from controlplane.decision.observation import Evidence
from controlplane.telemetry import MAX_K

NOTHING = Estimate.of_nothing(1)


def counts_at(evidence: Evidence, positions: int) -> list[tuple[float, float]]:
    return list(zip(evidence.examined[0, :positions].tolist(), evidence.accepted[0, :positions].tolist(), strict=True))


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        ((0, 0, False, 7), [(0, 0), (0, 0), (0, 0)]),  # silence is not a rejection
        ((2, 0, False, 7), [(7, 0), (0, 0), (0, 0)]),
        ((2, 1, False, 7), [(7, 7), (7, 0), (0, 0)]),
        ((2, 2, False, 7), [(7, 7), (7, 7), (0, 0)]),  # censored at K: nothing is known of position 2
        ((3, 1, True, 7), [(7, 7), (0, 0), (0, 0)]),  # ended inside the draft: nothing after it was examined
        ((3, 3, True, 7), [(7, 7), (7, 7), (7, 7)]),
    ],
)
def test_only_examined_positions_are_counted(
    evidence: Any, step: tuple[int, int, bool, int], expected: list[tuple[int, int]]
) -> None:
    assert counts_at(evidence(step), 3) == expected


def test_positions_beyond_the_deepest_rung_are_left_out(evidence: Any) -> None:
    assert evidence((40, 40, False, 1)).examined.sum() == MAX_K


def test_a_position_without_evidence_has_the_hazard_of_the_cohort(evidence: Any) -> None:
    estimate = NOTHING.absorb(evidence((1, 1, False, 80), (1, 0, False, 20)))
    assert estimate.hazards().mean[0, 5] == pytest.approx(estimate.pooled[0])


def test_a_cohort_without_evidence_has_the_hazard_of_the_model(evidence: Any) -> None:
    one = evidence((1, 1, False, 90), (1, 0, False, 10))
    both = Evidence(*(np.concatenate([a, np.zeros_like(a)]) for a in one._all()))
    estimate = Estimate.of_nothing(2).absorb(both)
    assert estimate.pooled[1] == pytest.approx(0.9, abs=0.02)


def test_a_cohort_with_much_evidence_owes_nothing_to_the_others(evidence: Any) -> None:
    good, bad = evidence((1, 1, False, 400)), evidence((1, 0, False, 400))
    both = Evidence(*(np.concatenate([a, b]) for a, b in zip(good._all(), bad._all(), strict=True)))
    mean = Estimate.of_nothing(2).absorb(both).hazards().mean[:, 0]
    assert mean == pytest.approx([1.0, 0.0], abs=0.04)


def test_evidence_fades_by_half_over_a_half_life_of_newer_evidence(evidence: Any) -> None:
    old = NOTHING.absorb(evidence((1, 1, False, 50)))
    new = old.absorb(evidence((1, 0, False, int(HALF_LIFE))))
    assert new.evidence.accepted[0, 0] == pytest.approx(old.evidence.accepted[0, 0] / 2)


def test_evidence_at_a_position_that_is_not_examined_fades_slowly_with_the_first(evidence: Any) -> None:
    deep = NOTHING.absorb(evidence((4, 4, False, 50)))
    later = deep.absorb(evidence((1, 1, False, int(HALF_LIFE))))
    assert later.evidence.examined[0, 3] == pytest.approx(deep.evidence.examined[0, 3] * 0.5**FIRST_SHARE)


def test_silence_fades_nothing(evidence: Any) -> None:
    known = NOTHING.absorb(evidence((4, 2, False, 50)))
    after = known.absorb(evidence((0, 0, False, 10_000), k=4))
    assert after.evidence.examined.tolist() == known.evidence.examined.tolist()


def test_evidence_is_bounded_however_much_comes_at_once(evidence: Any) -> None:
    assert NOTHING.absorb(evidence((1, 1, False, 10**6))).samples[0] < 434


def test_a_renewed_position_forgets_what_was_believed_of_it(evidence: Any) -> None:
    believed = NOTHING.absorb(evidence((2, 1, False, 200)))
    renewed = believed.renew(0, 1, evidence((2, 2, False, 60)).at(0))
    assert renewed.hazards().mean[0, 1] > 0.9
    assert renewed.evidence.examined[0, 0] == believed.evidence.examined[0, 0]


def test_doubt_keeps_the_hazards_and_widens_them(evidence: Any) -> None:
    known = NOTHING.absorb(evidence((1, 1, False, 180), (1, 0, False, 20)))
    doubted = known.keep(np.array([0.25])).hazards()
    assert doubted.mean[0, 0] == pytest.approx(known.hazards().mean[0, 0], abs=0.02)
    assert doubted.sd[0, 0] > 1.5 * known.hazards().sd[0, 0]


def test_evidence_of_requests_that_differ_is_worth_less(evidence: Any) -> None:
    alike = NOTHING.absorb(evidence((1, 1, False, 50), (1, 0, False, 50)))

    def sd(spread: float) -> float:
        return float(replace(alike, spread=np.array([spread])).hazards().sd[0, 0])

    assert sd(8.0) > 2 * sd(1.0)


def test_a_silent_drafter_is_expected_to_stay_silent_and_to_cost_no_positions(evidence: Any) -> None:
    """A token in half of the steps, always kept: four drafted bring half of what an eager drafter would."""
    outlook = NOTHING.absorb(evidence((0, 0, False, 200), (4, 4, False, 200), k=4)).outlook()
    assert outlook.emitted[0, 4] == pytest.approx(3.0, abs=0.1)
    assert outlook.positions[0, 4] == pytest.approx(3.0, abs=0.1)


def test_more_draft_tokens_never_emit_less(evidence: Any) -> None:
    outlook = NOTHING.absorb(evidence((4, 1, False, 30), (4, 4, False, 5), (2, 0, False, 40))).outlook()
    assert (np.diff(outlook.emitted[0]) >= 0).all()
    assert (np.diff(outlook.survival[0]) <= 0).all()


HAZARDS = (0.8, 0.7, 0.6, 0.5, 0.4, 0.4, 0.4, 0.4)


def simulated(cohorts: int, ks: Sequence[int], *, hazards: npt.NDArray[np.float64], seed: int) -> Estimate:
    """Many replications at once, a cohort each: 30 ticks of 40 steps, every step under a K of its own."""
    rng = np.random.default_rng(seed)
    estimate = replace(Estimate.of_nothing(cohorts), spread=np.ones(cohorts))
    positions = np.arange(MAX_K)
    for _ in range(30):
        k = rng.choice(ks, (cohorts, 40))
        kept = (rng.random((cohorts, 40, hazards.shape[1])) < hazards[:, None, :]).cumprod(axis=2).sum(axis=2)
        accepted = np.minimum(kept, k)[:, :, None]
        planned = (k[:, :, None] > positions).sum(axis=1).astype(np.float64)
        examined = ((accepted >= positions) & (k[:, :, None] > positions)).sum(axis=1).astype(np.float64)
        taken = (accepted > positions).sum(axis=1).astype(np.float64)
        estimate = estimate.absorb(Evidence(planned, planned, examined, examined, taken))
    return estimate


def truth(hazards: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return 1.0 + np.concatenate([np.zeros((len(hazards), 1)), hazards.cumprod(axis=1).cumsum(axis=1)], axis=1)


@pytest.mark.parametrize("ks", [(4,), (0, 1, 2, 4, 8)])
def test_the_hazards_are_unbiased_under_mixed_k(ks: tuple[int, ...]) -> None:
    """Where accepted / drafted would be far off: one hazard curve, steps under many K."""
    evidence = simulated(100, ks, hazards=np.tile(HAZARDS, (100, 1)), seed=7).evidence
    measured = (evidence.accepted[:, :4] / evidence.examined[:, :4]).mean(axis=0)
    assert measured == pytest.approx(HAZARDS[:4], abs=0.02)


@pytest.fixture(scope="module")
def replications() -> tuple[Estimate, npt.NDArray[np.float64]]:
    rng = np.random.default_rng(11)
    level = rng.uniform(0.4, 0.95, (800, 1))
    hazards = np.clip(level - 0.02 * np.arange(8), 0.05, 0.95)
    return simulated(800, (0, 1, 2, 4, 8), hazards=hazards, seed=12), hazards


@pytest.mark.parametrize("k", [1, 2, 4, 8])
def test_expected_tokens_are_unbiased_to_a_percent_with_mixed_k(replications: Any, k: int) -> None:
    estimate, hazards = replications
    emitted = estimate.outlook().emitted[:, k]
    assert (emitted / truth(hazards)[:, k]).mean() == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize("k", [1, 2, 4, 8])
def test_intervals_of_expected_tokens_hold_what_they_promise(replications: Any, k: int) -> None:
    estimate, hazards = replications
    outlook = estimate.outlook()
    is_inside = np.abs(outlook.emitted[:, k] - truth(hazards)[:, k]) <= 1.96 * outlook.emitted_sd[:, k]
    assert 0.93 <= is_inside.mean() <= 0.97


step_counts = st.tuples(st.integers(0, 20), st.integers(0, 20), st.booleans(), st.integers(0, 999)).map(
    lambda t: (t[0], min(t[1], t[0]), t[2], t[3])
)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(step_counts, max_size=6), max_size=6))
def test_hazards_are_probabilities_whatever_comes(evidence: Any, ticks: list[list[tuple[int, int, bool, int]]]) -> None:
    estimate = NOTHING
    for tick in ticks:
        estimate = estimate.absorb(evidence(*tick))
    hazards = estimate.hazards()
    assert ((hazards.mean > 0.0) & (hazards.mean < 1.0)).all()
    assert ((hazards.sd > 0.0) & (hazards.sd <= 0.5)).all()


@settings(max_examples=30, deadline=None)
@given(st.lists(step_counts, max_size=8), st.randoms(use_true_random=False))
def test_the_order_of_counts_within_a_tick_does_not_matter(
    evidence: Any, steps: list[tuple[int, int, bool, int]], rng: random.Random
) -> None:
    shuffled = steps.copy()
    rng.shuffle(shuffled)
    for ours, theirs in zip(evidence(*shuffled, k=16)._all(), evidence(*steps, k=16)._all(), strict=True):
        assert ours.tolist() == theirs.tolist()
