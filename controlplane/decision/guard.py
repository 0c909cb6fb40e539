"""Limits on how K may move, over every tuner: all cells at once, one tick.

A cell (cohort, load bucket) is *moving* (it goes where the tuner wishes: one rung up at a time, any number down, one
change per hold time; after a drift alarm at once and any number up), *resting* under a rung that was given up (K = 0
is the case that yields no evidence at all), or *probing* that rung for a few seconds. A probe has counts of its own,
judged apart from older evidence; one that ends without enough samples keeps them for the next. The first comes soon
after the fall, then probe_every apart, twice that while probes fail; a probe that passed and did not last counts as
failed.

Missing data never argues for a change: no examined draft in a tick (a silent drafter, K = 0) leaves K where it is.
The rules are in the order of their precedence; each names the reason why K is what it is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from controlplane.decision.cells import CellStates, Probes
from controlplane.decision.estimate import ENOUGH, Estimate
from controlplane.decision.observation import BUCKETS, Flags, Floats, Ints
from controlplane.decision.policy_table import FIXED, GOODPUT, PolicyTable
from controlplane.decision.tuners.base import Wish

PROBE_SHARE, PROBE_LEAST_S, PROBE_MOST_S = 0.05, 1.0, 5.0
PROBE_COST = 0.01
"""Share of the time that a cell has run since its last probe that one may lose."""
FALL, FALL_STEPS = 0.05, 200.0
"""A raise is taken back when the measured speed fell by more than this, clear of noise, over at least these steps."""
PROMISE_SD = 0.05
"""Relative standard deviation of what step times promise of a rung that was hardly run."""
JUDGED_FOR_S = 120.0
"""A raise is judged by what was measured for this long after it."""


class Reason(StrEnum):
    """Why K moved or stayed: the label of decisions_total and the word in the journal."""

    RAISED = "raised"
    EXPLORED = "explored"
    LOWERED = "lowered"
    REVERTED = "reverted"
    FIXED = "fixed"
    STEADY = "steady"
    NO_DATA = "no_data"
    NO_LATENCY = "no_latency"
    SILENT = "silent"
    HOLDING = "holding"
    WITHIN_TOLERANCE = "within_tolerance"
    SLO_VETO = "slo_veto"
    SLO_LOWERED = "slo_lowered"
    OFF = "off"
    PROBE_STARTED = "probe_started"
    PROBING = "probing"
    PROBE_PASSED = "probe_passed"
    PROBE_FAILED = "probe_failed"
    PROBE_ENDED = "probe_ended"
    KILL_SWITCH = "kill_switch"
    POLICY_APPLIED = "policy_applied"
    CANARY = "canary"
    EXPERIMENT = "experiment"


REASONS: tuple[Reason, ...] = tuple(Reason)
_CODE = {reason: code for code, reason in enumerate(REASONS)}
UNDECIDED = -1
_PROBE_OVER = [_CODE[reason] for reason in (Reason.PROBE_PASSED, Reason.PROBE_FAILED, Reason.PROBE_ENDED)]


@dataclass(frozen=True, slots=True, eq=False)
class Circumstances:
    """What else the guard looks at. is_active: [cohorts, loads] whether the cell made a step since the last tick.

    is_told: [cohorts] whether any draft was examined. is_unpaid: [cohorts, loads] whether the cell made steps, all of
    them without drafts though it rests above K = 0: nothing pays there at the price. drift_at: [cohorts] last drift
    alarm. seen_at: [cohorts, MAX_K] when each position was last examined. over_slo_since: [cohorts] since when TPOT p95
    is over the SLO, NaN where it is not. slower_below: [cohorts, loads] whether one rung down is predicted to make TPOT
    worse. probe_loss: [cohorts, loads] share of its time that a probe loses, were nothing of it accepted; 0 where
    unknown. ran_s: [cohorts, loads] seconds that the cell has run since its last probe, this tick included.
    knows_times: whether step times are known. promised: [cohorts, loads] speed that the step times give the rung before
    the last raise, for cells in which none was measured; NaN elsewhere.
    """

    is_active: Flags
    is_told: Flags
    is_unpaid: Flags
    drift_at: Floats
    seen_at: Floats
    over_slo_since: Floats
    slower_below: Flags
    probe_loss: Floats
    ran_s: Floats
    knows_times: bool
    promised: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Rulings:
    """What the guard made of the wishes: the cells and probes after the tick, and a reason code a cell.

    reasons: [cohorts, loads] i64 into REASONS, UNDECIDED where the cell was not looked at.
    """

    cells: CellStates
    probes: Probes
    reasons: Ints


class _Ruled:
    """The cells as they are being decided: a rule decides the cells it names that no earlier rule has decided."""

    def __init__(self, cells: CellStates, open_cells: Flags, now: float) -> None:
        self.now = now
        self.open = open_cells.copy()
        self.reasons = np.full(cells.k.shape, UNDECIDED)
        self.k, self.changed_at = cells.k.copy(), cells.changed_at.copy()
        self.waits_from, self.failures = cells.waits_from.copy(), cells.failures.copy()
        self.passed_at, self.before_k = cells.passed_at.copy(), cells.before_k.copy()
        self.reverted_at = cells.reverted_at.copy()

    def decide(self, reason: Reason, where: Flags) -> Flags:
        """Close the open cells among `where` for `reason`, and say which they were."""
        taken: Flags = self.open & where
        self.reasons[taken] = _CODE[reason]
        self.open &= ~taken
        return taken

    def move(self, where: Flags, k: Ints) -> None:
        """Rest on another rung from now on."""
        self.k[where], self.changed_at[where], self.waits_from[where] = k[where], self.now, self.now


def rule(
    table: PolicyTable,
    wish: Wish,
    cells: CellStates,
    probes: Probes,
    judged: Flags,
    seen: Circumstances,
    samples: Floats,
    now: float,
) -> Rulings:
    """The cells and probes after this tick.

    cells: k is a rung everywhere (`follow` filled the never decided ones). judged: [cohorts] whether the probe has its
    samples, which `wish` already rests on. samples: [cohorts] examined drafts behind the cohort's estimate.
    """
    cohorts = np.arange(len(samples))
    is_probed = np.zeros(cells.k.shape, np.bool_)
    is_probed[cohorts, probes.load_bucket] = probes.is_active
    here_probed = np.zeros_like(is_probed)
    here_probed[cohorts, probes.load_bucket] = probes.k >= 0
    is_goodput = (table.tuner == GOODPUT)[:, None]
    is_running: Flags = np.asarray(seen.is_active.any(axis=1))
    is_looked_at = seen.is_active | (is_running[:, None] & is_goodput) | is_probed
    ruled = _Ruled(cells, is_looked_at, now)
    _fixed(ruled, table)
    probes = _running_probe(ruled, table, wish, probes, judged, seen, now)
    ruled.decide(Reason.NO_LATENCY, is_goodput & (not seen.knows_times))
    # A drafter that was not asked is not silent.
    resting_k = (ruled.k > 0) & ~seen.is_unpaid
    ruled.decide(Reason.NO_DATA, resting_k & (samples[:, None] < needed_samples(table, cells, seen.drift_at)))
    ruled.decide(Reason.SILENT, resting_k & ~seen.is_told[:, None])
    is_unknown = (samples < table.min_samples)[:, None] & (ruled.k == 0)
    # From K = 0 without evidence, only a probe leads on.
    wish = replace(wish, k=np.where(is_unknown, 0, wish.k), is_blocked=wish.is_blocked | is_unknown)
    _revert(ruled, cells, seen, now)
    _slo(ruled, table, wish, cells, seen, now)
    probes = _rest_or_probe(ruled, table, wish, cells, probes, seen, now)
    held = now - cells.changed_at < table.hold_s[:, None]
    is_free = ~held | (seen.drift_at[:, None] > cells.changed_at) | (cells.decided_at == -np.inf)
    # The first climb into what nobody measured need not wait, so that a cohort's first minute is not spent on it.
    is_free |= (wish.k > ruled.k) & wish.is_unexplored & (cells.failures == 0) & (table.tuner == GOODPUT)[:, None]
    # What was taken back is not tried again before a probe would be, unless other text came.
    is_barred = now - cells.reverted_at < cells.wait_s(table.probe_every_s)
    is_barred &= (wish.k > ruled.k) & (seen.drift_at[:, None] <= cells.reverted_at)
    ruled.decide(Reason.HOLDING, ~is_free | is_barred)
    ruled.decide(Reason.WITHIN_TOLERANCE, wish.gain <= table.tolerance[:, None])
    _move(ruled, table, wish, cells, seen, now)
    has_moved: Flags = np.asarray((here_probed & (ruled.k != cells.k)).any(axis=1))
    probes = probes.without(has_moved)  # what it saw was seen over another rung
    return Rulings(_after(cells, ruled, is_looked_at, seen, now), probes, ruled.reasons)


def follow(table: PolicyTable, cells: CellStates, now: float) -> CellStates:
    """With a K for the cells that were never decided (lately): their neighbour's, else `start`."""
    known = nearest(cells)
    is_lost = (cells.k < 0) | ~is_current(cells)
    k = np.where(is_lost, np.where(known < 0, table.start[:, None], known), cells.k)
    return replace(
        cells,
        k=k,
        changed_at=np.where(is_lost, -np.inf, cells.changed_at),
        waits_from=np.where(is_lost, now, cells.waits_from),
        before_k=np.where(is_lost, -1, cells.before_k),
        steps=np.where(is_lost, 0.0, cells.steps),
        tokens=np.where(is_lost, 0.0, cells.tokens),
        tokens_squared=np.where(is_lost, 0.0, cells.tokens_squared),
        speed_time=np.where(is_lost, 0.0, cells.speed_time),
    )


