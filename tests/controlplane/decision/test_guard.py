"""One cell and one wish in, one ruling out."""

from dataclasses import dataclass, replace
from math import inf, nan
from typing import Any

import numpy as np
import pytest

from controlplane.decision.cells import NEVER, CellStates, Probes
from controlplane.decision.estimate import Estimate
from controlplane.decision.guard import (
    FALL_STEPS,
    REASONS,
    Circumstances,
    Reason,
    Rulings,
    follow,
    judge_probes,
    probe_limit_s,
    rule,
)
from controlplane.decision.observation import BUCKETS, Evidence
from controlplane.decision.policy_table import PolicyTable
from controlplane.decision.tuners.base import Wish
from controlplane.policy import CohortPolicy, Policy
from controlplane.telemetry import MAX_K

SHAPE = (1, BUCKETS)


@dataclass(frozen=True)
class Asked:
    """A tuner's wish for a single cell."""

    k: int
    gain: float = inf
    is_unexplored: bool = False
    is_blocked: bool = False
    examined: float = 90.0

    @property
    def everywhere(self) -> Wish:
        return Wish(
            k=np.full(SHAPE, self.k),
            gain=np.full(SHAPE, self.gain),
            is_unexplored=np.full(SHAPE, self.is_unexplored),
            is_blocked=np.full(SHAPE, self.is_blocked),
            position=np.full(SHAPE, 0),
            accepted=np.full(SHAPE, 0.9),
            examined=np.full(SHAPE, self.examined),
        )


class Ruling:
    """What the guard made of the first load bucket."""

    def __init__(self, rulings: Rulings) -> None:
        self.all = rulings
        self.reason = REASONS[rulings.reasons[0, 0]] if rulings.reasons[0, 0] >= 0 else None
        self.k = int(rulings.cells.k[0, 0])
        self.planned_k = int(rulings.probes.planned(rulings.cells.k)[0, 0])
        self.failures = int(rulings.cells.failures[0, 0])


def table_of(cohort: CohortPolicy) -> PolicyTable:
    return PolicyTable.of(Policy(1, (cohort,), None, "abc", ""))


def resting(k: int, **changes: Any) -> CellStates:
    """A cell at `k` since second 0; `changes` by field."""
    values = {"k": k, "changed_at": 0.0, "waits_from": 0.0, "decided_at": 0.0, **changes}
    cells = CellStates.fresh(1)
    arrays = {name: getattr(cells, name).copy() for name in values}
    for name, value in values.items():
        arrays[name][0, 0] = value
    return replace(cells, **arrays)


def ruled(
    cohort: CohortPolicy,
    wish: Asked,
    cells: CellStates,
    *,
    now: float = 14.0,
    is_active: bool = True,
    is_told: bool = True,
    is_unpaid: bool = False,
    samples: float = 90.0,
    drift_at: float = NEVER,
    seen_at: float = NEVER,
    over_slo_since: float = nan,
    slower_below: bool = False,
    probe_loss: float = 0.0,
    ran_s: float = 1e6,
    knows_times: bool = True,
    promised: float = nan,
    probes: Probes | None = None,
    judged: bool = False,
) -> Ruling:
    active = np.zeros(SHAPE, np.bool_)
    active[0, 0] = is_active
    seen = Circumstances(
        is_active=active,
        is_told=np.array([is_told]),
        is_unpaid=np.full(SHAPE, is_unpaid),
        drift_at=np.array([drift_at]),
        seen_at=np.full((1, MAX_K), seen_at),
        over_slo_since=np.array([over_slo_since]),
        slower_below=np.full(SHAPE, slower_below),
        probe_loss=np.full(SHAPE, probe_loss),
        ran_s=np.full(SHAPE, ran_s),
        knows_times=knows_times,
        promised=np.full(SHAPE, promised),
    )
    table = table_of(cohort)
    return Ruling(
        rule(
            table,
            wish.everywhere,
            follow(table, cells, now),
            Probes.none(1) if probes is None else probes,
            np.array([judged]),
            seen,
            np.array([samples]),
            now,
        )
    )


