"""Charts of the Cost page. Names are data of a chart, never markup; every chart has a tooltip with its figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, tzinfo

import altair as alt
import pandas as pd

from controlplane.store.queries import CostReport, CostRow
from dashboard import format as fmt
from dashboard.charts import HEIGHT, MAX_SERIES
from dashboard.cost_budgets import Outlook
from dashboard.cost_quadrant import Placed, named
from dashboard.cost_tables import PARTS, basis_name, parts_frame
from dashboard.time_axis import axis_of, time_tip, times, told

BARS_MOST = 20
AROUND = 110
"""Pixels of a chart's height that its legend, axis and title take."""
_NAMES = alt.Axis(labelLimit=160, labelOverlap=False)
_NARROW = alt.Legend(title=None, orient="top", columns=2)
"""Of four long names, which a phone has no room for side by side."""
NANO = 1e9


def parts_chart(rows: Sequence[CostRow], currency: str | None, most: int = BARS_MOST) -> alt.Chart:
    """Cost by row as bars, cut into prefill, kept decode, rejected drafts and idle; the dearest rows."""
    frame = parts_frame(rows, most)
    frame["text"] = [fmt.cost(nano, currency) for nano in frame["nano"]]
    chart: alt.Chart = (
        alt.Chart(frame)
        .mark_bar()
        .encode(
            x=alt.X("sum(cost):Q", title=f"cost, {currency or 'no prices'}"),
            y=alt.Y("key:N", title=None, sort="-x", axis=_NAMES),
            color=_parts_colour(),
            order=alt.Order("order:Q"),
            tooltip=[alt.Tooltip("key:N", title="of"), "part:N", alt.Tooltip("text:N", title="cost")],
        )
        .properties(height=30 * max(frame["key"].nunique(), 1) + AROUND)
    )
    return chart


def time_chart(rows: Sequence[CostRow], currency: str | None, by: str, zone: tzinfo) -> alt.Chart:
    """Cost by hour, or by day of UTC, as columns with the same parts. Idle of an hour is its own, and inside where
    spread. The axis of hours is in the zone; days of the bill are of UTC, wherever the reader is.
    """
    frame = parts_frame(rows)
    frame["at"] = pd.to_datetime(frame["key"], utc=True)
    frame["text"] = [fmt.cost(nano, currency) for nano in frame["nano"]]
    first, last = (frame["at"].min().timestamp(), frame["at"].max().timestamp()) if len(frame) else (0.0, 0.0)
    field = "utcyearmonthdatehours(at):T" if by == "hour" else "utcyearmonthdate(at):T"
    chart: alt.Chart = (
        alt.Chart(frame)
        .mark_bar()
        .encode(
            x=axis_of(field, first, last, zone if by == "hour" else UTC),
            y=alt.Y("sum(cost):Q", title=f"cost, {currency or 'no prices'}"),
            color=_parts_colour(),
            order=alt.Order("order:Q"),
            tooltip=[alt.Tooltip("key:N", title=by), "part:N", alt.Tooltip("text:N", title="cost")],
        )
        .properties(height=HEIGHT + 30)
    )
    return chart


def bases_chart(reports: Mapping[str, CostReport], most: int = MAX_SERIES) -> alt.Chart:
    """Cost per million emitted tokens under every basis, side by side; the rows with the most tokens."""
    first = next(iter(reports.values()))
    keys = [row.key for row in sorted(first.rows, key=lambda r: (-r.emitted_tokens, r.key))[:most]]
    lines = [
        (row.key, basis_name(basis), float(row.cost_per_million_tokens), fmt.cost_per_million(row, report.currency))
        for basis, report in reports.items()
        for row in report.rows
        if row.key in keys and row.cost_per_million_tokens is not None
    ]
    frame = pd.DataFrame(lines, columns=["key", "basis", "unit_cost", "text"])
    order = [basis_name(basis) for basis in reports]
    chart: alt.Chart = (
        alt.Chart(frame)
        .mark_bar(cornerRadiusEnd=3)
        .encode(
            x=alt.X("unit_cost:Q", title=f"{first.currency or 'no prices'} per million tokens"),
            y=alt.Y("key:N", title=None, axis=_NAMES),
            yOffset=alt.YOffset("basis:N", sort=order),
            color=alt.Color("basis:N", scale=alt.Scale(domain=order), legend=alt.Legend(title=None, orient="top")),
            tooltip=[
                alt.Tooltip("key:N", title="of"),
                "basis:N",
                alt.Tooltip("text:N", title="per million tokens"),
            ],
        )
        .properties(height=(14 * len(order) + 12) * max(len(keys), 1) + AROUND)
    )
    return chart


