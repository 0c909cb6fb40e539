"""Notices that a cohort's acceptance has changed faster than its estimate fades: a two-sided CUSUM, one sum a tick.

z is the standardised distance of the tick's acceptance, over all examined positions, from the estimate before it. Steps
of one request are alike (a repetitive answer stays repetitive), so ticks scatter more than independent steps would; how
much more is learnt as the estimate's spread, and scales z. One tick may add only so much: a single odd request is not
drift.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from controlplane.decision.estimate import SPREAD_LEAST, SPREAD_MOST, Estimate
from controlplane.decision.observation import Evidence, Flags, Floats

KEPT = 0.02
"""Share of the evidence that survives an alarm: enough to lean on, too little to argue with."""

_SLACK, _ALARM, _LIMIT = 0.5, 6.0, 4.0
_LEAST_SPREAD = 2.0  # what an alarm grants before much was learnt
_LEARNING, _MOST_SQUARE = 0.02, 32.0  # weight of one tick's z squared in the spread, and its bound
_BASELINE = 30.0  # examined drafts without which there is nothing to drift from


@dataclass(frozen=True, slots=True, eq=False)
class Drift:
    """The two sums of each cohort [cohorts] f64: evidence that acceptance rose, and that it fell; both >= 0."""

    up: Floats
    down: Floats

    @classmethod
    def none(cls, cohorts: int) -> Drift:
        return cls(np.zeros(cohorts), np.zeros(cohorts))

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
        return Drift(np.where(alarm, 0.0, up), np.where(alarm, 0.0, down)), alarm, spread


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
