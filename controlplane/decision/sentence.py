"""A decision in one sentence, for the log, the journal and the dashboard. Positions count from 1 here, as people do."""

from __future__ import annotations

from controlplane.decision.guard import Cell, Reason, Ruling, probe_limit_s, probe_samples
from controlplane.decision.tuners.base import Wish
from controlplane.policy import CohortPolicy
from controlplane.telemetry import LOAD_BUCKETS


def load_label(bucket: int) -> str:
    """Running sequences of a load bucket: `1`, `3-4`, ... and `129 or more` for the last."""
    least = LOAD_BUCKETS[bucket - 1] + 1 if bucket else 1
    if bucket == len(LOAD_BUCKETS) - 1:
        return f"{least} or more"
    return f"{least}" if least == LOAD_BUCKETS[bucket] else f"{least}-{LOAD_BUCKETS[bucket]}"


def explain(cohort: CohortPolicy, bucket: int, before: Cell, ruling: Ruling, now: float) -> str:
    """`code 2 -> 4 at load 1: position 2 accepted 71 % (floor 50 %), 212 samples`."""
    old_k, new_k = before.planned_k, ruling.cell.planned_k
    move = f"{old_k} -> {new_k}" if old_k != new_k else f"stays at {old_k}"
    return f"{cohort.name} {move} at load {load_label(bucket)}: {_why(cohort, before, ruling, now)}"


def _why(cohort: CohortPolicy, before: Cell, ruling: Ruling, now: float) -> str:
    guard, cell, wish = cohort.guard, ruling.cell, ruling.wish
    evidence = _evidence(wish, cohort) if wish is not None else ""
    match ruling.reason:
        case Reason.FIXED:
            return "the policy fixes it"
        case Reason.NO_DATA:
            return f"{ruling.estimate.samples:.0f} of {guard.min_samples} samples"
        case Reason.SILENT:
            return "no draft was examined"
        case Reason.HOLDING:
            held = f"changed {now - cell.changed_at:.1f} s ago, hold {guard.hold_s:g} s"
            return f"{held}, then towards {wish.k}" if wish is not None else held
        case Reason.WITHIN_TOLERANCE:
            return f"{evidence}; within the tolerance of {100 * guard.tolerance:g} %"
        case Reason.EXPLORED:
            return f"{evidence}; what lies deeper was not measured yet"
        case Reason.OFF:
            return f"{evidence}; next probe in {max(0.0, cell.waits_from + cell.wait_s(cohort) - now):.0f} s"
        case Reason.PROBE_STARTED:
            return f"{evidence}; a probe of at most {probe_limit_s(cohort):g} s"
        case Reason.PROBING | Reason.PROBE_ENDED:
            seen = cell.probe.evidence.examined[cell.k] if cell.probe is not None else 0
            samples = f"{seen} of {probe_samples(cohort):.0f} samples"
            return f"probing, {samples}" if ruling.reason is Reason.PROBING else f"the probe ended with {samples}"
        case Reason.PROBE_PASSED:
            return f"the probe passed: {_probed(cohort, before, ruling)}"
        case Reason.PROBE_FAILED:
            return f"the probe failed: {_probed(cohort, before, ruling)}; next in {cell.wait_s(cohort):g} s"
        case _:
            return evidence


def _probed(cohort: CohortPolicy, before: Cell, ruling: Ruling) -> str:
    """What the probe saw of the positions beyond the resting rung, taken together."""
    if before.probe is None:
        return "nothing"
    first, end = before.k + 1, before.probe.k
    seen = ruling.estimate.over(before.k, end)
    place = f"position {end}" if first == end else f"positions {first}-{end}"
    floor = 100 * cohort.speculation.acceptance_floor
    return f"{place} accepted {100 * seen.mean:.0f} % (floor {floor:g} %), {seen.examined:.0f} samples"


def _evidence(wish: Wish, cohort: CohortPolicy) -> str:
    if wish.position is None or wish.accepted is None:
        return "nothing was measured yet"
    if wish.examined < 1.0:
        return f"position {wish.position + 1} was not examined yet"
    floor = 100 * cohort.speculation.acceptance_floor
    return (
        f"position {wish.position + 1} accepted {100 * wish.accepted:.0f} % (floor {floor:g} %), "
        f"{wish.examined:.0f} samples"
    )