STALE_S = 60.0
"""A bucket decided this much longer ago than the cohort's newest follows that one again."""


def is_current(cells: CellStates) -> Flags:
    """[cohorts, loads]: whether the cell was decided about as lately as the cohort's newest."""
    current: Flags = (cells.k >= 0) & (cells.decided_at >= cells.decided_at.max(axis=1)[:, None] - STALE_S)
    return current


def nearest(cells: CellStates) -> Ints:
    """[cohorts, loads]: K of the nearest cell decided lately (of two as near, the one at lower load), -1 for none."""
    known = np.where(is_current(cells), cells.k, -1)
    out = known.copy()
    for distance in range(1, BUCKETS):
        if (out >= 0).all():
            break
        below = np.full_like(known, -1)
        below[:, distance:] = known[:, :-distance]
        above = np.full_like(known, -1)
        above[:, :-distance] = known[:, distance:]
        out = np.where(out < 0, np.where(below >= 0, below, above), out)
    return out


def needed_samples(table: PolicyTable, cells: CellStates, drift_at: Floats) -> Floats:
    """[cohorts, loads]: examined drafts below which a cell stays at its K. drift_at: [cohorts], of the last alarm.

    After an alarm what is left are those seen since acceptance changed, and K is known to be one for other text: fewer
    do, or a cohort that rarely runs keeps the wrong K for minutes.
    """
    needed = np.broadcast_to(table.min_samples[:, None], cells.k.shape)
    return np.where(drift_at[:, None] > cells.changed_at, np.minimum(needed, ENOUGH), needed)


