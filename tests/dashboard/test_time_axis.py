"""The time in charts is that of the reader's zone, also where its clocks are moved."""

from __future__ import annotations

from datetime import UTC, datetime, tzinfo
from itertools import pairwise
from zoneinfo import ZoneInfo

import pandas as pd
import pytest

from dashboard.time_axis import TICKS_MOST, ticks, time_tip, time_x, times, told

PARIS = ZoneInfo("Europe/Paris")
KOLKATA = ZoneInfo("Asia/Kolkata")
HOUR_S, DAY_S = 3600, 86_400
BACK = datetime(2026, 10, 25, 1, tzinfo=UTC).timestamp()
"""Clocks in Paris go from 03:00 back to 02:00."""
FORWARD = datetime(2026, 3, 29, 1, tzinfo=UTC).timestamp()
"""Clocks in Paris go from 02:00 to 03:00."""


def clocks(found: list[float], zone: tzinfo, form: str = "%H:%M") -> list[str]:
    return [datetime.fromtimestamp(at, zone).strftime(form) for at in found]


def frame(*unix_s: float) -> pd.DataFrame:
    return pd.DataFrame({"at": times(pd.Series(list(unix_s)))})


def test_an_hour_that_comes_twice_has_both_of_its_ticks():
    found = ticks(BACK - 2 * HOUR_S, BACK + 2 * HOUR_S, PARIS)
    assert clocks(found, PARIS) == ["01:00", "02:00", "02:00", "03:00", "04:00"]
    assert [later - at for at, later in pairwise(found)] == [HOUR_S] * 4


def test_an_hour_that_is_left_out_has_no_tick():
    found = ticks(FORWARD - 2 * HOUR_S, FORWARD + 2 * HOUR_S, PARIS)
    assert clocks(found, PARIS) == ["00:00", "01:00", "03:00", "04:00", "05:00"]


def test_days_begin_at_the_zones_own_midnight_across_a_change():
    found = ticks(BACK - 2 * DAY_S, BACK + 2 * DAY_S, PARIS)
    assert clocks(found, PARIS) == ["00:00"] * 4
    assert DAY_S + HOUR_S in [later - at for at, later in pairwise(found)]


def test_ticks_are_round_in_a_zone_of_half_an_hour():
    at = datetime(2026, 5, 1, 10, 7, tzinfo=UTC).timestamp()
    assert clocks(ticks(at, at + 3 * HOUR_S, KOLKATA), KOLKATA) == [
        *("16:00", "16:30", "17:00", "17:30", "18:00", "18:30")
    ]


@pytest.mark.parametrize(
    "span_s", [1, 59, 600, HOUR_S, 5 * HOUR_S, DAY_S, 2 * DAY_S, 7 * DAY_S, 30 * DAY_S, 400 * DAY_S, 4000 * DAY_S]
)
def test_a_range_of_any_length_has_some_ticks_and_not_too_many(span_s):
    found = ticks(BACK, BACK + span_s, PARIS)
    assert 1 <= len(found) <= TICKS_MOST + 1
    assert all(BACK <= at <= BACK + span_s for at in found)


def test_the_axis_is_labelled_in_the_zone_and_named_after_it():
    axis = time_x(frame(BACK - 2 * HOUR_S, BACK + 2 * HOUR_S), PARIS).to_dict()
    assert axis["title"] == "Europe/Paris"
    assert [(value["date"], value["hours"], value["utc"]) for value in axis["axis"]["values"]] == [
        (24, 23, True), (25, 0, True), (25, 1, True), (25, 2, True), (25, 3, True)
    ]  # fmt: skip
    assert axis["axis"]["labelExpr"].startswith("['01:00', '02:00', '02:00', '03:00', '04:00'][indexof([")


def test_an_axis_without_points_has_no_ticks():
    assert time_x(frame(), KOLKATA).to_dict() == {"field": "at", "title": "Asia/Kolkata", "type": "temporal"}


def test_a_tooltip_tells_both_passes_of_an_hour_apart():
    text = told(frame(BACK - HOUR_S, BACK), PARIS)["time"].tolist()
    assert text == ["2026-10-25 02:00:00 CEST", "2026-10-25 02:00:00 CET"]
    assert time_tip().to_dict()["field"] == "time"


def test_points_stay_at_their_moments():
    shown = told(frame(BACK), PARIS)
    assert shown["at"].iloc[0].timestamp() == BACK
