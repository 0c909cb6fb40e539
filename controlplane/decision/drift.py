"""Notices that a cohort's acceptance has changed faster than its estimate fades: a two-sided CUSUM, one sum a tick.

z is the standardised distance of the tick's acceptance at the first position from the estimate before it. Steps of one
request are alike (a repetitive answer stays repetitive), so the variance is inflated, and one tick may add only so
much: a single odd request is not drift.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

from controlplane.decision.estimate import Estimate, Tally

KEPT = 0.05
"""Share of the evidence that survives an alarm: enough to lean on, too little to argue with."""

_SLACK, _ALARM, _LIMIT = 0.5, 6.0, 4.0
_DISPERSION = 4.0  # variance of a tick's acceptance beside that of independent steps
_BASELINE = 30.0  # examined drafts without which there is nothing to drift from


@dataclass(frozen=True, slots=True)
class Drift:
    """The two sums: evidence that acceptance rose, and that it fell. Dimensionless, >= 0."""

    up: float = 0.0
    down: float = 0.0

    def watch(self, before: Estimate, new: Tally) -> tuple[Drift, bool]:
        """The sums after one tick, and whether they raise the alarm (which sets them back to 0)."""
        n = new.examined[0]
        if not n or before.samples < _BASELINE:
            return self, False
        hazard = min(max(before.at(0).mean, 0.02), 0.98)
        variance = _DISPERSION * hazard * (1.0 - hazard) * (n + n * n / before.samples)
        z = max(-_LIMIT, min(_LIMIT, (new.accepted[0] - n * hazard) / sqrt(variance)))
        up, down = max(0.0, self.up + z - _SLACK), max(0.0, self.down - z - _SLACK)
        return (Drift(), True) if max(up, down) >= _ALARM else (Drift(up, down), False)
