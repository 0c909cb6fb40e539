"""Hazards: right-censored, discounted by evidence, shrunk to the cohort."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.decision.estimate import HALF_LIFE, Estimate, Tally, tally
from controlplane.telemetry import StepCount


def counts_at(tallied: Tally, positions: int) -> list[tuple[int, int]]:
    return list(zip(tallied.examined[:positions], tallied.accepted[:positions], strict=True))


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (StepCount(0, 0, False, 7), [(0, 0), (0, 0), (0, 0)]),  # silence is not a rejection
        (StepCount(2, 0, False, 7), [(7, 0), (0, 0), (0, 0)]),
        (StepCount(2, 1, False, 7), [(7, 7), (7, 0), (0, 0)]),
        (StepCount(2, 2, False, 7), [(7, 7), (7, 7), (0, 0)]),  # censored at K: nothing is known of position 2
        (StepCount(3, 1, True, 7), [(7, 7), (0, 0), (0, 0)]),  # ended inside the draft: nothing after it was examined
        (StepCount(3, 3, True, 7), [(7, 7), (7, 7), (7, 7)]),
    ],
)
def test_only_examined_positions_are_counted(step: StepCount, expected: list[tuple[int, int]]) -> None:
    assert counts_at(tally([step]), 3) == expected


def test_positions_beyond_the_deepest_rung_are_left_out() -> None:
    assert sum(tally([StepCount(40, 40, False, 1)]).examined) == 16


def test_a_position_without_evidence_has_the_hazard_of_the_cohort() -> None:
    estimate = Estimate().absorb(tally([StepCount(1, 1, False, 80), StepCount(1, 0, False, 20)]))
    assert estimate.at(5).mean == pytest.approx(estimate.pooled)


def test_evidence_fades_by_half_over_a_half_life_of_newer_evidence() -> None:
    old = Estimate().absorb(tally([StepCount(1, 1, False, 50)]))
    new = old.absorb(tally([StepCount(1, 0, False, int(HALF_LIFE))]))
    assert new.accepted[0] == pytest.approx(old.accepted[0] / 2)


def test_evidence_at_a_position_that_is_not_examined_does_not_fade() -> None:
    deep = Estimate().absorb(tally([StepCount(4, 4, False, 50)]))
    assert deep.absorb(tally([StepCount(1, 1, False, 10_000)])).examined[3] == deep.examined[3]


def test_evidence_is_bounded_however_much_comes_at_once() -> None:
    assert Estimate().absorb(tally([StepCount(1, 1, False, 10**6)])).samples < 434


def test_a_renewed_position_forgets_what_was_believed_of_it() -> None:
    believed = Estimate().absorb(tally([StepCount(2, 1, False, 200)]))
    renewed = believed.renew(1, tally([StepCount(2, 2, False, 60)]))
    assert renewed.at(1).mean > 0.9
    assert renewed.examined[0] == believed.examined[0]


def test_evidence_of_requests_that_differ_is_worth_less() -> None:
    alike = Estimate().absorb(tally([StepCount(1, 1, False, 50), StepCount(1, 0, False, 50)]))
    assert replace(alike, spread=8.0).at(0).sd > 2 * replace(alike, spread=1.0).at(0).sd


@pytest.mark.parametrize("draw", ["fixed 4", "mixed"])
def test_the_estimate_is_unbiased_under_mixed_k(draw: str) -> None:
    """Where accepted / drafted would be far off: one hazard curve, steps under many K."""
    rng, hazards = random.Random(7), (0.8, 0.7, 0.6, 0.5, 0.4, 0.4, 0.4, 0.4)
    sums = [0.0] * 4
    runs = 40
    for _ in range(runs):
        estimate = Estimate()
        for _ in range(30):
            steps = []
            for _ in range(40):
                k = 4 if draw == "fixed 4" else rng.choice((0, 1, 2, 4, 8))
                accepted = 0
                while accepted < k and rng.random() < hazards[accepted]:
                    accepted += 1
                steps.append(StepCount(k, accepted, False, 1))
            estimate = estimate.absorb(tally(steps))
        for j in range(4):
            sums[j] += estimate.accepted[j] / estimate.examined[j]
    for j in range(4):
        assert sums[j] / runs == pytest.approx(hazards[j], abs=0.03)


step_counts = st.tuples(st.integers(0, 20), st.integers(0, 20), st.booleans(), st.integers(0, 999)).map(
    lambda t: StepCount(t[0], min(t[1], t[0]), t[2], t[3])
)


@given(st.lists(st.lists(step_counts, max_size=6), max_size=6))
def test_hazards_are_probabilities_whatever_comes(ticks: list[list[StepCount]]) -> None:
    estimate = Estimate()
    for tick in ticks:
        estimate = estimate.absorb(tally(tick))
    for j in range(16):
        hazard = estimate.at(j)
        assert 0.0 < hazard.mean < 1.0
        assert 0.0 < hazard.sd <= 0.5


@given(st.lists(step_counts, max_size=8), st.randoms())
def test_the_order_of_windows_within_a_tick_does_not_matter(steps: list[StepCount], rng: random.Random) -> None:
    shuffled = steps.copy()
    rng.shuffle(shuffled)
    assert tally(shuffled) == tally(steps)
