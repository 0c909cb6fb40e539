"""One tick of one cohort: what was seen and believed in, decisions and the new beliefs out. No clock, no I/O.

Beliefs about acceptance are the cohort's: they depend on its text, not on the load. Guard state is per load bucket.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from controlplane.decision.drift import KEPT, Drift, spread
from controlplane.decision.estimate import Estimate, Tally, tally
from controlplane.decision.guard import Cell, Reason, Ruling, count_probe, rule
from controlplane.decision.sentence import explain
from controlplane.decision.tuners import fixed, threshold
from controlplane.decision.tuners.base import Tuner
from controlplane.policy import CohortPolicy
from controlplane.telemetry import LOAD_BUCKETS, CohortWindow

__all__ = ["CohortState", "Decision", "Reason", "decide", "k_by_load", "observe"]

TUNERS: Mapping[str, Tuner] = {"fixed": fixed.wish, "threshold": threshold.wish}

STALE_S = 60.0
"""A bucket decided this much longer ago than the cohort's newest follows that one again."""


@dataclass(frozen=True, slots=True)
class Decision:
    """K of one cohort at one load bucket in one tick, and why; staying is a decision too.

    load_bucket: index into LOAD_BUCKETS. samples: discounted examined drafts behind the sentence. accept_at:
    conditional acceptance by position, 0-based. at: unix seconds. plan_version: the plan that carries new_k.
    """

    cohort: str
    load_bucket: int
    old_k: int
    new_k: int
    reason: Reason
    sentence: str
    samples: int
    accept_at: tuple[float, ...]
    at: float
    plan_version: int
    policy_revision: str


@dataclass(frozen=True, slots=True)
class CohortState:
    """What is remembered of a cohort between ticks. cells: by load bucket, None where never decided."""

    estimate: Estimate = field(default_factory=Estimate)
    drift: Drift = field(default_factory=Drift)
    drift_at: float = float("-inf")
    cells: tuple[Cell | None, ...] = (None,) * len(LOAD_BUCKETS)


def observe(state: CohortState, window: CohortWindow, now: float) -> CohortState:
    """The beliefs after a tick's merged window; nothing is decided."""
    new = tally(window.counts)
    drift, is_alarm = state.drift.watch(state.estimate, new)
    estimate = replace(state.estimate, spread=spread(state.estimate, new))
    estimate = (estimate.keep(KEPT) if is_alarm else estimate).absorb(new)
    return replace(state, estimate=estimate, drift=drift, drift_at=now if is_alarm else state.drift_at)


def decide(
    cohort: CohortPolicy,
    state: CohortState,
    window: CohortWindow | None,
    now: float,
    *,
    plan_version: int = 0,
    policy_revision: str = "",
) -> tuple[tuple[Decision, ...], CohortState]:
    """Decisions for the load buckets that were active in the tick, and the state after it.

    window: the tick's windows of this cohort merged, None when it was idle. An idle bucket is touched only when a probe
    in it has to end, so that no probe outlives its limit because the traffic went elsewhere.
    """
    if window is not None:
        state = observe(state, window, now)
    seen = _tallies(window)
    estimate, cells, decisions = state.estimate, list(state.cells), []
    for bucket, known in enumerate(state.cells):
        by_k = seen.get(bucket)
        if by_k is None and not (known is not None and known.probe is not None and known.probe.is_active):
            continue
        is_current = known is not None and not _is_stale(known, state.cells)
        before = known if known is not None and is_current else _follow(cohort, state.cells, bucket, now)
        counted = count_probe(before, by_k or {})
        new = sum((by_k or {}).values(), start=Tally())
        ruling = rule(cohort, TUNERS[cohort.speculation.tuner], estimate, counted, new, state.drift_at, now)
        estimate, cells[bucket] = ruling.estimate, ruling.cell
        decisions.append(_decision(cohort, bucket, before, ruling, now, plan_version, policy_revision))
    return tuple(decisions), replace(state, estimate=estimate, cells=tuple(cells))


def k_by_load(cohort: CohortPolicy, state: CohortState) -> tuple[int, ...]:
    """K by load bucket for the plan: each bucket's own, else that of the nearest one decided lately, else `start`."""
    if cohort.speculation.tuner == "fixed":
        return (cohort.speculation.start,) * len(LOAD_BUCKETS)
    ks = []
    for bucket, cell in enumerate(state.cells):
        if cell is not None and not _is_stale(cell, state.cells):
            ks.append(cell.planned_k)
        else:
            nearest = _nearest(state.cells, bucket)
            ks.append(cohort.speculation.start if nearest is None else nearest.k)
    return tuple(ks)


def _tallies(window: CohortWindow | None) -> dict[int, dict[int, Tally]]:
    """Load bucket -> planned K -> tally, for the buckets in which the cohort made a step."""
    seen: dict[int, dict[int, Tally]] = {}
    for cell in window.cells if window is not None else ():
        if cell.steps > 0:
            by_k = seen.setdefault(cell.load_bucket, {})
            by_k[cell.k] = by_k.get(cell.k, Tally()) + tally(cell.counts)
    return seen


def _is_stale(cell: Cell, cells: tuple[Cell | None, ...]) -> bool:
    return max(c.decided_at for c in cells if c is not None) - cell.decided_at > STALE_S


def _nearest(cells: tuple[Cell | None, ...], bucket: int) -> Cell | None:
    """The cell nearest to `bucket` among those decided lately; of two as near, the one at lower load."""
    lately = [(abs(i - bucket), i, c) for i, c in enumerate(cells) if c is not None and not _is_stale(c, cells)]
    return min(lately, key=lambda each: each[:2])[2] if lately else None


def _follow(cohort: CohortPolicy, cells: tuple[Cell | None, ...], bucket: int, now: float) -> Cell:
    """State of a bucket seen for the first time (in a while): its neighbour's without the probe, else a fresh start."""
    nearest = _nearest(cells, bucket)
    if nearest is None:
        return Cell(cohort.speculation.start, changed_at=float("-inf"), waits_from=now, decided_at=now)
    return replace(nearest, probe=None)


def _decision(
    cohort: CohortPolicy, bucket: int, before: Cell, ruling: Ruling, now: float, version: int, revision: str
) -> Decision:
    wish, estimate = ruling.wish, ruling.estimate
    return Decision(
        cohort=cohort.name,
        load_bucket=bucket,
        old_k=before.planned_k,
        new_k=ruling.cell.planned_k,
        reason=ruling.reason,
        sentence=explain(cohort, bucket, before, ruling, now),
        samples=round(wish.examined if wish is not None and wish.position is not None else estimate.samples),
        accept_at=tuple(round(a, 4) for a in estimate.accept_at()),
        at=now,
        plan_version=version,
        policy_revision=revision,
    )
