"""One cell and one wish in, one ruling out."""

from dataclasses import replace
from typing import Any

import pytest

from controlplane.decision.estimate import Estimate, Tally, tally
from controlplane.decision.guard import Cell, Probe, Reason, Ruling, probe_limit_s, rule
from controlplane.decision.tuners import fixed, threshold
from controlplane.decision.tuners.base import Wish
from controlplane.telemetry import StepCount

NEVER = float("-inf")
SEEN = tally([StepCount(2, 2, False, 25)])
ENOUGH = Estimate().absorb(tally([StepCount(2, 2, False, 100)]))


def cell(k: int, **changes: Any) -> Cell:
    return replace(Cell(k, changed_at=0.0, waits_from=0.0, decided_at=0.0), **changes)


def asked(wish: Wish) -> Any:
    return lambda estimate, speculation, k: wish


def ruled(
    cohort: Any, wish: Wish, at: Cell, *, now: float = 14.0, new: Tally = SEEN, drift_at: float = NEVER
) -> Ruling:
    return rule(cohort, asked(wish), ENOUGH, at, new, drift_at, now)


@pytest.mark.parametrize(
    ("k", "wish", "expected", "reason"),
    [
        (2, Wish(2), 2, Reason.STEADY),
        (2, Wish(4), 4, Reason.RAISED),
        (2, Wish(8), 4, Reason.RAISED),  # one rung up at a time
        (2, Wish(4, is_unexplored=True), 4, Reason.EXPLORED),
        (8, Wish(1), 1, Reason.LOWERED),  # any number down
        (8, Wish(0), 0, Reason.LOWERED),
        (0, Wish(1), 1, Reason.RAISED),  # another bucket knows that it is worth it
        (0, Wish(1, is_unexplored=True), 0, Reason.OFF),  # into the unknown from 0 only by a probe
        (2, Wish(4, strength=0.02), 2, Reason.WITHIN_TOLERANCE),
        (2, Wish(1, strength=0.02), 2, Reason.WITHIN_TOLERANCE),
        (2, Wish(4, strength=0.021), 4, Reason.RAISED),
    ],
)
def test_the_guard_limits_where_a_wish_may_go(
    cohort_policy: Any, k: int, wish: Wish, expected: int, reason: Reason
) -> None:
    ruling = ruled(cohort_policy(), wish, cell(k))
    assert (ruling.cell.planned_k, ruling.reason) == (expected, reason)


@pytest.mark.parametrize(("now", "reason"), [(9.9, Reason.HOLDING), (10.0, Reason.RAISED), (-5.0, Reason.HOLDING)])
def test_a_change_is_held_until_the_hold_time_is_over(cohort_policy: Any, now: float, reason: Reason) -> None:
    assert ruled(cohort_policy(), Wish(4), cell(2), now=now).reason is reason


def test_a_drift_alarm_after_the_last_change_overrides_the_hold_time(cohort_policy: Any) -> None:
    assert ruled(cohort_policy(), Wish(0), cell(8), now=4.0, drift_at=3.0).reason is Reason.LOWERED


def test_a_drift_alarm_before_the_last_change_does_not(cohort_policy: Any) -> None:
    assert ruled(cohort_policy(), Wish(0), cell(8, changed_at=3.0), now=4.0, drift_at=2.0).reason is Reason.HOLDING


def test_too_few_samples_argue_for_nothing(cohort_policy: Any) -> None:
    few = Estimate().absorb(tally([StepCount(2, 0, False, 49)]))
    ruling = rule(cohort_policy(), threshold.wish, few, cell(2), SEEN, NEVER, 30.0)
    assert (ruling.cell.k, ruling.reason) == (2, Reason.NO_DATA)


def test_a_silent_drafter_leaves_k_where_it_is(cohort_policy: Any) -> None:
    assert ruled(cohort_policy(), Wish(0), cell(2), new=Tally()).reason is Reason.SILENT


def test_the_fixed_tuner_is_obeyed_at_once_and_on_no_evidence(cohort_policy: Any) -> None:
    policy = cohort_policy(tuner="fixed", start=4)
    ruling = rule(policy, fixed.wish, Estimate(), cell(2), Tally(), NEVER, 0.1)
    assert (ruling.cell.k, ruling.reason) == (4, Reason.FIXED)


