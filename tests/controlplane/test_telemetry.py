"""Windows are sums: merging them in any order loses nothing, and every figure follows from the counts."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.telemetry import (
    LATENCY_BOUNDS_S,
    LOAD_BUCKETS,
    CohortWindow,
    LatencyHistogram,
    StepCell,
    StepCount,
    TenantUse,
    load_bucket,
    merge_cohorts,
    merge_tenants,
)

SECONDS = st.integers(0, 64).map(lambda n: n / 16)
"""Sixteenths, so that floating-point sums are exact in any order."""


@st.composite
def step_counts(draw: st.DrawFn) -> tuple[StepCount, ...]:
    counts = {}
    for drafted in draw(st.lists(st.integers(0, 4), max_size=4)):
        accepted = draw(st.integers(0, drafted))
        ended = accepted > 0 and draw(st.booleans())
        counts[drafted, accepted, ended] = draw(st.integers(1, 9))
    return tuple(StepCount(*key, steps) for key, steps in sorted(counts.items()))


@st.composite
def cohort_windows(draw: st.DrawFn, names: tuple[str, ...] = ("json",)) -> CohortWindow:
    keys = sorted(draw(st.sets(st.tuples(st.integers(0, 2), st.sampled_from([0, 2, 4])), max_size=3)))
    number = st.integers(0, 1000)
    return CohortWindow(
        draw(st.sampled_from(names)),
        tuple(StepCell(*key, draw(step_counts()), draw(SECONDS)) for key in keys),
        *(draw(number) for _ in range(6)),
        ttft=draw(histograms()),
        tpot=draw(histograms()),
        tenants=draw(st.just(()) | tenant_uses()),
    )


@st.composite
def tenant_uses(draw: st.DrawFn) -> tuple[TenantUse, ...]:
    counts = st.tuples(*(st.integers(0, 9) for _ in range(8)))
    return merge_tenants(TenantUse(draw(st.sampled_from([None, "x", "y"])), *draw(counts)) for _ in range(3))


@st.composite
def histograms(draw: st.DrawFn) -> LatencyHistogram:
    histogram = LatencyHistogram()
    for seconds in draw(st.lists(SECONDS, max_size=5)):
        histogram = histogram.observe(seconds)
    return histogram


@settings(deadline=None)
@given(cohort_windows(), cohort_windows())
def test_merging_does_not_depend_on_the_order(a: CohortWindow, b: CohortWindow) -> None:
    assert a.merge(b) == b.merge(a)


@settings(deadline=None)
@given(cohort_windows(), cohort_windows(), cohort_windows())
def test_merging_does_not_depend_on_the_grouping(a: CohortWindow, b: CohortWindow, c: CohortWindow) -> None:
    assert a.merge(b).merge(c) == a.merge(b.merge(c))


@settings(deadline=None)
@given(cohort_windows())
def test_merging_with_an_empty_window_changes_nothing(a: CohortWindow) -> None:
    assert CohortWindow("json").merge(a) == a


def test_a_window_of_unknown_tenants_is_merged_as_nobodys() -> None:
    known = CohortWindow("json", prefill_positions=5, tenants=(TenantUse("x", 5, input_tokens=5),))
    unknown = CohortWindow("json", prefill_positions=3)
    assert unknown.merge(unknown).tenants == ()
    assert known.merge(unknown).tenants == (TenantUse(None, 3), TenantUse("x", 5, input_tokens=5))


def test_tenants_are_summed_by_name_and_empty_ones_are_left_out() -> None:
    uses = [TenantUse("b", 1), TenantUse("a"), TenantUse(None, requests=2), TenantUse("b", 2, 3)]
    assert merge_tenants(uses) == (TenantUse(None, requests=2), TenantUse("b", 3, 3))


def test_a_tenants_steps_and_rejections_follow_from_its_positions() -> None:
    use = TenantUse("a", verify_positions=13, draft_tokens=8, accepted_tokens=6)  # two drafts of 4, three plain steps
    assert (use.steps, use.rejected_tokens) == (5, 2)


FIGURES = (
    "spec_steps", "plain_steps", "draft_tokens", "accepted_tokens", "emitted_tokens", "verify_positions", "positions",
    "first_tokens", "requests_started", "requests_finished", "requests_failed",
)  # fmt: skip


@settings(deadline=None)
@given(cohort_windows(), cohort_windows())
def test_a_figure_of_merged_windows_is_the_sum(a: CohortWindow, b: CohortWindow) -> None:
    merged = a.merge(b)
    for figure in FIGURES:
        assert getattr(merged, figure) == getattr(a, figure) + getattr(b, figure), figure


@settings(deadline=None)
@given(cohort_windows())
def test_figures_fit_together(window: CohortWindow) -> None:
    ended = sum(c.steps for c in window.counts if c.ended)
    steps = window.spec_steps + window.plain_steps
    assert window.emitted_tokens == window.first_tokens + window.accepted_tokens + steps - ended
    assert window.verify_positions == window.draft_tokens + steps
    assert window.positions == window.prefill_positions + window.verify_positions + window.draft_positions
    assert sum(window.drafted_at(j) for j in range(4)) == window.draft_tokens
    assert sum(window.accepted_at(j) for j in range(4)) == window.accepted_tokens


@settings(deadline=None)
@given(st.lists(cohort_windows(("json", "poetry")), max_size=6), st.randoms(use_true_random=False))
def test_cohorts_merge_apart_and_in_any_order(windows: list[CohortWindow], random: object) -> None:
    shuffled = list(windows)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    merged = merge_cohorts(windows)
    assert merged == merge_cohorts(shuffled)
    assert set(merged) == {w.cohort for w in windows}
    assert sum(w.emitted_tokens for w in merged.values()) == sum(w.emitted_tokens for w in windows)


def test_windows_of_different_cohorts_do_not_merge() -> None:
    with pytest.raises(ValueError, match="'json' and 'poetry'"):
        CohortWindow("json").merge(CohortWindow("poetry"))


def test_figures_of_a_window_worked_out_by_hand() -> None:
    counts = (
        StepCount(0, 0, False, 3),  # three plain steps
        StepCount(4, 0, False, 2),
        StepCount(4, 4, False, 1),
        StepCount(4, 2, True, 1),  # EOS on the second draft token
    )
    window = CohortWindow("json", (StepCell(0, 4, counts, 1.0),), prefill_positions=10, first_tokens=2)
    assert (window.spec_steps, window.plain_steps) == (4, 3)
    assert (window.draft_tokens, window.accepted_tokens) == (16, 6)
    assert window.emitted_tokens == 2 + 3 + 2 + 5 + 2
    assert window.positions == 10 + 3 + 4 * 5
    assert [window.drafted_at(j) for j in range(5)] == [4, 4, 4, 4, 0]
    assert [window.accepted_at(j) for j in range(5)] == [2, 2, 1, 1, 0]


@settings(deadline=None)
@given(st.floats(0, 100))
def test_an_observation_falls_into_the_first_bucket_that_holds_it(seconds: float) -> None:
    counts = LatencyHistogram().observe(seconds).counts
    index = counts.index(1)
    bounds = (-math.inf, *LATENCY_BOUNDS_S, math.inf)
    assert sum(counts) == 1
    assert bounds[index] < seconds <= bounds[index + 1] or (seconds == 0 and index == 0)


def test_a_histogram_keeps_count_and_sum() -> None:
    histogram = LatencyHistogram().observe(0.25).observe(50.0).merge(LatencyHistogram().observe(0.5))
    assert (histogram.total, histogram.sum_s, histogram.counts[-1]) == (3, 50.75, 1)


@pytest.mark.parametrize(
    ("running", "bucket"),
    [(0, 0), (1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (8, 3), (9, 4), (128, 7), (256, 8), (257, 8), (10_000, 8)],
)
def test_a_load_falls_into_the_smallest_bucket_that_holds_it(running: int, bucket: int) -> None:
    assert load_bucket(running) == bucket


def test_bounds_rise() -> None:
    for bounds in (LOAD_BUCKETS, LATENCY_BOUNDS_S):
        assert all(a < b for a, b in itertools.pairwise(bounds))
