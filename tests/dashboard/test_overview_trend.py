"""How the Overview cuts a range: hours, days, calendar months, or parts of a short one."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise

import pytest

from controlplane.store.queries import TimeRange
from dashboard.overview_trend import DAY_S, HOUR_S, step_dimension, steps

NOW = datetime(2026, 11, 30, 2, 34, 56, tzinfo=UTC).timestamp()


def back(seconds: float) -> TimeRange:
    return TimeRange(NOW - seconds, NOW)


@pytest.mark.parametrize(
    ("seconds", "step"),
    [(HOUR_S, None), (DAY_S, "hour"), (7 * DAY_S, "day"), (62 * DAY_S, "day"), (63 * DAY_S, None), (365 * DAY_S, None)],
)
def test_a_range_goes_by_what_it_has_enough_of(seconds, step):
    assert step_dimension(back(seconds)) == step


def test_a_year_goes_by_calendar_months_with_parts_of_one_at_either_end():
    found = steps(back(365 * DAY_S))
    begins = [datetime.fromtimestamp(part.start, UTC) for part in found]
    assert len(found) == 13
    assert {(at.day, at.hour, at.minute) for at in begins[1:]} == {(1, 0, 0)}
    assert [at.month for at in begins] == [11, 12, *range(1, 12)]


@pytest.mark.parametrize("seconds", [900, HOUR_S, 63 * DAY_S, 365 * DAY_S, 5 * 365 * DAY_S])
def test_the_parts_are_the_range(seconds):
    shown = back(seconds)
    found = steps(shown)
    assert TimeRange(found[0].start, found[-1].end) == shown
    assert all(before.end == after.start for before, after in pairwise(found))
