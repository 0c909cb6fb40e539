"""What is expected at the reset: from what is spent and the recent rate, never beyond the reset."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.finops.forecast import HOUR_S, forecast
from controlplane.finops.periods import period_at
from controlplane.policy import Budget

DAY = 86400.0
MONDAY = 1_789_948_800.0  # 2026-09-21
WEEK = period_at(Budget(Decimal(1), "week", (0.8,), "warn"), MONDAY)


def steady(nano_per_hour: int, start: float, end: float) -> dict[int, int]:
    return dict.fromkeys(range(int(start // HOUR_S), int(end // HOUR_S)), nano_per_hour)


def test_a_steady_rate_goes_on_to_the_reset() -> None:
    now = MONDAY + 2 * DAY
    found = forecast(4800, 10**6, steady(100, MONDAY, now), MONDAY, WEEK, now)
    assert found is not None
    assert (found.at_reset_nano, found.per_hour_nano, found.low_nano, found.high_nano) == (16800, 100, 16800, 16800)


def test_a_projected_limit_never_names_a_date_after_the_reset() -> None:
    """The daily or weekly reset was ignored: at this rate the limit would be reached on the ninth day of a week."""
    now = MONDAY + 2 * DAY
    found = forecast(4800, 21600, steady(100, MONDAY, now), MONDAY, WEEK, now)
    assert found is not None
    assert found.exceeds_at is None
    sooner = forecast(4800, 12000, steady(100, MONDAY, now), MONDAY, WEEK, now)
    assert sooner is not None
    assert sooner.exceeds_at == pytest.approx(MONDAY + 5 * DAY)


def test_what_was_spent_before_the_reset_says_the_rate_but_is_not_spent_again() -> None:
    now = MONDAY + 3600.0
    found = forecast(100, 10**6, steady(100, MONDAY - 3 * DAY, now), MONDAY - 3 * DAY, WEEK, now)
    assert found is not None
    assert found.at_reset_nano == 100 * 7 * 24


def test_what_is_exceeded_already_has_no_date_ahead() -> None:
    found = forecast(500, 500, steady(100, MONDAY, MONDAY + 5 * HOUR_S), MONDAY, WEEK, MONDAY + 5 * HOUR_S)
    assert found is not None
    assert found.exceeds_at is None


def test_nothing_is_said_of_the_first_minutes_and_no_interval_of_the_first_hours() -> None:
    assert forecast(1, 10, {}, MONDAY, WEEK, MONDAY + 590) is None
    found = forecast(10, 100, {int(MONDAY // HOUR_S): 10}, MONDAY, WEEK, MONDAY + HOUR_S)
    assert found is not None
    assert (found.low_nano, found.high_nano) == (None, None)


def test_days_like_one_another_are_not_taken_for_noise_between_night_and_noon() -> None:
    """Whole days are compared once three are known: traffic by day and none by night is as steady as can be."""
    now = MONDAY + 4 * DAY
    by_hour = {h: 1000 if 8 <= h % 24 < 20 else 0 for h in range(int(MONDAY // HOUR_S), int(now // HOUR_S))}
    found = forecast(48000, 10**9, by_hour, MONDAY, WEEK, now)
    assert found is not None
    assert (found.low_nano, found.at_reset_nano, found.high_nano) == (84000, 84000, 84000)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=167), st.integers(1, 10**9))
def test_the_interval_holds_the_forecast_and_never_unspends(spending: list[int], limit: int) -> None:
    now = MONDAY + len(spending) * HOUR_S
    by_hour = {int(MONDAY // HOUR_S) + i: nano for i, nano in enumerate(spending)}
    found = forecast(sum(spending), limit, by_hour, MONDAY, WEEK, now)
    assert found is not None
    assert found.at_reset_nano >= sum(spending)
    if found.low_nano is not None and found.high_nano is not None:
        assert sum(spending) <= found.low_nano <= found.at_reset_nano <= found.high_nano
    assert found.exceeds_at is None or now <= found.exceeds_at < WEEK.end
