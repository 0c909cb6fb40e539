"""Splits lose nothing: cohorts + idle = the window, to the last integer."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.finops.attribution import (
    NS_PER_HOUR,
    attribute_energy,
    attribute_time,
    cost_by_part,
    cost_of_time,
    split,
    window_cost,
)
from controlplane.telemetry import CohortWindow, StepCell, StepCount, WindowId, WorkerWindow

AMOUNTS = st.integers(0, 10**18)
WEIGHTS = st.lists(st.integers(0, 10**9), min_size=1, max_size=12)


@given(AMOUNTS, WEIGHTS)
def test_a_split_adds_up_to_the_whole(total: int, weights: list[int]) -> None:
    assert sum(split(total, weights)) == total


@given(AMOUNTS, WEIGHTS)
def test_every_part_is_within_one_of_its_exact_share(total: int, weights: list[int]) -> None:
    whole = sum(weights)
    shares = [Fraction(total * w, whole) if whole else Fraction(total, len(weights)) for w in weights]
    assert all(abs(part - share) < 1 for part, share in zip(split(total, weights), shares, strict=True))


def test_the_largest_remainders_get_what_is_left() -> None:
    assert split(10, [1, 1, 2, 3]) == [2, 1, 3, 4]  # exact: 1.43, 1.43, 2.86, 4.29


def test_equal_remainders_favour_the_first() -> None:
    assert split(2, [1, 1, 1]) == [1, 1, 0]


def test_zero_weights_split_evenly_and_lose_nothing() -> None:
    assert split(5, [0, 0]) == [3, 2]


def test_a_zero_weight_gets_nothing_beside_a_positive_one() -> None:
    assert split(7, [0, 3, 0]) == [0, 7, 0]


@pytest.mark.parametrize(("total", "weights"), [(-1, [1]), (1, [-1, 2]), (1, [])])
def test_a_split_without_sense_is_refused(total: int, weights: list[int]) -> None:
    with pytest.raises(ValueError, match="cannot split"):
        split(total, weights)


COUNTS = st.builds(
    lambda drafted, accepted, steps: StepCount(drafted, min(accepted, drafted), False, steps),
    st.integers(0, 8),
    st.integers(0, 8),
    st.integers(1, 50),
)


def cohort_windows(name: str) -> st.SearchStrategy[CohortWindow]:
    cells = st.lists(COUNTS, max_size=4).map(lambda counts: (StepCell(0, 8, tuple(counts), 0.1),))
    return st.builds(CohortWindow, st.just(name), cells, st.integers(0, 500), st.integers(0, 500))


COHORTS = st.integers(0, 5).flatmap(lambda n: st.tuples(*(cohort_windows(f"c{i}") for i in range(n))))


@given(
    COHORTS,
    st.floats(0, 5, allow_nan=False),
    st.floats(-1, 6, allow_nan=False),
    st.integers(0, 10**12),
    st.integers(0, 10**13),
)
def test_cohorts_and_idle_are_the_bill_for_any_window(
    cohorts: tuple[CohortWindow, ...], seconds: float, busy_s: float, energy_uj: int, per_hour_nano: int
) -> None:
    window = any_window(cohorts, seconds, busy_s, energy_uj)
    bill = window_cost(window, per_hour_nano)
    assert bill.total == cost_of_time(attribute_time(window).total, per_hour_nano)
    for part in (attribute_time(window), attribute_energy(window), bill):
        assert part is not None
        assert part.idle >= 0
        assert all(0 <= s.wasted <= s.amount for s in part.shares)
        assert sum(s.amount for s in part.shares) + part.idle == part.total


def any_window(cohorts: tuple[CohortWindow, ...], seconds: float, busy_s: float, energy_uj: int | None) -> WorkerWindow:
    return WorkerWindow(
        id=WindowId("w", 1, 1),
        model="m",
        drafter="d",
        device="x",
        started_at=0.0,
        ended_at=seconds,
        busy_s=busy_s,
        energy_uj=energy_uj,
        energy_source="counter",
        plan_version=1,
        plan_expired=False,
        plan_age_s=0.0,
        running=0,
        waiting=0,
        kv_used=0,
        kv_total=0,
        cohorts=cohorts,
    )


def two_cohorts() -> tuple[CohortWindow, ...]:
    """30 positions (8 of them rejected drafts) and 10 positions."""
    a = CohortWindow("a", (StepCell(0, 4, (StepCount(4, 2, False, 4),), 0.1),), prefill_positions=10)
    return a, CohortWindow("b", prefill_positions=10)


def test_the_busy_part_is_split_by_positions_and_the_rest_is_idle() -> None:
    time = attribute_time(any_window(two_cohorts(), 1.0, 0.4, None))
    assert [(s.cohort, s.amount) for s in time.shares] == [("a", 300_000_000), ("b", 100_000_000)]
    assert time.idle == 600_000_000


def test_wasted_is_the_share_of_rejected_draft_positions() -> None:
    time = attribute_time(any_window(two_cohorts(), 1.0, 0.4, None))
    assert [s.wasted for s in time.shares] == [80_000_000, 0]


def test_energy_follows_the_same_split() -> None:
    energy = attribute_energy(any_window(two_cohorts(), 1.0, 0.4, 1000))
    assert energy is not None
    assert ([s.amount for s in energy.shares], energy.idle) == ([300, 100], 600)


def test_unmeasured_energy_stays_unknown() -> None:
    assert attribute_energy(any_window(two_cohorts(), 1.0, 0.4, None)) is None


def test_a_busy_window_without_positions_is_idle() -> None:
    time = attribute_time(any_window((CohortWindow("a"),), 1.0, 0.9, None))
    assert (time.shares[0].amount, time.idle) == (0, 1_000_000_000)


def test_a_window_cannot_be_more_busy_than_long() -> None:
    assert attribute_time(any_window(two_cohorts(), 1.0, 3.0, None)).idle == 0


def test_a_clock_that_went_back_makes_an_empty_window() -> None:
    assert attribute_time(any_window(two_cohorts(), -1.0, 0.4, None)).total == 0


def test_an_hour_costs_the_price_of_an_hour() -> None:
    assert cost_of_time(NS_PER_HOUR, 2_950_000_000) == 2_950_000_000


@pytest.mark.parametrize(("halves", "nano"), [(1, 0), (3, 2), (5, 2), (7, 4)])
def test_half_a_nano_unit_rounds_to_even(halves: int, nano: int) -> None:
    assert cost_of_time(halves * NS_PER_HOUR // 2, 1) == nano


def test_no_time_costs_nothing_in_any_part() -> None:
    assert cost_by_part([0, 0], 10**9) == [0, 0]
