"""A tick of one cohort: buckets, sentences, and what always holds."""

import random
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.decision.decide import Decision, Observation, Rates, decide
from controlplane.decision.guard import STALE_S, Reason
from controlplane.decision.sentence import load_label
from controlplane.policy import CohortPolicy, Guard, Match, Slo, Speculation
from controlplane.telemetry import (
    LOAD_BUCKETS,
    CohortWindow,
    LatencyCell,
    LatencyHistogram,
    ProfileCell,
    StepCell,
    StepCount,
)

GOOD = [(2, 2, False, 60)]
BAD = [(2, 0, False, 60)]


def test_a_decision_says_what_moved_and_why(cohort_policy: Any, window: Any, loop: Any) -> None:
    counts = [(2, 0, False, 20), (2, 1, False, 20), (2, 2, False, 80)]
    (decision,) = loop(cohort_policy()).tick(5.0, window(counts, bucket=2))
    assert decision.sentence == (
        "code 2 -> 4 at load 3-4: position 2 accepted 80 % (floor 50 %), 89 samples; "
        "what lies deeper was not measured yet"
    )
    assert (decision.old_k, decision.new_k, decision.reason, decision.at, decision.policy_revision) == (
        2,
        4,
        Reason.EXPLORED,
        5.0,
        "abc",
    )
    assert decision.accept_at == pytest.approx((0.83, 0.8), abs=0.02)


@pytest.mark.parametrize(("bucket", "label"), [(0, "1"), (1, "2"), (2, "3-4"), (3, "5-8"), (8, "129 or more")])
def test_a_load_bucket_reads_as_its_range(bucket: int, label: str) -> None:
    assert load_label(bucket) == label


def test_an_idle_cohort_is_not_decided(cohort_policy: Any, loop: Any) -> None:
    control = loop(cohort_policy())
    assert (control.tick(1.0), control.last.reasons.max()) == ((), -1)


def test_only_the_buckets_with_steps_are_decided(cohort_policy: Any, loop: Any) -> None:
    cells = (
        StepCell(0, 2, (StepCount(2, 2, False, 60),), 1.0),
        StepCell(3, 2, (StepCount(2, 2, False, 60),), 1.0),
        StepCell(5, 2, (), 0.0),
    )
    decisions = loop(cohort_policy()).tick(1.0, CohortWindow("code", cells))
    assert [d.load_bucket for d in decisions] == [0, 3]


def test_a_prefill_only_window_is_not_decided(cohort_policy: Any, loop: Any) -> None:
    assert loop(cohort_policy()).tick(1.0, CohortWindow("code", prefill_positions=99)) == ()


def test_before_any_decision_the_plan_says_start(cohort_policy: Any, loop: Any) -> None:
    assert loop(cohort_policy()).k() == (2,) * len(LOAD_BUCKETS)


def test_an_inactive_bucket_follows_the_nearest_decided_one(cohort_policy: Any, loop: Any) -> None:
    control = loop(cohort_policy())
    control.tick(1.0, CohortWindow("code", (StepCell(1, 2, (StepCount(2, 2, False, 60),), 1.0),)))
    assert control.k() == (4,) * len(LOAD_BUCKETS)


def test_a_bucket_keeps_its_own_k_beside_a_newer_neighbour(cohort_policy: Any, window: Any, loop: Any) -> None:
    control = loop(cohort_policy())
    control.tick(1.0, window(BAD, bucket=1))
    control.tick(20.0, window([(2, 2, False, 900)], bucket=4))
    assert (control.k()[1], control.k()[4] > 0) == (0, True)


def test_a_bucket_left_for_long_follows_its_neighbour_again(cohort_policy: Any, window: Any, loop: Any) -> None:
    control = loop(cohort_policy())
    control.tick(1.0, window(BAD, bucket=1))
    now = 1.0
    while now < 2 * STALE_S:
        now += 11.0
        control.tick(now, window([(8, 8, False, 200)], bucket=4))
    assert control.k()[1] == 8


def test_a_probe_ends_even_when_the_traffic_went_elsewhere(cohort_policy: Any, window: Any, loop: Any) -> None:
    control = loop(cohort_policy())
    control.tick(0.0, window(BAD))
    control.tick(60.0, window([(0, 0, False, 25)]))
    assert control.k()[0] == 1
    (decision,) = control.tick(64.0)
    assert (decision.reason, control.k()[0]) == (Reason.PROBE_ENDED, 0)