def probe_samples(table: PolicyTable) -> Floats:
    """[cohorts]: drafts that must be examined beyond the resting rung before a probe is judged."""
    return np.maximum(table.min_samples, ENOUGH)


def probe_limit_s(table: PolicyTable) -> Floats:
    """[cohorts]: longest that one probe may last, seconds: a share of the time between probes, within bounds."""
    limit: Floats = np.clip(PROBE_SHARE * table.probe_every_s, PROBE_LEAST_S, PROBE_MOST_S)
    return limit


def judge_probes(table: PolicyTable, cells: CellStates, probes: Probes, estimate: Estimate) -> tuple[Flags, Estimate]:
    """Which probes have their samples, and the estimate with what those saw in place of older beliefs."""
    cohorts = np.arange(len(probes.k))
    rests_at = np.maximum(cells.k[cohorts, probes.load_bucket], 0)
    # Of the rung above where the cell rests, or of its own where that did not pay: it may have moved since, or follow
    # another load.
    is_own = (probes.k == rests_at) & (rests_at > 0)
    first = np.where(is_own, 0, rests_at)
    beyond = probes.evidence.examined[cohorts, np.minimum(first, probes.evidence.examined.shape[1] - 1)]
    is_next = (probes.k >= 0) & (is_own | (probes.k == table.above[cohorts, rests_at]))
    judged: Flags = is_next & (beyond >= probe_samples(table))
    for cohort in np.flatnonzero(judged):
        estimate = estimate.renew(int(cohort), int(first[cohort]), probes.evidence.at(int(cohort)))
    return judged, estimate


def _fixed(ruled: _Ruled, table: PolicyTable) -> None:
    fixed = ruled.decide(Reason.FIXED, (table.tuner == FIXED)[:, None] & np.ones_like(ruled.open))
    differs = fixed & (ruled.k != table.start[:, None])
    ruled.move(differs, np.broadcast_to(table.start[:, None], ruled.k.shape))


