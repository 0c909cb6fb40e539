"""How a figure goes: against the stretch of the same length before, and in steps over the range. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from itertools import groupby, pairwise
from operator import attrgetter

from controlplane.store.queries import CohortPoint, TimeRange

HOUR_S, DAY_S = 3600.0, 86_400.0
STEPS = 8
"""Points of a sparkline of a range that is too short for hours."""
HOURS_MOST, DAYS_MOST = 96, 62
"""A range of more hours has a point a day, one of more days a point a calendar month."""


@dataclass(frozen=True, slots=True)
class Trend:
    """points: the figure step by step, None where it is not known. before: of the stretch before, None: not known."""

    points: tuple[float | None, ...] = ()
    before: float | None = None

    @property
    def known(self) -> list[float]:
        """The points to draw."""
        return [point for point in self.points if point is not None]


def period_before(shown: TimeRange, earliest: float) -> TimeRange | None:
    """The stretch of the same length that ends where `shown` begins; None where the record does not reach back so far.

    earliest: unix seconds, the start of what is on record.
    """
    start = shown.start - (shown.end - shown.start)
    return TimeRange(start, shown.start) if start >= earliest else None


def step_dimension(shown: TimeRange) -> str | None:
    """`hour` or `day` where the range has enough of them for a line; None: cut it with `steps`."""
    span = shown.end - shown.start
    if span > DAYS_MOST * DAY_S:
        return None
    if span > HOURS_MOST * HOUR_S:
        return "day"
    return "hour" if span >= STEPS * HOUR_S else None


def steps(shown: TimeRange, count: int = STEPS) -> list[TimeRange]:
    """The range in `count` parts of the same length; a long one in its calendar months (UTC, as the bill has them)."""
    if shown.end - shown.start > DAYS_MOST * DAY_S:
        return [TimeRange(start, end) for start, end in pairwise([shown.start, *_months(shown), shown.end])]
    size = (shown.end - shown.start) / count
    edges = [*(shown.start + i * size for i in range(count)), shown.end]
    return [TimeRange(start, end) for start, end in pairwise(edges)]


def _months(shown: TimeRange) -> list[float]:
    """The moments inside the range at which a month begins."""
    first = datetime.fromtimestamp(shown.start, UTC)
    year, month = first.year, first.month
    begins: list[float] = []
    while True:
        year, month = (year, month + 1) if month < 12 else (year + 1, 1)
        at = datetime(year, month, 1, tzinfo=UTC).timestamp()
        if at >= shown.end:
            return begins
        begins += [at] if at > shown.start else []


def change_text(now: Decimal | float | None, before: float | None) -> str | None:
    """`+12.0 %` against the stretch before; None where either is not known, or there is nothing to divide by."""
    if now is None or not before:
        return None
    return f"{100 * (float(now) - before) / before:+.1f} %"


def floats(values: Iterable[Decimal | float | None]) -> tuple[float | None, ...]:
    """Exact or not, as a chart takes them; what is not known stays None."""
    return tuple(None if value is None else float(value) for value in values)


def by_bucket(points: Iterable[CohortPoint]) -> list[Sequence[CohortPoint]]:
    """The points of each moment together, by time."""
    ordered = sorted(points, key=attrgetter("at"))
    return [list(group) for _, group in groupby(ordered, key=attrgetter("at"))]