def test_a_cohort_that_starts_at_zero_is_probed_early(cohort_policy: Any, window: Any, loop: Any) -> None:
    control = loop(cohort_policy(start=0, probe_every_s=60.0))
    silent = window([(0, 0, False, 25)])
    (off,) = control.tick(0.0, silent)
    assert control.tick(14.0, silent) == ()  # nothing new
    (probe,) = control.tick(15.0, silent)
    assert (off.reason, probe.reason) == (Reason.OFF, Reason.PROBE_STARTED)


def test_what_one_bucket_learns_another_uses(cohort_policy: Any, window: Any, loop: Any) -> None:
    control = loop(cohort_policy())
    control.tick(0.0, window(GOOD, bucket=0))
    (decision,) = control.tick(1.0, window([(2, 2, False, 1)], bucket=3))
    assert (decision.old_k, decision.accept_at[1] > 0.9) == (4, True)


def test_a_reason_that_stays_the_same_is_said_once(cohort_policy: Any, window: Any, loop: Any) -> None:
    control = loop(cohort_policy(ladder=(0, 2), start=2))
    said = [len(control.tick(float(now), window(GOOD))) for now in range(4)]
    assert said == [1, 0, 0, 0]


PROFILE = [ProfileCell(n, k, 64, 0.02 + 0.001 * n * k, 0.0) for n in (1, 4) for k in (0, 1, 2, 4, 8)]


def test_goodput_without_step_times_says_that_it_waits_for_them(cohort_policy: Any, window: Any, loop: Any) -> None:
    decisions = loop(cohort_policy(tuner="goodput")).tick(0.0, window(GOOD))
    assert {(d.reason, d.sentence.partition(": ")[2]) for d in decisions} == {
        (Reason.NO_LATENCY, "no step times are known yet")
    }


def test_goodput_says_what_it_expects(cohort_policy: Any, window: Any, loop: Any) -> None:
    (decision,) = loop(cohort_policy(tuner="goodput")).tick(0.0, window([(2, 2, False, 90)]), profile=PROFILE)
    assert decision.sentence.startswith("code 2 -> 8 at load 1: expected +")
    assert "% tokens/s, " in decision.sentence
    assert "samples, drift none" in decision.sentence


def slow_requests(window: CohortWindow, requests: int, seconds: float) -> CohortWindow:
    tpot = LatencyHistogram()
    for _ in range(requests):
        tpot = tpot.observe(seconds)
    return replace(window, tpot=tpot)


def test_over_the_slo_no_k_rises_and_then_it_falls(cohort_policy: Any, window: Any, loop: Any) -> None:
    control = loop(cohort_policy(ladder=(0, 1, 2), tpot_p95_s=0.04))
    told = []
    for second in range(13):
        k = control.k()[0]
        told += control.tick(
            float(second), slow_requests(window([(k, k, False, 60)] if k else [(0, 0, False, 60)]), 5, 0.2)
        )
    assert (told[-1].reason, control.k()[0]) == (Reason.SLO_LOWERED, 1)
    assert told[-1].sentence == "code 2 -> 1 at load 1: TPOT p95 is over the SLO of 40 ms"


def test_over_the_slo_a_wish_to_rise_is_refused(cohort_policy: Any, window: Any, loop: Any) -> None:
    control = loop(cohort_policy(tpot_p95_s=0.04, hold_s=30.0))
    (veto,) = control.tick(0.0, slow_requests(window(GOOD), 20, 0.2))
    assert (veto.reason, veto.new_k) == (Reason.SLO_VETO, 2)
    assert veto.sentence == "code stays at 2 at load 1: TPOT p95 is over the SLO of 40 ms; no rise towards 4"


def test_a_few_slow_requests_are_not_a_percentile(cohort_policy: Any, window: Any, loop: Any) -> None:
    control = loop(cohort_policy(tpot_p95_s=0.04))
    (raised,) = control.tick(0.0, slow_requests(window(GOOD), 5, 0.2))
    assert raised.reason is Reason.EXPLORED


ladders = st.lists(st.integers(0, 16), min_size=1, max_size=6, unique=True).map(lambda rungs: tuple(sorted(rungs)))


