"""Time in charts, as clocks of the reader's zone tell it.

A browser draws an axis in its own zone and knows no other. So points stay where they are, at their moments, and what is
written is worked out here: ticks at round times of the zone, their labels, and the time in a tooltip. Where a clock is
put back, both passes of the hour have their place and their ticks; where it is put forward, the hour is not there.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta, tzinfo

import altair as alt
import pandas as pd

TICKS_MOST = 7
_STEPS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200)
_STEPS_DAYS = (1, 2, 4, 7, 14)
_STEPS_MONTHS = (1, 2, 3, 6, 12, 24, 60)
DAY_S, MONTH_S = 86_400, 30.4 * 86_400


def times(unix_s: pd.Series) -> pd.Series:
    """Unix seconds as aware timestamps."""
    return pd.to_datetime(unix_s.astype("float64"), unit="s", utc=True).dt.as_unit("ms")


def told(frame: pd.DataFrame, zone: tzinfo) -> pd.DataFrame:
    """With a column `time`: `at` as text in the zone, for time_tip."""
    return frame.assign(time=frame["at"].dt.tz_convert(zone).dt.strftime("%Y-%m-%d %H:%M:%S %Z"))


def time_tip() -> alt.Tooltip:
    """The line of a tooltip that tells the column `time` (of `told`)."""
    return alt.Tooltip("time:N", title="time")


def time_x(frame: pd.DataFrame, zone: tzinfo) -> alt.X:
    """The axis of a frame's column `at`, in the zone, which is its title."""
    if not len(frame):
        return alt.X("at:T", title=str(zone))
    return axis_of("at:T", frame["at"].min().timestamp(), frame["at"].max().timestamp(), zone)


def axis_of(shorthand: str, start: float, end: float, zone: tzinfo) -> alt.X:
    """A time axis from `start` to `end` (unix seconds) of that field."""
    found = ticks(start, end, zone)
    moments = [round(1000 * at) for at in found]
    labels = [datetime.fromtimestamp(at, zone).strftime(time_format(end - start)) for at in found]
    text = f"{labels}[indexof({moments}, toNumber(datum.value))]"
    # As parts of a date: for bare numbers Streamlit's charts draw neither tick nor label.
    values = [_utc(at) for at in found]
    axis = alt.Axis(values=values, labelExpr=text, labelOverlap=True) if values else alt.Axis(labels=False)
    return alt.X(shorthand, title=str(zone), axis=axis)


def _utc(unix_s: float) -> alt.DateTime:
    at = datetime.fromtimestamp(unix_s, UTC)
    return alt.DateTime(
        year=at.year, month=at.month, date=at.day, hours=at.hour, minutes=at.minute, seconds=at.second, utc=True
    )


def time_format(span_s: float) -> str:
    """How an axis of that many seconds tells the time, without saying more than its ticks can differ in."""
    if span_s < 600:
        return "%H:%M:%S"
    return "%H:%M" if span_s < 2 * DAY_S else "%d %b" if span_s < 365 * DAY_S else "%b %Y"


def ticks(start: float, end: float, zone: tzinfo, most: int = TICKS_MOST) -> list[float]:
    """Round times of the zone from `start` to `end`, as unix seconds, ascending: about `most` of them at the most."""
    span = end - start
    step = next((s for s in _STEPS_S if span <= s * most), None)
    # What the labels do not tell apart has one tick: whole days from two days on, months from a year on.
    if step is not None and span < 2 * DAY_S:
        walls = _of_day(start, end, zone, step)
    elif span < 365 * DAY_S:
        walls = _of_days(start, end, zone, next((n for n in _STEPS_DAYS if span <= n * DAY_S * most), 28))
    else:
        walls = _of_months(start, end, zone, next((n for n in _STEPS_MONTHS if span <= n * MONTH_S * most), 120))
    return sorted({at for wall in walls for at in _moments(wall, zone) if start <= at <= end})


def _moments(wall: datetime, zone: tzinfo) -> list[float]:
    """The moments at which clocks of the zone show `wall`: one; two where they are put back; none where forward."""
    both = [wall.replace(tzinfo=zone, fold=fold).timestamp() for fold in (0, 1)]
    return [at for at in both if datetime.fromtimestamp(at, zone).replace(tzinfo=None) == wall]


def _of_day(start: float, end: float, zone: tzinfo, step_s: int) -> Iterator[datetime]:
    # Where clocks are changed within the range, its walls go beyond those of its ends, by less than three hours.
    first, last = (datetime.fromtimestamp(at, zone) for at in (start, end))
    beyond = timedelta(hours=0 if first.utcoffset() == last.utcoffset() else 3)
    wall, last = first.replace(tzinfo=None) - beyond, last.replace(tzinfo=None) + beyond
    midnight = datetime.combine(wall.date(), time())
    wall = midnight + timedelta(seconds=(wall - midnight).total_seconds() // step_s * step_s)
    while wall <= last:
        yield wall
        wall += timedelta(seconds=step_s)


def _of_days(start: float, end: float, zone: tzinfo, step: int) -> Iterator[datetime]:
    day = datetime.fromtimestamp(start, zone).date().toordinal() // step * step
    while day <= datetime.fromtimestamp(end, zone).date().toordinal():
        yield datetime.combine(date.fromordinal(max(day, 1)), time())
        day += step


def _of_months(start: float, end: float, zone: tzinfo, step: int) -> Iterator[datetime]:
    first, last = (datetime.fromtimestamp(at, zone) for at in (start, end))
    month = (12 * first.year + first.month - 1) // step * step
    while month <= 12 * last.year + last.month - 1:
        yield datetime(month // 12, month % 12 + 1, 1)
        month += step
