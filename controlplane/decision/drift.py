"""Notices that a cohort's acceptance has changed faster than its estimate fades: a two-sided CUSUM, one sum a tick.

z is the standardised distance of the tick's acceptance at the first position from the estimate before it. Steps of one
request are alike (a repetitive answer stays repetitive), so ticks scatter more than independent steps would; how much
more is learnt as the estimate's spread, and scales z. One tick may add only so much: a single odd request is not drift.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

from controlplane.decision.estimate import SPREAD_LEAST, SPREAD_MOST, Estimate, Tally

KEPT = 0.02
"""Share of the evidence that survives an alarm: enough to lean on, too little to argue with."""

_SLACK, _ALARM, _LIMIT = 0.5, 6.0, 4.0
_LEAST_SPREAD = 4.0  # what an alarm grants before much was learnt
_LEARNING, _MOST_SQUARE = 0.02, 32.0  # weight of one tick's z squared in the spread, and its bound
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
        z = _distance(before, new) / sqrt(max(before.spread, _LEAST_SPREAD))
        z = max(-_LIMIT, min(_LIMIT, z))
        up, down = max(0.0, self.up + z - _SLACK), max(0.0, self.down - z - _SLACK)
        return (Drift(), True) if max(up, down) >= _ALARM else (Drift(up, down), False)


def spread(before: Estimate, new: Tally) -> float:
    """The spread with one tick more learnt: the mean square of z over the last fifty or so."""
    if not new.examined[0] or before.samples < _BASELINE:
        return before.spread
    square = min(_distance(before, new) ** 2, _MOST_SQUARE)
    return min(max(before.spread + _LEARNING * (square - before.spread), SPREAD_LEAST), SPREAD_MOST)


def _distance(before: Estimate, new: Tally) -> float:
    """Z as if all steps were independent."""
    n = new.examined[0]
    hazard = min(max(before.at(0).mean, 0.02), 0.98)
    variance = hazard * (1.0 - hazard) * (n + n * n / before.samples)
    return (new.accepted[0] - n * hazard) / sqrt(variance)