def _running_probe(
    ruled: _Ruled, table: PolicyTable, wish: Wish, probes: Probes, judged: Flags, seen: Circumstances, now: float
) -> Probes:  # fmt: skip
    """Pass, fail or end the probes that are due; the rest go on."""
    cohorts = np.arange(len(judged))
    here = np.zeros_like(ruled.open)
    here[cohorts, probes.load_bucket] = probes.k >= 0
    passes = here & judged[:, None] & (wish.k > ruled.k)
    passed = ruled.decide(Reason.PROBE_PASSED, passes)
    failed = ruled.decide(Reason.PROBE_FAILED, here & judged[:, None] & ~passes)
    rung = np.broadcast_to(probes.k[:, None], ruled.k.shape)
    ruled.move(passed & (rung != ruled.k), rung)
    ruled.passed_at[passed] = now
    ruled.before_k[passed] = -1
    ruled.failures[failed] += 1
    ruled.waits_from[failed] = now
    probes = probes.without(judged)  # believed by now, also where no cell is looked at to say so
    active = here & probes.is_active[:, None]
    affordable_s = PROBE_COST * seen.ran_s / np.maximum(seen.probe_loss, 1e-9)
    is_too_long = now - probes.since[:, None] >= np.minimum(probe_limit_s(table)[:, None], affordable_s)
    ended = ruled.decide(Reason.PROBE_ENDED, active & is_too_long)
    ruled.failures[ended] = np.maximum(ruled.failures[ended], 1)
    ruled.waits_from[ended] = now
    ruled.decide(Reason.PROBING, active)
    return replace(probes, is_active=probes.is_active & ~ended.any(axis=1))


def _revert(ruled: _Ruled, cells: CellStates, seen: Circumstances, now: float) -> None:
    """Take a raise back when the measured speed fell, whatever the model of step times says; drift excuses it.

    A raise out of a rung that was hardly run has no speed before it: it is held against what was expected there.
    """
    speed, sd = cells.speed()
    is_measured = ~np.isnan(cells.before_speed)
    before = np.where(is_measured, cells.before_speed, seen.promised)
    before_sd = np.where(is_measured, cells.before_sd, PROMISE_SD * seen.promised)
    fell = speed + 2.0 * sd < (1.0 - FALL) * before - 2.0 * before_sd  # NaN compares as False
    fell &= (cells.before_k >= 0) & (cells.steps >= FALL_STEPS) & (now - cells.changed_at <= JUDGED_FOR_S)
    taken = ruled.decide(Reason.REVERTED, fell & (seen.drift_at[:, None] <= cells.changed_at))
    ruled.move(taken, cells.before_k)
    ruled.before_k[taken] = -1
    ruled.failures[taken] += 1
    ruled.reverted_at[taken] = now


def _slo(ruled: _Ruled, table: PolicyTable, wish: Wish, cells: CellStates, seen: Circumstances, now: float) -> None:
    """No rise while TPOT is over the SLO; one rung down where it stays so and fewer drafts would help."""
    is_over = ~np.isnan(seen.over_slo_since)[:, None] & np.ones_like(ruled.open)
    lasts = (now - np.nan_to_num(seen.over_slo_since, nan=now) >= table.hold_s)[:, None]
    is_free = now - cells.changed_at >= table.hold_s[:, None]
    below = table.below[np.arange(len(ruled.k))[:, None], np.maximum(ruled.k, 0)]
    would_stay = wish.k >= ruled.k
    lowered = ruled.decide(
        Reason.SLO_LOWERED,
        is_over & lasts & is_free & would_stay & (below >= 0) & ~seen.slower_below & seen.is_active,
    )
    ruled.move(lowered, below)
    ruled.before_k[lowered] = -1
    ruled.decide(Reason.SLO_VETO, is_over & (wish.k > ruled.k))


