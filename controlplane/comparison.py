"""Is one part of the system better than another? Robust intervals for a shift, and for a difference of shares.

Sources: Hodges and Lehmann 1963 (estimates of location from rank tests) for the median of Walsh averages and of
pairwise differences; Lehmann 1975, sections 2.5 and 4.3, for their intervals. One outlier moves neither by much.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement
from math import sqrt
from statistics import NormalDist, median


@dataclass(frozen=True, slots=True)
class Interval:
    """A value with the interval that holds it."""

    low: float
    mid: float
    high: float


@dataclass(frozen=True, slots=True)
class Share:
    """How many of `total` were hits."""

    hits: int
    total: int

    @property
    def value(self) -> float:
        """The share; half a hit and half a miss are added, so that none of few is not taken for certain."""
        return (self.hits + 0.5) / (self.total + 1)

    @property
    def variance(self) -> float:
        return self.value * (1 - self.value) / (self.total + 1)

    def __add__(self, other: Share) -> Share:
        return Share(self.hits + other.hits, self.total + other.total)


def spent(alpha: float, look: int) -> float:
    """The part of `alpha` that the 1-based `look` j may spend, alpha / (j (j + 1)): all looks together spend alpha."""
    return alpha / (look * (look + 1))


def location(values: Sequence[float], alpha: float) -> Interval:
    """Where the values lie (Walsh averages), two-sided interval of 1 - alpha. At least 6 values, else ValueError."""
    n = len(values)
    if n < 6:
        raise ValueError(f"an interval needs 6 values, not {n}")
    averages = sorted((a + b) / 2 for a, b in combinations_with_replacement(values, 2))
    spread = sqrt(n * (n + 1) * (2 * n + 1) / 24)
    return _interval(averages, n * (n + 1) / 4, spread, alpha)


def shift(after: Sequence[float], before: Sequence[float], alpha: float) -> Interval:
    """By how much `after` lies over `before` (pairwise differences). At least 6 values in each, else ValueError."""
    m, n = len(after), len(before)
    if min(m, n) < 6:
        raise ValueError(f"an interval needs 6 values on both sides, not {m} and {n}")
    differences = sorted(a - b for a in after for b in before)
    return _interval(differences, m * n / 2, sqrt(m * n * (m + n + 1) / 12), alpha)


def excess(ours: Sequence[Share], theirs: Sequence[Share]) -> tuple[float, float]:
    """By how much our shares are over theirs, stratum by stratum, and the standard error of that.

    Strata are weighted by the harmonic mean of their sizes (Cochran 1954); one that is empty on a side counts nothing.
    (0, inf) where no stratum has both sides.
    """
    total = weighted = variance = 0.0
    for our, their in zip(ours, theirs, strict=True):
        if our.total and their.total:
            weight = our.total * their.total / (our.total + their.total)
            total += weight
            weighted += weight * (our.value - their.value)
            variance += weight**2 * (our.variance + their.variance)
    return (weighted / total, sqrt(variance) / total) if total else (0.0, float("inf"))


def _interval(ordered: list[float], middle: float, spread: float, alpha: float) -> Interval:
    cut = int(middle - NormalDist().inv_cdf(1 - alpha / 2) * spread)
    cut = min(max(cut, 0), (len(ordered) - 1) // 2)
    return Interval(ordered[cut], median(ordered), ordered[-1 - cut])