@pytest.mark.parametrize(
    ("failures", "wait_s"), [(0, 15.0), (1, 60.0), (2, 120.0), (3, 240.0), (4, 480.0), (5, 480.0), (1000, 480.0)]
)
def test_probes_come_early_after_a_fall_and_then_ever_later_up_to_eight_times(
    cohort_policy: Any, failures: int, wait_s: float
) -> None:
    off = cell(0, failures=failures)
    before = ruled(cohort_policy(), Wish(0), off, now=wait_s - 0.1)
    due = ruled(cohort_policy(), Wish(0), off, now=wait_s)
    assert (before.reason, due.reason, due.cell.planned_k) == (Reason.OFF, Reason.PROBE_STARTED, 1)


def test_a_rung_given_up_above_a_good_one_is_probed_too(cohort_policy: Any) -> None:
    ruling = ruled(cohort_policy(), Wish(2, is_blocked=True), cell(2), now=61.0)
    assert (ruling.reason, ruling.cell.planned_k, ruling.cell.k) == (Reason.PROBE_STARTED, 4, 2)


def test_a_rung_that_is_not_given_up_needs_no_probe(cohort_policy: Any) -> None:
    assert ruled(cohort_policy(), Wish(2), cell(2), now=1e6).reason is Reason.STEADY


def test_the_top_rung_has_nothing_to_probe(cohort_policy: Any) -> None:
    assert ruled(cohort_policy(), Wish(8), cell(8), now=1e6).reason is Reason.STEADY


def probing(accepted: int, steps: int, **changes: Any) -> Cell:
    evidence = tally([StepCount(1, 1, False, accepted), StepCount(1, 0, False, steps - accepted)])
    return cell(0, probe=replace(Probe(1, since=100.0, evidence=evidence), **changes))


def judged(cohort: Any, at: Cell, now: float = 102.0) -> Ruling:
    low = Estimate().absorb(tally([StepCount(1, 0, False, 200)]))
    return rule(cohort, threshold.wish, low, at, SEEN, NEVER, now)


def test_a_probe_that_passes_becomes_the_k_whatever_was_believed(cohort_policy: Any) -> None:
    ruling = judged(cohort_policy(), probing(46, 50))
    assert (ruling.cell.k, ruling.reason) == (1, Reason.PROBE_PASSED)


def test_a_probe_that_fails_goes_back_and_waits_longer(cohort_policy: Any) -> None:
    ruling = judged(cohort_policy(), probing(10, 50))
    assert (ruling.cell.planned_k, ruling.reason, ruling.cell.failures) == (0, Reason.PROBE_FAILED, 1)


def test_a_probe_goes_on_while_it_lacks_samples(cohort_policy: Any) -> None:
    assert judged(cohort_policy(), probing(49, 49)).reason is Reason.PROBING


def test_a_probe_ends_at_its_limit_and_keeps_what_it_saw(cohort_policy: Any) -> None:
    ended = judged(cohort_policy(), probing(49, 49), now=103.0)
    assert (ended.cell.planned_k, ended.reason, ended.cell.failures) == (0, Reason.PROBE_ENDED, 1)
    again = judged(cohort_policy(), ended.cell, now=163.0)
    assert again.cell.probe is not None
    assert (again.reason, again.cell.probe.evidence.examined[0]) == (Reason.PROBE_STARTED, 49)


def test_evidence_that_comes_after_the_probe_ended_still_decides(cohort_policy: Any) -> None:
    ruling = judged(cohort_policy(), probing(50, 50, is_active=False), now=104.0)
    assert (ruling.cell.k, ruling.reason) == (1, Reason.PROBE_PASSED)


def test_a_pass_that_does_not_last_counts_as_a_failure(cohort_policy: Any) -> None:
    ruling = ruled(cohort_policy(), Wish(0), cell(1, passed_at=0.0), now=14.0)
    assert (ruling.reason, ruling.cell.failures) == (Reason.LOWERED, 1)


def test_a_pass_undone_by_drift_was_no_failure(cohort_policy: Any) -> None:
    ruling = ruled(cohort_policy(), Wish(0), cell(1, passed_at=0.0), now=14.0, drift_at=13.0)
    assert (ruling.reason, ruling.cell.failures) == (Reason.LOWERED, 0)


def test_a_pass_that_lasted_clears_the_failures(cohort_policy: Any) -> None:
    ruling = ruled(cohort_policy(), Wish(0), cell(1, passed_at=0.0, failures=2), now=241.0)
    assert ruling.cell.failures == 0


@pytest.mark.parametrize(("probe_every_s", "limit_s"), [(5.0, 1.0), (60.0, 3.0), (600.0, 5.0)])
def test_a_probe_lasts_a_small_share_of_the_time_between_two(
    cohort_policy: Any, probe_every_s: float, limit_s: float
) -> None:
    assert probe_limit_s(cohort_policy(probe_every_s=probe_every_s)) == limit_s