@pytest.mark.parametrize(
    ("k", "wish", "expected", "reason"),
    [
        (2, Asked(2), 2, Reason.STEADY),
        (2, Asked(4), 4, Reason.RAISED),
        (2, Asked(8), 4, Reason.RAISED),  # one rung up at a time
        (2, Asked(4, is_unexplored=True), 4, Reason.EXPLORED),
        (8, Asked(1), 1, Reason.LOWERED),  # any number down
        (8, Asked(0), 0, Reason.LOWERED),
        (0, Asked(1), 1, Reason.RAISED),  # another bucket knows that it is worth it
        (0, Asked(0), 0, Reason.OFF),
        (2, Asked(4, gain=0.02), 2, Reason.WITHIN_TOLERANCE),
        (2, Asked(1, gain=0.02), 2, Reason.WITHIN_TOLERANCE),
        (2, Asked(4, gain=0.021), 4, Reason.RAISED),
    ],
)
def test_the_guard_limits_where_a_wish_may_go(
    cohort_policy: Any, k: int, wish: Asked, expected: int, reason: Reason
) -> None:
    ruling = ruled(cohort_policy(), wish, resting(k))
    assert (ruling.planned_k, ruling.reason) == (expected, reason)


@pytest.mark.parametrize(("now", "reason"), [(9.9, Reason.HOLDING), (10.0, Reason.RAISED), (-5.0, Reason.HOLDING)])
def test_a_change_is_held_until_the_hold_time_is_over(cohort_policy: Any, now: float, reason: Reason) -> None:
    assert ruled(cohort_policy(), Asked(4), resting(2), now=now).reason is reason


def test_a_drift_alarm_after_the_last_change_overrides_the_hold_time(cohort_policy: Any) -> None:
    assert ruled(cohort_policy(), Asked(0), resting(8), now=4.0, drift_at=3.0).reason is Reason.LOWERED


def test_a_drift_alarm_before_the_last_change_does_not(cohort_policy: Any) -> None:
    ruling = ruled(cohort_policy(), Asked(0), resting(8, changed_at=3.0), now=4.0, drift_at=2.0)
    assert ruling.reason is Reason.HOLDING


def test_after_a_drift_alarm_a_rise_may_jump(cohort_policy: Any) -> None:
    assert ruled(cohort_policy(), Asked(8), resting(1), now=4.0, drift_at=3.0).k == 8


def test_too_few_samples_argue_for_nothing(cohort_policy: Any) -> None:
    ruling = ruled(cohort_policy(), Asked(0), resting(2), samples=49.0, now=30.0)
    assert (ruling.k, ruling.reason) == (2, Reason.NO_DATA)


@pytest.mark.parametrize(
    ("samples", "changed_at", "reason"),
    [(20.0, 0.0, Reason.LOWERED), (19.0, 0.0, Reason.NO_DATA), (20.0, 3.5, Reason.NO_DATA)],
)
def test_after_a_drift_alarm_twenty_samples_do(
    cohort_policy: Any, samples: float, changed_at: float, reason: Reason
) -> None:
    cells = resting(2, changed_at=changed_at)
    assert ruled(cohort_policy(), Asked(0), cells, samples=samples, now=4.0, drift_at=3.0).reason is reason


@pytest.mark.parametrize("wish", [Asked(1), Asked(8), Asked(0)])
def test_too_few_samples_lead_from_zero_only_to_a_probe(cohort_policy: Any, wish: Asked) -> None:
    early = ruled(cohort_policy(), wish, resting(0), samples=49.0, now=14.0)
    due = ruled(cohort_policy(), wish, resting(0), samples=49.0, now=15.0)
    assert (early.planned_k, early.reason) == (0, Reason.OFF)
    assert (due.planned_k, due.k, due.reason) == (1, 0, Reason.PROBE_STARTED)


def test_k_goes_at_once_to_a_rung_that_was_measured_and_one_rung_at_a_time_to_others(cohort_policy: Any) -> None:
    cohort = cohort_policy(tuner="goodput")
    assert ruled(cohort, Asked(8), resting(1), now=30.0).k == 8
    assert ruled(cohort, Asked(8, examined=10.0), resting(1), now=30.0).k == 2


