"""A month's saving, re-weighted by the loads of that month: an estimate beside the measurement, and labelled so.

What was saved at one load says nothing about another: speculation pays at a small batch and may cost at a large one.
So each hour of the month takes the saving of the pairs that were measured at its load, and where loads that matter were
never measured there is no projection at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import exp, floor, log2
from statistics import NormalDist

import numpy as np

from controlplane.finops.savings import ALPHA, Pair

UNCOVERED_MOST = 0.05
"""Share of the busy time at loads that were not measured, over which nothing is projected."""
PAIRS_A_LOAD = 3
"""Pairs at a load, before they stand for it."""

LABEL = (
    "a projection, not a measurement: each hour's busy time re-weighted by what the pairs at its load saved; of "
    "capacity, which is cash only where the fleet shrinks by it; the interval is of one look and leaves out the future"
)


@dataclass(frozen=True, slots=True)
class LoadHour:
    """An hour of the fleet. load: requests by worker-second. busy_nano: what its busy time cost; None: unpriced."""

    load: float
    busy_ns: int
    busy_nano: int | None


@dataclass(frozen=True, slots=True)
class Projection:
    """What a month saved, or why nothing can be said of it.

    share: of the machine time that would have been used without speculation; low, high: 95 %. nano: money, nano_low and
    nano_high its 95 %, None where an hour is unpriced. refused: why there is nothing. covered: share of busy time at
    loads that were measured.
    """

    covered: float
    share: float | None = None
    low: float | None = None
    high: float | None = None
    nano: int | None = None
    nano_low: int | None = None
    nano_high: int | None = None
    refused: str | None = None
    label: str = LABEL


@dataclass(frozen=True, slots=True)
class _Bin:
    mean: float
    error: float


def projection(pairs: Sequence[Pair], hours: Iterable[LoadHour]) -> Projection:
    """What speculation saved in these hours, most of which were served with it."""
    month = [hour for hour in hours if hour.busy_ns > 0]
    whole = sum(hour.busy_ns for hour in month)
    if not whole:
        return Projection(0.0, refused="no busy time is on record for the month")
    bins = _bins(pairs)
    unseen = sorted({load_bin(hour.load) for hour in month} - bins.keys())
    covered = sum(hour.busy_ns for hour in month if load_bin(hour.load) in bins) / whole
    if 1 - covered > UNCOVERED_MOST:
        names = ", ".join(map(bin_name, unseen))
        why = (
            f"{1 - covered:.0%} of the busy time was at loads of which {PAIRS_A_LOAD} pairs are not there yet: {names}"
        )
        return Projection(covered, refused=why)
    seen = [(hour, bins[load_bin(hour.load)]) for hour in month if load_bin(hour.load) in bins]
    spent = float(sum(hour.busy_ns for hour, _ in seen))
    # Without speculation the hour would have taken busy / exp(d).
    without = sum(hour.busy_ns * exp(-at.mean) for hour, at in seen)
    by_bin: dict[_Bin, float] = {}
    for hour, at in seen:
        by_bin[at] = by_bin.get(at, 0.0) + hour.busy_ns * exp(-at.mean)
    error = sum((weight * at.error) ** 2 for at, weight in by_bin.items()) ** 0.5
    z = NormalDist().inv_cdf(1 - ALPHA / 2)
    half, share = z * error * spent / without**2, 1 - spent / without
    return Projection(covered, share, share - half, share + half, *_money(seen, z))


def _money(seen: Sequence[tuple[LoadHour, _Bin]], z: float) -> tuple[int, int, int] | tuple[None, None, None]:
    """Nano-units saved, and their interval by the same delta method; None where an hour is unpriced."""
    saved, by_bin = 0.0, dict[_Bin, float]()
    for hour, at in seen:
        if hour.busy_nano is None:
            return None, None, None
        without = hour.busy_nano * exp(-at.mean)
        saved += without - hour.busy_nano
        by_bin[at] = by_bin.get(at, 0.0) + without
    half = z * sum((weight * at.error) ** 2 for at, weight in by_bin.items()) ** 0.5
    return round(saved), round(saved - half), round(saved + half)


def load_bin(load: float) -> int:
    """Loads are told apart by doublings."""
    return floor(log2(max(load, 1e-6)))


def bin_name(index: int) -> str:
    return f"{2.0**index:.3g} to {2.0 ** (index + 1):.3g} requests a worker-second"


def _bins(pairs: Sequence[Pair]) -> dict[int, _Bin]:
    by_bin: dict[int, list[float]] = {}
    for pair in pairs:
        d, load = pair.log_ratio("capacity"), _load(pair)
        if d is not None and load is not None:
            by_bin.setdefault(load_bin(load), []).append(d)
    enough = {index: np.array(d) for index, d in by_bin.items() if len(d) >= PAIRS_A_LOAD}
    free = sum(len(d) - 1 for d in enough.values())
    pooled = (sum(float(((d - d.mean()) ** 2).sum()) for d in enough.values()) / free) ** 0.5 if free else 0.0
    return {index: _Bin(float(d.mean()), pooled / len(d) ** 0.5) for index, d in enough.items()}


def _load(pair: Pair) -> float | None:
    seconds = (pair.treatment.seconds_ns + pair.control.seconds_ns) / 1e9
    return (pair.treatment.arrivals + pair.control.arrivals) / seconds if seconds else None
