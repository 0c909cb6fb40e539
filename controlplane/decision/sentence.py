"""A decision in one sentence, for the log, the journal and the dashboard. Positions count from 1 here, as people do."""

from __future__ import annotations

import numpy as np

from controlplane.decision.cells import CellStates
from controlplane.decision.guard import Reason, needed_samples, probe_limit_s, probe_samples
from controlplane.decision.observation import Floats
from controlplane.decision.policy_table import GOODPUT
from controlplane.decision.state import DecisionState
from controlplane.decision.tuners import goodput
from controlplane.decision.tuners.base import Situation, Wish
from controlplane.telemetry import LOAD_BUCKETS

_MEASURE = {
    "throughput": "tokens/s",
    "latency": "tokens/s within the SLO",
    "cost": "tokens per unit of money",
    "energy": "tokens per joule",
}
_FALLBACK = {
    "no_price": "no price is known",
    "no_energy": "energy is not measured",
    "mixed": "ragged cohorts share one price, and others want something else",
}


def load_label(bucket: int) -> str:
    """Running sequences of a load bucket: `1`, `3-4`, ... and `129 or more` for the last."""
    least = LOAD_BUCKETS[bucket - 1] + 1 if bucket else 1
    if bucket == len(LOAD_BUCKETS) - 1:
        return f"{least} or more"
    return f"{least}" if least == LOAD_BUCKETS[bucket] else f"{least}-{LOAD_BUCKETS[bucket]}"


def explain(
    state: DecisionState,
    situation: Situation,
    wish: Wish,
    c: int,
    b: int,
    old_k: int,
    new_k: int,
    reason: Reason,
    now: float,
) -> str:
    """`code 4 -> 6 at load 1: expected +8.1 % tokens/s, 412 samples, drift none`.

    state: after the tick; situation, wish: what it was decided on; c, b: the cohort's and the load's index.
    """
    move = f"{old_k} -> {new_k}" if old_k != new_k else f"stays at {old_k}"
    why = _why(state, situation, wish, c, b, reason, now)
    return f"{state.table.names[c]} {move} at load {load_label(b)}: {why}"


def _why(state: DecisionState, situation: Situation, wish: Wish, c: int, b: int, reason: Reason, now: float) -> str:
    table, cells = state.table, state.cells
    guard = table.cohorts[c].guard
    samples = float(situation.estimate.samples[c])
    evidence = _evidence(situation, wish, c, b, state.drift_at[c], now)
    match reason:
        case Reason.FIXED:
            return "the policy fixes it"
        case Reason.NO_LATENCY:
            return "no step times are known yet"
        case Reason.NO_DATA:
            needed = needed_samples(table, cells, state.drift_at)[c, b]
            return f"{samples:.0f} of {needed:.0f} samples"
        case Reason.SILENT:
            return "no draft was examined"
        case Reason.HOLDING:
            towards = f", then towards {wish.k[c, b]}" if wish.k[c, b] != cells.k[c, b] else ""
            if now - cells.changed_at[c, b] >= guard.hold_s:
                again = cells.reverted_at[c, b] + cells.wait_s(table.probe_every_s)[c, b] - now
                return f"a raise was taken back {now - cells.reverted_at[c, b]:.0f} s ago, tried again in {again:.0f} s"
            return f"changed {now - cells.changed_at[c, b]:.1f} s ago, hold {guard.hold_s:g} s{towards}"
        case Reason.WITHIN_TOLERANCE:
            return f"{evidence}; within the tolerance of {100 * guard.tolerance:g} %"
        case Reason.EXPLORED:
            return f"{evidence}; what lies deeper was not measured yet"
        case Reason.REVERTED:
            return "the raise is taken back: fewer tokens/s were measured after it than before or promised there"
        case Reason.SLO_VETO | Reason.SLO_LOWERED:
            slo = 1000 * table.tpot_p95_s[c]
            over = f"TPOT p95 is over the SLO of {slo:g} ms"
            return over if reason is Reason.SLO_LOWERED else f"{over}; no rise towards {wish.k[c, b]}"
        case Reason.OFF:
            return f"{evidence}; next probe in {_next_probe_s(table.probe_every_s, cells, c, b, now):.0f} s"
        case Reason.PROBE_STARTED:
            return f"{evidence}; a probe of at most {probe_limit_s(table)[c]:g} s"
        case Reason.PROBING | Reason.PROBE_ENDED:
            seen = state.probes.evidence.examined[c, max(int(cells.k[c, b]), 0)]
            count = f"{seen:.0f} of {probe_samples(table)[c]:.0f} samples"
            return f"probing, {count}" if reason is Reason.PROBING else f"the probe ended with {count}"
        case Reason.PROBE_PASSED:
            return f"the probe passed: {evidence}"
        case Reason.PROBE_FAILED:
            return f"the probe failed: {evidence}; next in {cells.wait_s(table.probe_every_s)[c, b]:g} s"
        case _:
            return evidence


def _evidence(situation: Situation, wish: Wish, c: int, b: int, drift_at: float, now: float) -> str:
    if situation.table.tuner[c] == GOODPUT and situation.times is not None:
        return _expected(situation, wish, c, b, drift_at, now)
    position = int(wish.position[c, b])
    if position < 0:
        return "nothing was measured yet"
    examined = float(wish.examined[c, b])
    if examined < 1.0:
        return f"position {position + 1} was not examined yet"
    floor = 100 * situation.table.floor[c]
    accepted = 100 * wish.accepted[c, b]
    return f"position {position + 1} accepted {accepted:.0f} % (floor {floor:g} %), {examined:.0f} samples"


def _expected(situation: Situation, wish: Wish, c: int, b: int, drift_at: float, now: float) -> str:
    objective = situation.table.objective[c]
    failing = goodput.fallback(situation, c)
    measure = _MEASURE["throughput" if failing else objective]
    gain = float(wish.gain[c, b])
    expected = f"expected {100 * gain:+.1f} % {measure}" if np.isfinite(gain) else f"the SLO wants K {wish.k[c, b]}"
    drift = "none" if not np.isfinite(drift_at) or now - drift_at > 60.0 else f"{now - drift_at:.0f} s ago"
    said = f"{expected}, {situation.estimate.samples[c]:.0f} samples, drift {drift}"
    wanted = situation.table.cohorts[c].speculation.objective
    if objective != wanted:
        said = f"{said} (cost instead of {wanted}: a budget is exceeded)"
    return said if failing is None else f"{said} ({objective} is not pursued: {_FALLBACK[failing]})"


def _next_probe_s(probe_every_s: Floats, cells: CellStates, c: int, b: int, now: float) -> float:
    due = float(cells.waits_from[c, b] + cells.wait_s(probe_every_s)[c, b])
    return max(0.0, due - now)