def test_a_silent_drafter_leaves_k_where_it_is(cohort_policy: Any) -> None:
    assert ruled(cohort_policy(), Asked(0), resting(2), is_told=False).reason is Reason.SILENT


def test_where_nothing_pays_at_the_price_the_rung_itself_is_tried_whatever_the_price(cohort_policy: Any) -> None:
    unpaid = {"is_told": False, "is_unpaid": True}
    early = ruled(cohort_policy(), Asked(2, is_blocked=True), resting(2), now=14.0, **unpaid)
    due = ruled(cohort_policy(), Asked(2, is_blocked=True), resting(2), now=15.0, **unpaid)
    assert (early.k, early.reason) == (2, Reason.OFF)
    assert (due.planned_k, due.k, due.reason) == (2, 2, Reason.PROBE_STARTED)


def test_the_fixed_tuner_is_obeyed_at_once_and_on_no_evidence(cohort_policy: Any) -> None:
    ruling = ruled(cohort_policy(tuner="fixed", start=4), Asked(4), resting(2), now=0.1, is_told=False, samples=0.0)
    assert (ruling.k, ruling.reason) == (4, Reason.FIXED)


def test_goodput_moves_nothing_before_step_times_are_known(cohort_policy: Any) -> None:
    ruling = ruled(cohort_policy(tuner="goodput"), Asked(8), resting(2), knows_times=False)
    assert (ruling.k, ruling.reason) == (2, Reason.NO_LATENCY)


def test_threshold_needs_no_step_times(cohort_policy: Any) -> None:
    assert ruled(cohort_policy(), Asked(4), resting(2), knows_times=False).reason is Reason.RAISED


def test_an_idle_cell_is_not_looked_at(cohort_policy: Any) -> None:
    assert ruled(cohort_policy(), Asked(4), resting(2), is_active=False).reason is None


def test_goodput_decides_every_load_of_a_cohort_that_runs(cohort_policy: Any) -> None:
    ruling = ruled(cohort_policy(tuner="goodput"), Asked(4), resting(2))
    assert ruling.all.cells.k.tolist() == [[4] * BUCKETS]


# Probes


@pytest.mark.parametrize(("failures", "wait_s"), [(0, 15.0), (1, 60.0), (2, 120.0), (3, 120.0), (1000, 120.0)])
def test_probes_come_early_after_a_fall_and_then_later_up_to_twice(
    cohort_policy: Any, failures: int, wait_s: float
) -> None:
    off = resting(0, failures=failures)
    before = ruled(cohort_policy(), Asked(0, is_blocked=True), off, now=wait_s - 0.1)
    due = ruled(cohort_policy(), Asked(0, is_blocked=True), off, now=wait_s)
    assert (before.reason, due.reason, due.planned_k) == (Reason.OFF, Reason.PROBE_STARTED, 1)


def test_a_rung_given_up_above_a_good_one_is_probed_too(cohort_policy: Any) -> None:
    ruling = ruled(cohort_policy(), Asked(2, is_blocked=True), resting(2), now=61.0)
    assert (ruling.reason, ruling.planned_k, ruling.k) == (Reason.PROBE_STARTED, 4, 2)


def test_a_rung_that_is_not_given_up_needs_no_probe(cohort_policy: Any) -> None:
    assert ruled(cohort_policy(), Asked(2), resting(2), now=1e6).reason is Reason.STEADY


def test_the_top_rung_has_nothing_to_probe(cohort_policy: Any) -> None:
    assert ruled(cohort_policy(), Asked(8, is_blocked=True), resting(8), now=1e6).reason is Reason.STEADY


def test_a_cohort_that_makes_no_steps_is_not_probed(cohort_policy: Any) -> None:
    idle = ruled(cohort_policy(tuner="goodput"), Asked(0, is_blocked=True), resting(0), now=1e6, is_active=False)
    assert idle.reason is None


@pytest.mark.parametrize(("seen_at", "reason"), [(50.0, Reason.OFF), (46.0, Reason.PROBE_STARTED)])
def test_evidence_from_another_load_or_from_shadow_drafts_replaces_a_probe(
    cohort_policy: Any, seen_at: float, reason: Reason
) -> None:
    ruling = ruled(cohort_policy(), Asked(0, is_blocked=True), resting(0), now=61.0, seen_at=seen_at)
    assert ruling.reason is reason


