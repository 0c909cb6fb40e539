"""When a budget's period begins and ends: on the calendar of its time zone, also where clocks are changed."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.finops.periods import period_at
from controlplane.policy import Budget

HOUR = 3600.0


def budget(period: Any, timezone: str = "UTC") -> Budget:
    return Budget(Decimal(1), period, (0.8,), "warn", timezone)


def at(text: str, timezone: str = "UTC") -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(timezone)).timestamp()


@pytest.mark.parametrize(
    ("period", "label", "start", "end"),
    [
        ("day", "2026-11-29", "2026-11-29", "2026-11-30"),
        ("week", "2026-W48", "2026-11-23", "2026-11-30"),  # the 29th is a Sunday
        ("month", "2026-11", "2026-11-01", "2026-12-01"),
    ],
)
def test_a_period_holds_its_moment_and_says_its_name(period: str, label: str, start: str, end: str) -> None:
    found = period_at(budget(period), at("2026-11-29T21:30"))
    assert (found.label, found.start, found.end) == (label, at(start), at(end))


@pytest.mark.parametrize(("when", "label"), [("2026-01-01T00:30", "2026-W01"), ("2027-01-01T12:00", "2026-W53")])
def test_a_week_at_new_year_is_that_of_its_thursday(when: str, label: str) -> None:
    assert period_at(budget("week"), at(when)).label == label


def test_a_month_in_berlin_does_not_begin_with_that_of_utc() -> None:
    zone = "Europe/Berlin"
    late = period_at(budget("month", zone), at("2026-11-30T23:30"))
    assert (late.label, late.start) == ("2026-12", at("2026-12-01", zone))
    assert late.resets_at == "2027-01-01T00:00+01:00"


@pytest.mark.parametrize(("day", "hours"), [("2026-03-29", 23), ("2026-10-25", 25), ("2026-07-01", 24)])
def test_a_day_on_which_clocks_change_is_shorter_or_longer(day: str, hours: int) -> None:
    zone = "Europe/Berlin"
    found = period_at(budget("day", zone), at(f"{day}T12:00", zone))
    assert (found.label, (found.end - found.start) / HOUR) == (day, hours)


def test_a_day_whose_midnight_is_skipped_begins_when_clocks_go_on() -> None:
    zone = "America/Santiago"  # 2026-09-06 00:00 does not exist there
    found = period_at(budget("day", zone), at("2026-09-06T12:00", zone))
    assert datetime.fromtimestamp(found.start, ZoneInfo(zone)).hour == 1
    assert found.start == period_at(budget("day", zone), found.start - 1).end


def test_a_day_whose_midnight_comes_twice_begins_with_the_first() -> None:
    zone = "America/Havana"  # 2026-11-01: 01:00 becomes 00:00
    found = period_at(budget("day", zone), at("2026-11-01T12:00", zone))
    assert (found.end - found.start) / HOUR == 25
    assert found.start == period_at(budget("day", zone), found.start - 1).end


def test_an_island_that_skipped_a_day_goes_from_one_to_the_next_but_one() -> None:
    zone = "Pacific/Apia"  # there was no 2011-12-30
    before = period_at(budget("day", zone), at("2011-12-29T12:00", zone))
    after = period_at(budget("day", zone), before.end)
    assert (before.label, after.label) == ("2011-12-29", "2011-12-31")


ZONES = sorted(zone for zone in available_timezones() if "/" in zone)[::23]


@settings(max_examples=80, deadline=None)
@given(st.sampled_from(["day", "week", "month"]), st.sampled_from(ZONES), st.floats(1e9, 2e9))
def test_periods_follow_one_another_without_gap_or_overlap(period: str, zone: str, when: float) -> None:
    of = budget(period, zone)
    found = period_at(of, when)
    assert found.start <= when < found.end
    assert period_at(of, found.start) == found
    assert period_at(of, found.end).start == found.end
    assert period_at(of, found.start - 1e-3).end == found.start