def _rest_or_probe(
    ruled: _Ruled, table: PolicyTable, wish: Wish, cells: CellStates, probes: Probes, seen: Circumstances, now: float
) -> Probes:  # fmt: skip
    """Cells whose wish is where they rest: try the rung above again if what lies there was not seen for long."""
    cohorts = np.arange(len(ruled.k))
    agrees = wish.k == ruled.k
    above = table.above[cohorts[:, None], np.maximum(ruled.k, 0)]
    is_off = ((ruled.k == 0) & (above > 0)) | seen.is_unpaid
    # Where nothing is drafted under its rung, that rung itself is tried, whatever the price.
    drafted = np.where(seen.is_unpaid, 0, ruled.k)
    above = np.where(seen.is_unpaid, ruled.k, above)
    last_seen = seen.seen_at[cohorts[:, None], np.minimum(drafted, seen.seen_at.shape[1] - 1)]
    # Evidence from another load, or from shadow drafts, is as good as a probe's: the wait is from the later of both.
    is_due = now - np.maximum(cells.waits_from, last_seen) >= cells.wait_s(table.probe_every_s)
    is_due &= np.isnan(seen.over_slo_since)[:, None]
    wants = ruled.open & agrees & wish.is_blocked & (above > 0) & seen.is_active & is_due
    wants &= ~probes.is_active[:, None] & (now - cells.changed_at >= table.hold_s[:, None])
    # A load that hardly ever runs cannot pay for a probe, and learns from the others.
    wants &= PROBE_COST * seen.ran_s >= seen.probe_loss * PROBE_LEAST_S
    # One probe a cohort: at the lightest load that is due, where it costs least.
    first = np.zeros_like(wants)
    chosen = wants.argmax(axis=1)
    first[cohorts, chosen] = wants.any(axis=1)
    started = ruled.decide(Reason.PROBE_STARTED, first)
    ruled.decide(Reason.OFF, agrees & is_off)
    ruled.decide(Reason.STEADY, agrees)
    starts = started.any(axis=1)
    if not starts.any():
        return probes
    rung = above[cohorts, chosen]
    again = starts & (probes.k == rung)  # evidence of an earlier probe of this rung, cut short, still counts
    probes = probes.without(starts & ~again)
    return Probes(
        k=np.where(starts, rung, probes.k),
        load_bucket=np.where(starts, chosen, probes.load_bucket),
        since=np.where(starts, now, probes.since),
        is_active=probes.is_active | starts,
        evidence=probes.evidence,
    )


def _move(ruled: _Ruled, table: PolicyTable, wish: Wish, cells: CellStates, seen: Circumstances, now: float) -> None:
    cohorts = np.arange(len(ruled.k))[:, None]
    is_up = wish.k > ruled.k
    is_new = (cells.decided_at == -np.inf) & (table.tuner == GOODPUT)[:, None]  # what other loads taught holds here too
    # One rung at a time leads into what was not measured; where it was, at whatever load, K goes there at once.
    is_known = (wish.examined >= probe_samples(table)[:, None]) & (table.tuner == GOODPUT)[:, None]
    may_jump = (seen.drift_at[:, None] > cells.changed_at) | is_new | is_known
    next_up = table.above[cohorts, np.maximum(ruled.k, 0)]
    target = np.where(is_up & ~may_jump, np.minimum(next_up, wish.k), wish.k)
    explored = ruled.decide(Reason.EXPLORED, is_up & wish.is_unexplored & (target == wish.k))
    raised = ruled.decide(Reason.RAISED, is_up)
    lowered = ruled.decide(Reason.LOWERED, ~is_up)
    # A probe that passed and did not last was wrong, unless other text came.
    wait = cells.wait_s(table.probe_every_s)
    did_not_last = lowered & (now - cells.passed_at < wait) & (seen.drift_at[:, None] <= cells.passed_at)
    ups = explored | raised
    ruled.before_k[ups] = ruled.k[ups]
    ruled.before_k[lowered] = -1
    ruled.move(ups | lowered, target)
    ruled.failures[ups | lowered] = 0
    ruled.failures[did_not_last] = cells.failures[did_not_last] + 1


def _after(cells: CellStates, ruled: _Ruled, is_looked_at: Flags, seen: Circumstances, now: float) -> CellStates:
    moved = ruled.k != cells.k
    speed, sd = cells.speed()
    is_measured = cells.steps >= FALL_STEPS
    keeps = moved & (ruled.before_k >= 0)
    is_probe_over = np.isin(ruled.reasons, _PROBE_OVER)
    return replace(
        cells,
        k=ruled.k,
        changed_at=ruled.changed_at,
        waits_from=ruled.waits_from,
        decided_at=np.where(is_looked_at, now, cells.decided_at),
        failures=ruled.failures,
        passed_at=ruled.passed_at,
        reverted_at=ruled.reverted_at,
        ran_s=np.where(is_probe_over, 0.0, seen.ran_s),
        before_k=ruled.before_k,
        tokens=np.where(moved, 0.0, cells.tokens),
        tokens_squared=np.where(moved, 0.0, cells.tokens_squared),
        steps=np.where(moved, 0.0, cells.steps),
        speed_time=np.where(moved, 0.0, cells.speed_time),
        before_speed=np.where(moved, np.where(keeps & is_measured, speed, np.nan), cells.before_speed),
        before_sd=np.where(moved, np.where(keeps & is_measured, sd, np.nan), cells.before_sd),
    )