def test_a_cohort_probes_one_load_at_a_time(cohort_policy: Any) -> None:
    policy = cohort_policy(tuner="goodput")
    zero = np.zeros(SHAPE)
    off = replace(resting(0), k=np.zeros(SHAPE, np.int64), changed_at=zero, waits_from=zero, decided_at=zero)
    table = table_of(policy)
    seen = Circumstances(
        is_active=np.ones(SHAPE, np.bool_), is_told=np.array([False]),
        is_unpaid=np.zeros(SHAPE, np.bool_), drift_at=np.array([NEVER]),
        seen_at=np.full((1, MAX_K), NEVER), over_slo_since=np.array([nan]), slower_below=np.zeros(SHAPE, np.bool_),
        probe_loss=np.zeros(SHAPE),
        ran_s=np.full(SHAPE, 1e6), knows_times=True, promised=np.full(SHAPE, nan),
    )  # fmt: skip
    wish = Asked(0, is_blocked=True).everywhere
    first = rule(table, wish, off, Probes.none(1), np.array([False]), seen, np.array([90.0]), 61.0)
    then = rule(table, wish, first.cells, first.probes, np.array([False]), seen, np.array([90.0]), 62.0)
    for rulings in (first, then):
        planned = rulings.probes.planned(rulings.cells.k)
        assert planned.tolist() == [[1] + [0] * (BUCKETS - 1)]  # the lightest load, where it costs least


def seen(accepted: float, steps: float, at: int = 0) -> Evidence:
    """[1, MAX_K]: drafts examined at one position."""
    here = np.eye(1, MAX_K, at)
    return Evidence(*(steps * here,) * 4, accepted * here)


def probing(accepted: int, steps: int, *, is_active: bool = True, since: float = 100.0) -> Probes:
    """A probe of K = 1 over K = 0."""
    return Probes(
        np.array([1]), np.array([0]), np.array([since]), np.array([is_active]), seen(float(accepted), float(steps))
    )


def judged(cohort: CohortPolicy, probes: Probes, now: float = 102.0, **circumstances: Any) -> Ruling:
    """A cell at K = 0 that believes nothing good; what the probe saw is believed once it has its samples."""
    table, cells = table_of(cohort), resting(0)
    low = Estimate.of_nothing(1).absorb(seen(0.0, 200.0))
    is_judged, estimate = judge_probes(table, follow(table, cells, now), probes, low)
    wish = Asked(1 if estimate.hazards().mean[0, 0] > 0.5 else 0, is_blocked=True)
    return ruled(cohort, wish, cells, probes=probes, judged=bool(is_judged[0]), now=now, **circumstances)


def test_a_probe_that_passes_becomes_the_k_whatever_was_believed(cohort_policy: Any) -> None:
    ruling = judged(cohort_policy(), probing(46, 50))
    assert (ruling.k, ruling.reason) == (1, Reason.PROBE_PASSED)


def test_a_probe_that_fails_goes_back_and_waits_longer(cohort_policy: Any) -> None:
    ruling = judged(cohort_policy(), probing(10, 50))
    assert (ruling.planned_k, ruling.reason, ruling.failures) == (0, Reason.PROBE_FAILED, 1)


def test_a_probe_goes_on_while_it_lacks_samples(cohort_policy: Any) -> None:
    assert judged(cohort_policy(), probing(49, 49)).reason is Reason.PROBING


def test_a_probe_ends_at_its_limit_and_keeps_what_it_saw(cohort_policy: Any) -> None:
    ended = judged(cohort_policy(), probing(49, 49), now=103.0)
    assert (ended.planned_k, ended.reason, ended.failures) == (0, Reason.PROBE_ENDED, 1)
    again = ruled(cohort_policy(), Asked(0, is_blocked=True), ended.all.cells, probes=ended.all.probes, now=163.0)
    assert again.reason is Reason.PROBE_STARTED
    assert again.all.probes.evidence.examined[0, 0] == 49


