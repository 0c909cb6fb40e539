"""Limits on how K may move, over every tuner: one cohort at one load bucket, one tick.

A cell is in one of three states: *moving* (it goes where the tuner wishes: one rung up at a time, any number down, one
change per hold time unless a drift alarm came after the last), *resting* under a rung that was given up (K = 0 is the
case that yields no evidence at all), and *probing* that rung for a few seconds. A probe has a tally of its own, judged
apart from older evidence; one that ends without enough samples keeps its tally for the next. The first comes soon after
the fall, then while probes fail the time between them doubles up to MAX_BACKOFF times the policy's; a probe that passed
and did not last counts as failed.

Missing data never argues for a change: no examined draft in a tick (a silent drafter, K = 0) leaves K where it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from controlplane.decision.estimate import ENOUGH, Estimate, Tally
from controlplane.decision.tuners.base import Tuner, Wish
from controlplane.policy import CohortPolicy

FIRST_PROBE, MAX_BACKOFF = 0.25, 8
PROBE_SHARE, PROBE_LEAST_S, PROBE_MOST_S = 0.05, 1.0, 5.0


class Reason(StrEnum):
    """Why K moved or stayed: the label of decisions_total and the word in the journal."""

    RAISED = "raised"
    EXPLORED = "explored"
    LOWERED = "lowered"
    FIXED = "fixed"
    STEADY = "steady"
    NO_DATA = "no_data"
    SILENT = "silent"
    HOLDING = "holding"
    WITHIN_TOLERANCE = "within_tolerance"
    OFF = "off"
    PROBE_STARTED = "probe_started"
    PROBING = "probing"
    PROBE_PASSED = "probe_passed"
    PROBE_FAILED = "probe_failed"
    PROBE_ENDED = "probe_ended"
    KILL_SWITCH = "kill_switch"
    CANARY = "canary"
    POLICY_APPLIED = "policy_applied"


@dataclass(frozen=True, slots=True)
class Probe:
    """A rung under trial. since: unix seconds; evidence may still arrive when it is no longer active."""

    k: int
    since: float
    is_active: bool = True
    evidence: Tally = field(default_factory=Tally)


@dataclass(frozen=True, slots=True)
class Cell:
    """Guard state of a cohort at a load bucket. k: where it rests (a probe's rung is on top of it). Unix seconds.

    changed_at: last change of k. waits_from: since when it waits for the next probe. failures: probes in a row that
    did not pass or last. passed_at: when a probe last passed.
    """

    k: int
    changed_at: float
    waits_from: float
    decided_at: float
    failures: int = 0
    passed_at: float = float("-inf")
    probe: Probe | None = None

    @property
    def planned_k(self) -> int:
        """K for the plan: the probe's while there is one."""
        return self.probe.k if self.probe is not None and self.probe.is_active else self.k

    def wait_s(self, cohort: CohortPolicy) -> float:
        """Seconds from waits_from to the next probe: sooner after a fall, which one odd text may have caused."""
        factor = min(2 ** min(self.failures - 1, 8), MAX_BACKOFF) if self.failures else FIRST_PROBE
        return float(cohort.guard.probe_every_s * factor)


@dataclass(frozen=True, slots=True)
class Ruling:
    """What the guard made of the tuner's wish. wish: None where the tuner was not asked."""

    cell: Cell
    estimate: Estimate
    reason: Reason
    wish: Wish | None = None


def rule(
    cohort: CohortPolicy, tuner: Tuner, estimate: Estimate, cell: Cell, new: Tally, drift_at: float, now: float
) -> Ruling:
    """The cell after this tick. `new`: what was examined in the cell since the last one; drift_at: last alarm."""
    cell = replace(cell, decided_at=now)
    if cohort.speculation.tuner == "fixed":
        return _fixed(cohort, tuner, estimate, cell, now)
    if cell.probe is not None:
        judged = _judge_probe(cohort, tuner, estimate, cell, cell.probe, now)
        if judged is not None:
            return judged
    if cell.k > 0 and estimate.samples < cohort.guard.min_samples:
        return Ruling(cell, estimate, Reason.NO_DATA)
    if cell.k > 0 and new.is_empty:
        return Ruling(cell, estimate, Reason.SILENT)
    wish = tuner(estimate, cohort.speculation, cell.k)
    if wish.k == cell.k or (cell.k == 0 and wish.is_unexplored and wish.k == _above(cohort, 0)):
        return _rest_or_probe(cohort, estimate, cell, wish, now)
    if now - cell.changed_at < cohort.guard.hold_s and drift_at <= cell.changed_at:
        return Ruling(cell, estimate, Reason.HOLDING, wish)
    if wish.strength <= cohort.guard.tolerance:
        return Ruling(cell, estimate, Reason.WITHIN_TOLERANCE, wish)
    return _move(cohort, estimate, cell, wish, drift_at, now)


def count_probe(cell: Cell, by_k: Mapping[int, Tally]) -> Cell:
    """With the tick's tallies of the probe's own rung added to it; by_k: planned K -> tally."""
    if cell.probe is None or cell.probe.k not in by_k:
        return cell
    return replace(cell, probe=replace(cell.probe, evidence=cell.probe.evidence + by_k[cell.probe.k]))


def probe_limit_s(cohort: CohortPolicy) -> float:
    """Longest that one probe may last, seconds: a share of the time between probes, within bounds."""
    return float(min(max(PROBE_SHARE * cohort.guard.probe_every_s, PROBE_LEAST_S), PROBE_MOST_S))


def probe_samples(cohort: CohortPolicy) -> float:
    """Drafts that must be examined beyond the resting rung before a probe is judged."""
    return max(float(cohort.guard.min_samples), ENOUGH)


def _above(cohort: CohortPolicy, k: int) -> int | None:
    """The next rung above `k`, None at the top."""
    return next((rung for rung in cohort.speculation.ladder if rung > k), None)


def _fixed(cohort: CohortPolicy, tuner: Tuner, estimate: Estimate, cell: Cell, now: float) -> Ruling:
    wish = tuner(estimate, cohort.speculation, cell.k)
    if wish.k != cell.k:
        cell = replace(cell, k=wish.k, changed_at=now, probe=None)
    return Ruling(cell, estimate, Reason.FIXED, wish)


def _judge_probe(
    cohort: CohortPolicy, tuner: Tuner, estimate: Estimate, cell: Cell, probe: Probe, now: float
) -> Ruling | None:
    """What becomes of the probe; None when it is over, unjudged, and the cell rests."""
    if probe.evidence.examined[cell.k] >= probe_samples(cohort):
        estimate = estimate.renew(cell.k, probe.evidence)
        wish = tuner(estimate, cohort.speculation, cell.k)
        if wish.k > cell.k:
            passed = replace(cell, k=probe.k, changed_at=now, waits_from=now, passed_at=now, probe=None)
            return Ruling(passed, estimate, Reason.PROBE_PASSED, wish)
        failed = replace(cell, waits_from=now, failures=cell.failures + 1, probe=None)
        return Ruling(failed, estimate, Reason.PROBE_FAILED, wish)
    if probe.is_active and now - probe.since >= probe_limit_s(cohort):
        ended = replace(cell, waits_from=now, failures=max(cell.failures, 1), probe=replace(probe, is_active=False))
        return Ruling(ended, estimate, Reason.PROBE_ENDED)
    return Ruling(cell, estimate, Reason.PROBING) if probe.is_active else None


def _rest_or_probe(cohort: CohortPolicy, estimate: Estimate, cell: Cell, wish: Wish, now: float) -> Ruling:
    """The tuner agrees with the present rung; try the one above it again if that was given up long enough ago."""
    above = _above(cohort, cell.k)
    is_off = cell.k == 0 and above is not None
    resting = Reason.OFF if is_off else Reason.STEADY
    if above is None or not (is_off or wish.is_blocked):
        return Ruling(cell, estimate, resting, wish)
    if now - cell.waits_from < cell.wait_s(cohort):
        return Ruling(cell, estimate, resting, wish)
    earlier = cell.probe.evidence if cell.probe is not None and cell.probe.k == above else Tally()
    return Ruling(replace(cell, probe=Probe(above, now, evidence=earlier)), estimate, Reason.PROBE_STARTED, wish)


def _move(cohort: CohortPolicy, estimate: Estimate, cell: Cell, wish: Wish, drift_at: float, now: float) -> Ruling:
    above = _above(cohort, cell.k)
    if wish.k > cell.k and above is not None:
        k = above
        reason = Reason.EXPLORED if wish.is_unexplored and k == wish.k else Reason.RAISED
    else:
        k, reason = wish.k, Reason.LOWERED
    is_undone = reason is Reason.LOWERED and now - cell.passed_at < cell.wait_s(cohort)
    did_not_last = is_undone and drift_at <= cell.passed_at  # other text came: the probe was not wrong
    failures = cell.failures + 1 if did_not_last else 0
    return Ruling(
        replace(cell, k=k, changed_at=now, waits_from=now, failures=failures, probe=None), estimate, reason, wish
    )
