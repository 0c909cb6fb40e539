"""Notices that a cohort's acceptance has changed faster than its estimate fades: a two-sided CUSUM, one sum a tick.

z is the standardised distance of the tick's acceptance, over all examined positions, from the estimate before it. Steps
of one request are alike (a repetitive answer stays repetitive), so ticks scatter more than independent steps would; how
much more is learnt as the estimate's spread, and scales z. One tick may add only so much: a single odd request is not
drift.

The sum that raises the alarm left 0 about when the acceptance began to change (Page 1954), so what was seen since then
is of the new acceptance, and the newest of it is what the estimate begins anew with.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from controlplane.decision.estimate import SPREAD_LEAST, SPREAD_MOST, Estimate
from controlplane.decision.observation import Evidence, Flags, Floats

KEPT = 0.005
"""Share of the evidence that survives an alarm, two drafts of some four hundred: enough to lean on, too little to argue
with; and of all evidence where a drafter is swapped. At 0.02 a right K was named 31 steps after a jump, at 0.005 after
17 (medians of 60 jumps).
"""

SINCE_HALF_LIFE = 25.0
"""Examined drafts after which what was seen since a change counts half: it may go on, and the newest says most."""

_SLACK, _ALARM, _LIMIT = 0.5, 6.0, 4.0
_LEAST_SPREAD = 2.0  # what an alarm grants before much was learnt
_LEARNING, _MOST_SQUARE = 0.02, 32.0  # weight of one tick's z squared in the spread, and its bound
_BASELINE = 10.0  # examined drafts without which there is nothing to drift from; few, as an alarm may be a false one


@dataclass(frozen=True, slots=True, eq=False)
class Drift:
    """The two sums of each cohort [cohorts] f64: evidence that acceptance rose, and that it fell; both >= 0.

    since_up, since_down: [cohorts, MAX_K], what was seen since the sum left 0, fading, the last tick included. Where
    that raised the alarm, both are of the sum that did so.
    """

    up: Floats
    down: Floats
    since_up: Evidence
    since_down: Evidence

    @classmethod
    def none(cls, cohorts: int) -> Drift:
        nothing = Evidence.nothing(cohorts)
        return cls(np.zeros(cohorts), np.zeros(cohorts), nothing, nothing)

    def follow(self, estimate: Estimate, new: Evidence) -> tuple[Drift, Flags, Estimate]:
        """The sums after a tick, which cohorts raise the alarm, and `estimate` with what was seen.

        After an alarm hardly anything is left of what was believed, beside what was seen since the change.
        """
        drift, alarm, spread = self.watch(estimate, new)
        believed = replace(estimate, spread=spread)
        if not alarm.any():
            return drift, alarm, believed.absorb(new)
        return drift, alarm, believed.keep(np.where(alarm, KEPT, 1.0)).absorb(drift.since_up.where(alarm, new))

    def watch(self, before: Estimate, new: Evidence) -> tuple[Drift, Flags, Floats]:
        """The sums after a tick, which cohorts raise the alarm (their sums are 0 again), and the spread learnt."""
        raw, is_told = _distance(before, new)
        z = np.clip(raw / np.sqrt(np.maximum(before.spread, _LEAST_SPREAD)), -_LIMIT, _LIMIT)
        up = np.where(is_told, np.maximum(0.0, self.up + z - _SLACK), self.up)
        down = np.where(is_told, np.maximum(0.0, self.down - z - _SLACK), self.down)
        alarm = is_told & (np.maximum(up, down) >= _ALARM)
        square = np.minimum(raw**2, _MOST_SQUARE)
        learnt = np.clip(before.spread + _LEARNING * (square - before.spread), SPREAD_LEAST, SPREAD_MOST)
        spread = np.where(is_told, learnt, before.spread)
        fade = 0.5 ** (new.examined[:, 0] / SINCE_HALF_LIFE)
        since_up = self.since_up.scaled(np.where(self.up > 0, fade, 0.0)) + new
        since_down = self.since_down.scaled(np.where(self.down > 0, fade, 0.0)) + new
        if alarm.any():
            fell = alarm & (down > up)
            since_up = since_down.where(fell, since_up)
            since_down = since_up.where(alarm, since_down)
        return Drift(np.where(alarm, 0.0, up), np.where(alarm, 0.0, down), since_up, since_down), alarm, spread


def _distance(before: Estimate, new: Evidence) -> tuple[Floats, Flags]:
    """Z as if all steps were independent, and where there is anything to compare."""
    hazard = np.clip(before.hazards().mean, 0.02, 0.98)
    worth = before.evidence.examined**2 / np.maximum(before.squares, 1e-12)
    known = before.evidence.examined >= _BASELINE
    n = np.where(known, new.examined, 0.0)
    surplus = np.where(known, new.accepted - n * hazard, 0.0).sum(axis=1)
    variance = (hazard * (1.0 - hazard) * (n + n * n / np.maximum(worth, 1.0))).sum(axis=1)
    is_told = n[:, 0] > 0
    return np.where(is_told, surplus / np.sqrt(np.maximum(variance, 1e-12)), 0.0), is_told