def quadrant_chart(found: Sequence[Placed], what: str) -> alt.LayerChart | alt.FacetChart:
    """Share of the tokens across, share of the cost up. On the diagonal a token costs as everybody's; the dashed lines
    are at what each had if all were alike.
    """
    shown = named(found)
    lines = [
        (
            each.key,
            each.token_share,
            each.cost_share,
            each.quadrant,
            "no tokens" if each.price_level is None else f"{each.price_level:.2f} times the average",
            each.key if each.key in shown else "",
        )
        for each in found
    ]
    frame = pd.DataFrame(lines, columns=["key", "tokens", "cost", "quadrant", "level", "label"])
    most = max([*frame["tokens"], *frame["cost"], 0.01]) * 1.12
    scale = alt.Scale(domain=[0, most], nice=False)
    x = alt.X("tokens:Q", title="share of emitted tokens", scale=scale, axis=alt.Axis(format=".0%", tickCount=5))
    y = alt.Y("cost:Q", title="share of cost", scale=scale, axis=alt.Axis(format=".0%", tickCount=5))
    kinds = ["heavy", "underused", "efficient", "small"]
    color = alt.Color("quadrant:N", scale=alt.Scale(domain=kinds), legend=_NARROW)
    points = (
        alt.Chart(frame)
        .mark_point(size=110, filled=True, opacity=0.9)
        .encode(
            x=x,
            y=y,
            color=color,
            shape=alt.Shape("quadrant:N", scale=alt.Scale(domain=kinds)),
            tooltip=[
                alt.Tooltip("key:N", title=what),
                alt.Tooltip("tokens:Q", title="of tokens", format=".1%"),
                alt.Tooltip("cost:Q", title="of cost", format=".1%"),
                alt.Tooltip("level:N", title="a token costs"),
                "quadrant:N",
            ],
        )
    )
    texts = (
        alt.Chart(frame).mark_text(align="left", dx=9, dy=-6, limit=120).encode(x=x, y=y, text="label:N", color=color)
    )
    ends = pd.DataFrame({"tokens": [0.0, most], "cost": [0.0, most]})
    diagonal = alt.Chart(ends).mark_line(strokeWidth=1, color="gray").encode(x=x, y=y)
    even = found[0].even if found else 0.0
    across = alt.Chart(pd.DataFrame({"cost": [even]})).mark_rule(strokeDash=[4, 4], color="gray").encode(y=y)
    up = alt.Chart(pd.DataFrame({"tokens": [even]})).mark_rule(strokeDash=[4, 4], color="gray").encode(x=x)
    return alt.layer(diagonal, across, up, points, texts).properties(height=HEIGHT + 90)


def forecast_chart(outlook: Outlook, zone: tzinfo) -> alt.LayerChart | alt.FacetChart:
    """What is spent so far, what is expected until the reset with its interval, and the limit as a line."""
    status = outlook.status
    spent = _money_frame([*outlook.so_far, (status.at, status.spent_nano)], "spent")
    y = alt.Y("usd:Q", title="USD in the period", scale=alt.Scale(domainMin=0))
    x = axis_of("at:T", status.period.start, status.period.end, zone)
    tip = [
        time_tip(),
        alt.Tooltip("what:N", title=" "),
        alt.Tooltip("usd:Q", title="USD", format=".4~g"),
    ]
    kinds = ["spent", "expected", "limit"]
    color = alt.Color("what:N", scale=alt.Scale(domain=kinds), legend=alt.Legend(title=None, orient="top"))
    dash = alt.StrokeDash("what:N", scale=alt.Scale(domain=kinds, range=[[1, 0], [6, 4], [2, 2]]), legend=None)
    limit = _money_frame([(status.period.start, status.limit_nano), (status.period.end, status.limit_nano)], "limit")
    frames = [spent, limit]
    layers: list[alt.Chart] = []
    ahead = status.forecast
    if ahead is not None:
        frames.append(
            _money_frame([(status.at, status.spent_nano), (status.period.end, ahead.at_reset_nano)], "expected")
        )
        if ahead.low_nano is not None and ahead.high_nano is not None:
            band = pd.DataFrame(
                {
                    "at": times(pd.Series([status.at, status.period.end])),
                    "low": [status.spent_nano / NANO, ahead.low_nano / NANO],
                    "high": [status.spent_nano / NANO, ahead.high_nano / NANO],
                }
            )
            area = alt.Chart(band).mark_area(opacity=0.2, color="gray")
            layers.append(area.encode(x=x, y=alt.Y("low:Q", title="USD in the period"), y2="high:Q"))
    whole = told(pd.concat(frames, ignore_index=True), zone)
    layers.append(alt.Chart(whole).mark_line(strokeWidth=2).encode(x=x, y=y, color=color, strokeDash=dash, tooltip=tip))
    return alt.layer(*layers).properties(height=HEIGHT + 30)


def _money_frame(points: Sequence[tuple[float, int]], what: str) -> pd.DataFrame:
    at, nano = zip(*points, strict=True)
    return pd.DataFrame({"at": times(pd.Series(at)), "usd": [each / NANO for each in nano], "what": what})


def _parts_colour() -> alt.Color:
    return alt.Color("part:N", scale=alt.Scale(domain=list(PARTS)), legend=_NARROW)