def test_evidence_that_comes_after_the_probe_ended_still_decides(cohort_policy: Any) -> None:
    ruling = judged(cohort_policy(), probing(50, 50, is_active=False), now=104.0)
    assert (ruling.k, ruling.reason) == (1, Reason.PROBE_PASSED)


def test_a_probe_ends_even_when_the_traffic_went_elsewhere(cohort_policy: Any) -> None:
    assert judged(cohort_policy(), probing(0, 0), now=103.0, is_active=False).reason is Reason.PROBE_ENDED


@pytest.mark.parametrize(
    ("probe_loss", "after_s", "reason"),
    [
        (0.2, 2.9, Reason.PROBING),  # 0.2 x 2.9 s are under 1 % of 60 s
        (0.5, 1.1, Reason.PROBING),
        (0.5, 1.2, Reason.PROBE_ENDED),
        (0.9, 0.7, Reason.PROBE_ENDED),
    ],
)
def test_a_probe_may_lose_a_hundredth_of_the_time_that_its_load_ran_since_the_last(
    cohort_policy: Any, probe_loss: float, after_s: float, reason: Reason
) -> None:
    ruling = judged(cohort_policy(), probing(0, 0), now=100.0 + after_s, probe_loss=probe_loss, ran_s=60.0)
    assert ruling.reason is reason


@pytest.mark.parametrize(("ran_s", "reason"), [(49.0, Reason.OFF), (50.0, Reason.PROBE_STARTED)])
def test_a_load_that_hardly_ran_cannot_pay_for_a_probe(cohort_policy: Any, ran_s: float, reason: Reason) -> None:
    ruling = ruled(cohort_policy(), Asked(0, is_blocked=True), resting(0), now=61.0, probe_loss=0.5, ran_s=ran_s)
    assert ruling.reason is reason


def test_what_a_probe_may_lose_is_saved_up_anew_after_it(cohort_policy: Any) -> None:
    assert judged(cohort_policy(), probing(10, 50), ran_s=77.0).all.cells.ran_s[0, 0] == 0.0
    assert judged(cohort_policy(), probing(10, 20), ran_s=77.0).all.cells.ran_s[0, 0] == 77.0


def test_a_pass_that_does_not_last_counts_as_a_failure(cohort_policy: Any) -> None:
    ruling = ruled(cohort_policy(), Asked(0), resting(1, passed_at=0.0), now=14.0)
    assert (ruling.reason, ruling.failures) == (Reason.LOWERED, 1)


def test_a_pass_undone_by_drift_was_no_failure(cohort_policy: Any) -> None:
    ruling = ruled(cohort_policy(), Asked(0), resting(1, passed_at=0.0), now=14.0, drift_at=13.0)
    assert (ruling.reason, ruling.failures) == (Reason.LOWERED, 0)


def test_a_pass_that_lasted_clears_the_failures(cohort_policy: Any) -> None:
    assert ruled(cohort_policy(), Asked(0), resting(1, passed_at=0.0, failures=2), now=241.0).failures == 0


@pytest.mark.parametrize(("probe_every_s", "limit_s"), [(5.0, 1.0), (60.0, 3.0), (600.0, 5.0)])
def test_a_probe_lasts_a_small_share_of_the_time_between_two(
    cohort_policy: Any, probe_every_s: float, limit_s: float
) -> None:
    assert probe_limit_s(table_of(cohort_policy(probe_every_s=probe_every_s)))[0] == limit_s


# A raise that did not pay


def raised(speed: float, *, steps: float = 2 * FALL_STEPS, before: float = 2.0, **changes: Any) -> CellStates:
    """At K = 4 since second 0, up from 2; `speed` measured since, without noise."""
    return resting(
        4, before_k=2, before_speed=before, before_sd=0.0, steps=steps, tokens=3.0 * steps,
        tokens_squared=9.0 * steps, speed_time=3.0 * steps / speed, **changes,
    )  # fmt: skip


def test_a_raise_after_which_speed_fell_is_taken_back(cohort_policy: Any) -> None:
    ruling = ruled(cohort_policy(), Asked(4), raised(1.8))
    assert (ruling.k, ruling.reason, ruling.failures) == (2, Reason.REVERTED, 1)


