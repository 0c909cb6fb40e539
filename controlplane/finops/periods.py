"""Days, weeks and months of a budget, from one local midnight to another: right through daylight saving.

A day may have 23 or 25 hours, or be missing; what counts is when the calendar of the time zone turns.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from zoneinfo import ZoneInfo

from controlplane.policy import Budget


@dataclass(frozen=True, slots=True)
class Period:
    """One period of a budget. start, end: unix seconds, end exclusive, which is the reset. label: 2026-11-29 for a day,
    2026-W48 for a week, 2026-11 for a month.
    """

    label: str
    start: float
    end: float
    timezone: str = "UTC"

    def holds(self, when: float) -> bool:
        return self.start <= when < self.end

    @property
    def resets_at(self) -> str:
        """The reset for a person, on the clock of the budget's time zone: 2026-12-01T00:00+01:00."""
        return datetime.fromtimestamp(self.end, ZoneInfo(self.timezone)).isoformat(timespec="minutes")


def period_at(budget: Budget, when: float) -> Period:
    """The budget's period that `when` (unix seconds) is in."""
    zone = ZoneInfo(budget.timezone)
    day = datetime.fromtimestamp(when, zone).date()
    if budget.period == "day":
        first, after, label = day, day + timedelta(days=1), day.isoformat()
    elif budget.period == "week":
        first = day - timedelta(days=day.weekday())
        after = first + timedelta(days=7)
        year, week, _ = first.isocalendar()
        label = f"{year}-W{week:02d}"
    else:
        first = day.replace(day=1)
        after = (first + timedelta(days=31)).replace(day=1)
        label = f"{first:%Y-%m}"
    return Period(label, _midnight(first, zone), _midnight(after, zone), budget.timezone)


def _midnight(day: date, zone: ZoneInfo) -> float:
    """When `day` begins. A midnight that the clocks skip is the moment they do; of two, it is the first (fold=0)."""
    return datetime.combine(day, time(), zone).timestamp()
