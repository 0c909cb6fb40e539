"""What a budget will have spent at its reset, from what is spent and how fast it went lately.

The run rate is that of the recent horizon, seven days at most, which may reach back over a reset: money starts at 0
there, traffic does not. Nothing is ever forecast beyond the reset, since what is spent then counts for another period.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean, stdev

from controlplane.finops.periods import Period

HOUR_S = 3600
DAY_HOURS = 24
HORIZON_HOURS = 7 * DAY_HOURS
LEAST_KNOWN_S = 600.0
"""A rate of fewer seconds is none: a month is not forecast from a first minute."""
LEAST_BLOCKS = 3
"""Blocks of the past without which no interval is said."""
Z_95 = 1.96


@dataclass(frozen=True, slots=True)
class Forecast:
    """Of the period's end, nano-units. low, high: a 95 % interval, were what is left like the horizon; None where
    fewer than three whole hours of it are known. exceeds_at: unix seconds at which the limit will be reached at this
    rate, before the reset; None where it will not.
    """

    at_reset_nano: int
    low_nano: int | None
    high_nano: int | None
    per_hour_nano: int
    exceeds_at: float | None


def forecast(
    spent_nano: int, limit_nano: int, by_hour: Mapping[int, int], since: float, period: Period, now: float
) -> Forecast | None:
    """by_hour: nano-units by hour since the unix epoch, hours without spending left out. since: unix seconds from which
    on they are known. None where that is less than LEAST_KNOWN_S ago. Block sums are taken as independent: by day where
    three whole days are known (so that day and night are in each), else by hour.
    """
    begin = max(since, now - HORIZON_HOURS * HOUR_S)
    known_s, left_s = now - begin, max(period.end - now, 0.0)
    if known_s < LEAST_KNOWN_S:
        return None
    first = math.floor(begin / HOUR_S)
    rate = sum(nano for hour, nano in by_hour.items() if hour >= first) / known_s
    expected = spent_nano + rate * left_s
    low = high = None
    blocks, block_s = _blocks(by_hour, begin, now)
    if len(blocks) >= LEAST_BLOCKS:
        ahead = left_s / block_s
        # The noise of the blocks to come, and that of the mean they are expected to have.
        spread = Z_95 * stdev(blocks) * math.sqrt(ahead + ahead * ahead / len(blocks))
        middle = spent_nano + fmean(blocks) * ahead
        low, high = (round(max(spent_nano, middle + side * spread)) for side in (-1, 1))
        low, high = min(low, round(expected)), max(high, round(expected))
    exceeds_at = None
    if spent_nano < limit_nano and rate > 0:
        reached = now + (limit_nano - spent_nano) / rate
        exceeds_at = reached if reached < period.end else None
    return Forecast(round(expected), low, high, round(rate * HOUR_S), exceeds_at)


def _blocks(by_hour: Mapping[int, int], begin: float, now: float) -> tuple[list[float], float]:
    """Sums of whole hours, or of whole days counted back from the last whole hour, and a block's seconds."""
    last, first = math.floor(now / HOUR_S), math.ceil(begin / HOUR_S)
    size = DAY_HOURS if last - first >= LEAST_BLOCKS * DAY_HOURS else 1
    count = max(last - first, 0) // size
    sums = [float(sum(by_hour.get(last - i * size - j - 1, 0) for j in range(size))) for i in range(count)]
    return sums, float(size * HOUR_S)