@st.composite
def cohorts(draw: st.DrawFn) -> CohortPolicy:
    ladder = draw(ladders)
    speculation = Speculation(
        draw(st.sampled_from(("threshold", "fixed", "goodput"))),
        draw(st.floats(0, 1)),
        ladder,
        draw(st.sampled_from(ladder)),
        draw(st.sampled_from(ladder)),
        objective=draw(st.sampled_from(("throughput", "latency", "cost", "energy"))),
        slots=draw(st.sampled_from(("uniform", "ragged"))),
    )
    guard = Guard(draw(st.floats(0, 0.5)), draw(st.floats(0, 30)), draw(st.integers(1, 250)), draw(st.floats(5, 90)))
    slo = Slo(tpot_p95_s=draw(st.sampled_from((None, 0.001, 0.04, 1.0))))
    return CohortPolicy("code", Match(), speculation, guard=guard, slo=slo)


step_counts = st.tuples(st.integers(0, 16), st.integers(0, 16), st.booleans(), st.integers(0, 300)).map(
    lambda t: StepCount(t[0], min(t[1], t[0]), t[2], t[3])
)
step_cells = st.builds(
    lambda bucket, k, counts: StepCell(bucket, k, tuple(counts), 1.0),
    st.integers(0, 8),
    st.integers(0, 16),
    st.lists(step_counts, max_size=4),
)
latencies = st.builds(
    lambda n, k, steps, step_s: LatencyCell(n, n * (k + 1), steps, steps * step_s, 64 * n * steps, 0.0),
    st.integers(1, 300),
    st.integers(0, 16),
    st.integers(0, 50),
    st.floats(1e-5, 5.0),
)
profiles = st.lists(
    st.builds(
        lambda n, k, step_s, share: ProfileCell(n, k, 64, step_s, share * step_s if k else 0.0),
        st.sampled_from((1, 4, 32)),
        st.sampled_from((0, 1, 4, 16)),
        st.floats(1e-6, 1.0),
        st.floats(0, 1),
    ),
    max_size=8,
)
cohort_windows = st.builds(
    lambda real, shadow, waits: CohortWindow(
        "code", tuple(real), shadow=tuple(shadow), tpot=sum_of(LatencyHistogram().observe(w) for w in waits)
    ),
    st.lists(step_cells, max_size=4, unique_by=lambda c: (c.load_bucket, c.k)),
    st.lists(step_cells, max_size=2, unique_by=lambda c: (c.load_bucket, c.k)),
    st.lists(st.floats(0, 9), max_size=12),
)


def sum_of(histograms: Iterable[LatencyHistogram]) -> LatencyHistogram:
    total = LatencyHistogram()
    for each in histograms:
        total = total.merge(each)
    return total


@dataclass(frozen=True)
class Second:
    """What one tick brings, `wait` seconds after the last."""

    wait: float
    window: CohortWindow | None
    latency: list[LatencyCell]
    profile: list[ProfileCell]
    joules: float | None

    def into(self, control: Any, now: float) -> tuple[Decision, ...]:
        decisions: tuple[Decision, ...] = control.tick(
            now, *([self.window] if self.window is not None else []), profile=self.profile, latency=self.latency,
            joules=self.joules, rates=Rates(0.001, 1e-5),
        )  # fmt: skip
        return decisions


ticks = st.lists(
    st.builds(
        Second,
        st.floats(0, 100),
        st.none() | cohort_windows,
        st.lists(latencies, max_size=3),
        profiles,
        st.none() | st.floats(0, 500),
    ),
    max_size=12,
)


def replay(loop: Any, policy: CohortPolicy, stream: list[Second]) -> list[Any]:
    control, now, seen = loop(policy), 0.0, []
    for second in stream:
        now += second.wait
        seen.append((second.into(control, now), control.k(), control.state.price(), control.state.survival()))
    return seen


@settings(max_examples=20, deadline=None)
@given(policy=cohorts(), stream=ticks)
def test_k_is_always_a_rung_and_rises_one_rung_at_a_time(loop: Any, policy: CohortPolicy, stream: list[Second]) -> None:
    """Unless text that changed lets it jump, which drift alarms say."""
    ladder = policy.speculation.ladder
    control, now = loop(policy), 0.0
    for second in stream:
        now += second.wait
        alarms = control.state.drift_at.copy()
        decisions = second.into(control, now)
        may_jump = (control.state.drift_at != alarms).any()
        assert set(control.k()) <= set(ladder)
        for d in decisions:
            assert d.new_k == control.k()[d.load_bucket]
            if policy.speculation.tuner == "threshold" and not may_jump and d.old_k in ladder:
                assert ladder.index(d.new_k) - ladder.index(d.old_k) <= 1


