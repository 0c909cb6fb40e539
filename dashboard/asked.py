"""What the URL asks for: the filters, and the range in seconds that they mean."""

from __future__ import annotations

from dataclasses import dataclass

from controlplane.store.cost_rows import IdleRule
from controlplane.store.time_range import TimeRange, iso, parse_moment
from dashboard.data import Trouble

RANGES: dict[str, float | None] = {
    "15m": 900,
    "1h": 3600,
    "24h": 86_400,
    "7d": 604_800,
    "30d": 2_592_000,
    "1y": 31_536_000,
    "all": None,
}
"""Seconds before now, by the name that the buttons and the URL have for it."""

DEFAULT_RANGE = "1h"
CUSTOM = "custom"
"""The range that `from` and `to` are of."""


@dataclass(frozen=True, slots=True)
class Filters:
    """What the URL asks for. span: one of RANGES or CUSTOM; since, until: as typed, of CUSTOM. None: no filter, the
    sheet's default basis.
    """

    span: str = DEFAULT_RANGE
    since: str = ""
    until: str = ""
    model: str | None = None
    cohort: str | None = None
    zone: str | None = None
    basis: str | None = None
    idle: IdleRule = "none"


def range_of(filters: Filters, bounds: TimeRange, now: float) -> TimeRange | Trouble:
    """The range in unix seconds, or what is wrong with how it was written."""
    if filters.span != CUSTOM:
        span = RANGES.get(filters.span, RANGES[DEFAULT_RANGE])
        if span is None:
            return TimeRange(bounds.start, max(bounds.end, now))
        return TimeRange(now - span, now)
    example = "Write it as 2026-11-29T15:00 (UTC) or as a duration before now, such as 90m or 7d."
    moments = []
    for name, text, otherwise in (("From", filters.since, bounds.start), ("To", filters.until, now)):
        try:
            moments.append(parse_moment(text, now) if text.strip() else otherwise)
        except ValueError as error:
            return Trouble(f"{name}: {error}.", example, waiting=True)
    if moments[0] >= moments[1]:
        return Trouble(f"From, {iso(moments[0])}, is not before to, {iso(moments[1])}.", example, waiting=True)
    return TimeRange(moments[0], moments[1])
