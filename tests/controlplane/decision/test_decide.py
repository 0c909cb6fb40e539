"""A tick of one cohort: buckets, sentences, and what always holds."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.decision.guard import STALE_S, Reason
from controlplane.decision.sentence import load_label
from controlplane.policy import CohortPolicy, Guard, Match, Speculation
from controlplane.telemetry import LOAD_BUCKETS, CohortWindow, StepCell, StepCount

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


ladders = st.lists(st.integers(0, 16), min_size=1, max_size=6, unique=True).map(lambda rungs: tuple(sorted(rungs)))


@st.composite
def cohorts(draw: st.DrawFn) -> CohortPolicy:
    ladder = draw(ladders)
    speculation = Speculation(
        draw(st.sampled_from(("threshold", "fixed"))),
        draw(st.floats(0, 1)),
        ladder,
        draw(st.sampled_from(ladder)),
        draw(st.sampled_from(ladder)),
    )
    guard = Guard(draw(st.floats(0, 0.5)), draw(st.floats(0, 30)), draw(st.integers(1, 250)), draw(st.floats(5, 90)))
    return CohortPolicy("code", Match(), speculation, guard=guard)


step_counts = st.tuples(st.integers(0, 16), st.integers(0, 16), st.booleans(), st.integers(0, 300)).map(
    lambda t: StepCount(t[0], min(t[1], t[0]), t[2], t[3])
)
step_cells = st.builds(
    lambda bucket, k, counts: StepCell(bucket, k, tuple(counts), 1.0),
    st.integers(0, 8),
    st.integers(0, 16),
    st.lists(step_counts, max_size=4),
)
ticks = st.lists(
    st.tuples(
        st.floats(0, 100), st.none() | st.lists(step_cells, max_size=4).map(lambda c: CohortWindow("code", tuple(c)))
    ),
    max_size=30,
)


def replay(loop: Any, policy: CohortPolicy, stream: list[tuple[float, CohortWindow | None]]) -> list[Any]:
    control, now, seen = loop(policy), 0.0, []
    for wait, window in stream:
        now += wait
        decisions = control.tick(now, *([window] if window is not None else []))
        seen.append((decisions, control.k()))
    return seen


@settings(max_examples=20, deadline=None)
@given(policy=cohorts(), stream=ticks)
def test_k_is_always_a_rung_and_rises_one_rung_at_a_time(
    loop: Any, policy: CohortPolicy, stream: list[tuple[float, CohortWindow | None]]
) -> None:
    """Unless text that changed lets it jump, which drift alarms say."""
    ladder = policy.speculation.ladder
    control, now = loop(policy), 0.0
    for wait, window in stream:
        now += wait
        alarms = control.state.drift_at.copy()
        decisions = control.tick(now, *([window] if window is not None else []))
        may_jump = (control.state.drift_at != alarms).any()
        assert set(control.k()) <= set(ladder)
        for d in decisions:
            assert d.new_k == control.k()[d.load_bucket]
            if policy.speculation.tuner == "threshold" and not may_jump and d.old_k in ladder:
                assert ladder.index(d.new_k) - ladder.index(d.old_k) <= 1


@settings(max_examples=20, deadline=None)
@given(policy=cohorts(), stream=ticks)
def test_the_same_windows_give_the_same_decisions(
    loop: Any, policy: CohortPolicy, stream: list[tuple[float, CohortWindow | None]]
) -> None:
    assert replay(loop, policy, stream) == replay(loop, policy, stream)