@pytest.mark.parametrize(
    ("counts", "says"),
    [
        ([(4, 4, False, 90)], False),
        ([(0, 0, False, 45), (4, 4, False, 45)], True),
        ([(1, 1, False, 45), (4, 4, False, 45)], True),
    ],
)
def test_a_plan_says_how_often_a_drafter_has_a_token_where_it_may_have_none(
    loop: Any, cohort_policy: Any, window: Any, counts: list[tuple[int, int, bool, int]], says: bool
) -> None:
    control = loop(cohort_policy(tuner="goodput", slots="ragged"))
    control.tick(0.0, window(counts, k=4), profile=PROFILE)
    assert (min(control.state.drafted().get("code", (1.0,))) < 0.9) == says


@settings(max_examples=20, deadline=None)
@given(policy=cohorts(), stream=ticks)
def test_what_a_plan_says_is_always_finite_and_within_bounds(
    loop: Any, policy: CohortPolicy, stream: list[Second]
) -> None:
    control, now = loop(policy), 0.0
    for second in stream:
        now += second.wait
        second.into(control, now)
        state = control.state
        assert all(0.0 <= price <= 1.0 for price in state.price())
        assert all(depth in policy.speculation.ladder or depth == 0 for depth in state.depth())
        assert all(0.0 <= chance <= 1.0 for by_position in state.survival().values() for chance in by_position)
        outlook = state.estimate.outlook()
        assert np.isfinite(outlook.emitted).all()
        assert np.isfinite(outlook.emitted_sd).all()


@settings(max_examples=20, deadline=None)
@given(
    policy=cohorts(),
    windows=st.lists(st.tuples(cohort_windows, st.lists(latencies, max_size=2), profiles), max_size=5),
    rng=st.randoms(use_true_random=False),
)
def test_the_order_in_which_workers_report_decides_nothing(
    loop: Any, policy: CohortPolicy, windows: list[Any], rng: random.Random
) -> None:
    control = loop(policy)
    reported = [
        control.window(1.0, [window], profile, latency, worker=f"w{i}")
        for i, (window, latency, profile) in enumerate(windows)
    ]
    shuffled = reported.copy()
    rng.shuffle(shuffled)
    ticked = [decide(control.state, Observation.of(each, ("code",)), 1.0) for each in (reported, shuffled)]
    ours, theirs = ((t.state.k_by_load(), t.reasons.tolist(), [d.sentence for d in t.decisions]) for t in ticked)
    assert ours == theirs


@settings(max_examples=8, deadline=None)
@given(policy=cohorts(), stream=ticks)
def test_the_same_windows_give_the_same_decisions(loop: Any, policy: CohortPolicy, stream: list[Second]) -> None:
    assert replay(loop, policy, stream) == replay(loop, policy, stream)


def test_what_is_drafted_under_the_rung_of_a_priced_cohort_is_measured_as_its_speed(
    loop: Any, cohort_policy: Any, window: Any
) -> None:
    """The price cuts drafts short of the rung, and yet it is the rung that is judged by what they bring."""
    for slots, measured in (("ragged", 40.0), ("uniform", 0.0)):
        control = loop(cohort_policy(tuner="goodput", slots=slots, start=4, fallback=0))
        control.tick(0.0, window([(4, 2, False, 40)]))
        control.tick(1.0, window([(2, 1, False, 40)]))
        assert control.state.cells.steps[0, 0] == measured


def test_a_jump_that_the_profile_lied_into_is_taken_back(loop: Any, cohort_policy: Any, window: Any) -> None:
    """Deep drafts are told to cost nothing and take three times as long; no rung before was run long enough."""
    told = [ProfileCell(n, k, 0, 0.05 if k else 0.045, 0.0) for n in (1, 2, 4, 8) for k in (0, 1, 2, 4, 8)]
    control = loop(cohort_policy(tuner="goodput", start=2, fallback=0))
    control.tick(0.0, window([(2, 2, False, 60), (2, 0, False, 20)]), profile=told)
    assert control.k()[0] > 2
    for second in range(1, 8):
        k = control.k()[0]
        seconds = 0.05 if k <= 2 else 0.15
        counts = (StepCount(k, 2, False, 30), StepCount(k, 0, False, 10))
        slow = CohortWindow("code", (StepCell(0, k, counts, 40 * seconds),))
        reasons = [d.reason for d in control.tick(float(second), slow) if d.load_bucket == 0]
        if Reason.REVERTED in reasons:
            break
    assert Reason.REVERTED in reasons
    assert control.k()[0] < 8