@pytest.mark.parametrize(
    "cells",
    [
        raised(2.2),  # faster
        raised(1.92),  # a little slower
        raised(1.8, steps=FALL_STEPS - 1),  # too little measured
        raised(1.8, before=nan),  # nothing to compare with
    ],
)
def test_a_raise_is_kept_where_no_clear_fall_was_measured(cohort_policy: Any, cells: CellStates) -> None:
    assert ruled(cohort_policy(), Asked(4), cells).reason is Reason.STEADY


def test_a_raise_without_a_speed_before_it_is_held_against_what_was_promised_there(cohort_policy: Any) -> None:
    kept = ruled(cohort_policy(), Asked(4), raised(1.8, before=nan), promised=2.0)
    taken_back = ruled(cohort_policy(), Asked(4), raised(1.8, before=nan), promised=2.5)
    assert (kept.k, kept.reason) == (4, Reason.STEADY)
    assert (taken_back.k, taken_back.reason) == (2, Reason.REVERTED)


def test_a_fall_within_the_noise_is_no_fall(cohort_policy: Any) -> None:
    noisy = raised(1.8)
    noisy.tokens_squared[0, 0] = 50.0 * noisy.steps[0, 0]
    assert ruled(cohort_policy(), Asked(4), noisy).reason is Reason.STEADY


def test_drift_excuses_a_fall(cohort_policy: Any) -> None:
    assert ruled(cohort_policy(), Asked(4), raised(1.8), drift_at=5.0).reason is Reason.STEADY


def test_a_raise_long_ago_is_not_taken_back(cohort_policy: Any) -> None:
    assert ruled(cohort_policy(), Asked(4), raised(1.8), now=121.0).reason is Reason.STEADY


def test_a_raise_is_taken_back_even_within_the_hold_time(cohort_policy: Any) -> None:
    assert ruled(cohort_policy(), Asked(4), raised(1.8), now=2.0).reason is Reason.REVERTED


def test_a_raise_remembers_the_speed_before_it(cohort_policy: Any) -> None:
    before = resting(2, steps=400.0, tokens=800.0, tokens_squared=1600.0, speed_time=500.0)
    cells = ruled(cohort_policy(), Asked(4), before).all.cells
    assert (cells.before_k[0, 0], cells.before_speed[0, 0], cells.steps[0, 0]) == (2, pytest.approx(1.6), 0.0)


# The SLO


def test_there_is_no_rise_while_tpot_is_over_the_slo(cohort_policy: Any) -> None:
    ruling = ruled(cohort_policy(tpot_p95_s=0.04), Asked(4), resting(2), over_slo_since=13.0)
    assert (ruling.k, ruling.reason) == (2, Reason.SLO_VETO)


def test_tpot_that_stays_over_the_slo_takes_one_rung_down(cohort_policy: Any) -> None:
    ruling = ruled(cohort_policy(tpot_p95_s=0.04), Asked(8), resting(8), over_slo_since=3.0)
    assert (ruling.k, ruling.reason) == (4, Reason.SLO_LOWERED)


@pytest.mark.parametrize(
    "circumstances",
    [
        {"over_slo_since": 5.0},  # over it for less than the hold time
        {"over_slo_since": 3.0, "slower_below": True},  # fewer drafts would make it worse
    ],
)
def test_the_slo_takes_nothing_down_too_early_or_in_vain(cohort_policy: Any, circumstances: dict[str, Any]) -> None:
    ruling = ruled(cohort_policy(tpot_p95_s=0.04), Asked(8), resting(8), **circumstances)
    assert (ruling.k, ruling.reason) == (8, Reason.STEADY)


def test_a_wish_to_go_down_is_not_slowed_by_the_slo(cohort_policy: Any) -> None:
    ruling = ruled(cohort_policy(tpot_p95_s=0.04), Asked(0), resting(8), over_slo_since=3.0)
    assert (ruling.k, ruling.reason) == (0, Reason.LOWERED)


def test_within_the_slo_it_says_nothing(cohort_policy: Any) -> None:
    assert ruled(cohort_policy(tpot_p95_s=0.04), Asked(4), resting(2)).reason is Reason.RAISED
