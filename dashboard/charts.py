"""Rows in, Altair charts out. Text from the database is only ever data here, never markup or a field name."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import tzinfo
from typing import Any

import altair as alt
import pandas as pd

from controlplane.store.queries import CohortPoint, CostReport, DecisionRow
from controlplane.telemetry import LOAD_BUCKETS
from dashboard import format as fmt
from dashboard.time_axis import time_tip, time_x, times, told

HEIGHT = 250
MAX_SERIES = 8
"""Colours of the palette: more cohorts than this cannot be told apart in one chart."""

BUCKETS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400)
MAX_BUCKETS = 120


def bucket_seconds(span_s: float) -> int:
    """The finest round bucket that cuts `span_s` seconds into at most MAX_BUCKETS."""
    for bucket in BUCKETS_S:
        if span_s <= bucket * MAX_BUCKETS:
            return bucket
    return BUCKETS_S[-1] * -(-int(span_s) // (BUCKETS_S[-1] * MAX_BUCKETS))


def load_label(load_bucket: int) -> str:
    """Which load a decision was for, in running sequences: "1", "3 to 4", "over 128"."""
    upper = LOAD_BUCKETS[load_bucket]
    if load_bucket == len(LOAD_BUCKETS) - 1:
        return f"over {LOAD_BUCKETS[load_bucket - 1]}"
    lower = LOAD_BUCKETS[load_bucket - 1] + 1 if load_bucket else 1
    return str(upper) if lower == upper else f"{lower} to {upper}"


def series_frame(points: Sequence[CohortPoint], bucket_s: float) -> pd.DataFrame:
    """Points as a frame sorted by cohort and time, with an empty row after each silence so that a line breaks there."""
    rows: list[dict[str, Any]] = []
    last: CohortPoint | None = None
    for point in sorted(points, key=lambda p: (p.cohort, p.at)):
        if last and last.cohort == point.cohort and point.at - last.at > 1.5 * bucket_s:
            rows.append({"at": last.at + bucket_s, "cohort": last.cohort})
        rows.append(
            {
                "at": point.at,
                "cohort": point.cohort,
                "tokens_per_s": point.tokens_per_s,
                "acceptance_length": point.acceptance_length,
                "mean_k": point.mean_k,
                "planned_k": point.planned_k,
            }
        )
        last = point
    measures = ["tokens_per_s", "acceptance_length", "mean_k", "planned_k"]
    frame = pd.DataFrame(rows, columns=["at", "cohort", *measures])
    frame[measures] = frame[measures].astype("float64")
    frame["at"] = times(frame["at"])
    return frame


def decision_frame(decisions: Sequence[DecisionRow], cohorts: Sequence[str]) -> pd.DataFrame:
    """Decisions of `cohorts` that changed K, for markers."""
    shown = set(cohorts)
    rows = [
        {
            "at": d.at,
            "cohort": d.cohort,
            "k": d.new_k,
            "change": f"{d.old_k} → {d.new_k}",
            "load": load_label(d.load_bucket),
            "reason": str(d.reason),
            "sentence": d.sentence,
        }
        for d in decisions
        if d.cohort in shown and d.new_k != d.old_k
    ]
    frame = pd.DataFrame(rows, columns=["at", "cohort", "k", "change", "load", "reason", "sentence"])
    frame["at"] = times(frame["at"])
    return frame


def k_chart(
    points: Sequence[CohortPoint],
    decisions: Sequence[DecisionRow],
    bucket_s: float,
    cohorts: Sequence[str],
    shown: Sequence[str],
    zone: tzinfo,
) -> alt.LayerChart | alt.FacetChart:
    """K as planned, by cohort, as steps, and a diamond with its sentence where a decision changed K.

    cohorts: all that have a colour, in a fixed order; shown: those drawn.
    """
    frame = told(series_frame([p for p in points if p.cohort in shown], bucket_s), zone)
    marks = told(decision_frame(decisions, shown), zone)
    x, color = time_x(frame, zone), _color(cohorts)
    lines = (
        alt.Chart(frame)
        .mark_line(interpolate="step-after", strokeWidth=2, point={"size": 14, "filled": True})
        .encode(
            x=x,
            y=alt.Y("planned_k:Q", title="K", scale=alt.Scale(zero=True), axis=alt.Axis(tickMinStep=1)),
            color=color,
            tooltip=[
                time_tip(),
                "cohort:N",
                alt.Tooltip("planned_k:Q", title="planned K", format=".2f"),
                alt.Tooltip("mean_k:Q", title="drafted per step", format=".2f"),
            ],
        )
    )
    markers = (
        alt.Chart(marks)
        .mark_point(shape="diamond", size=110, filled=True, opacity=1, stroke="white", strokeWidth=1)
        .encode(
            x=x,
            y=alt.Y("k:Q", title="K"),
            color=color,
            tooltip=[
                time_tip(),
                "cohort:N",
                alt.Tooltip("change:N", title="K"),
                alt.Tooltip("load:N", title="running sequences"),
                "reason:N",
                alt.Tooltip("sentence:N", title="why"),
            ],
        )
    )
    return alt.layer(lines, markers).properties(height=_height(cohorts))


def series_chart(
    points: Sequence[CohortPoint],
    measure: str,
    title: str,
    bucket_s: float,
    cohorts: Sequence[str],
    shown: Sequence[str],
    zone: tzinfo,
    *,
    floor: float = 0,
) -> alt.Chart:
    """One measure ("tokens_per_s" or "acceptance_length") over time, a line a cohort, from `floor` up."""
    frame = told(series_frame([p for p in points if p.cohort in shown], bucket_s), zone)
    chart: alt.Chart = (
        alt.Chart(frame)
        .mark_line(strokeWidth=2, point={"size": 14, "filled": True})
        .encode(
            x=time_x(frame, zone),
            y=alt.Y(f"{measure}:Q", title=title, scale=alt.Scale(domainMin=floor)),
            color=_color(cohorts),
            tooltip=[time_tip(), "cohort:N", alt.Tooltip(f"{measure}:Q", title=title, format=".2f")],
        )
        .properties(height=_height(cohorts))
    )
    return chart


def unit_cost_chart(report: CostReport, cohorts: Sequence[str], shown: Sequence[str]) -> alt.Chart:
    """Cost per million emitted tokens by cohort, as bars with their figure. Unpriced cohorts have no bar."""
    rows = [
        {
            "cohort": row.key,
            "unit_cost": float(row.cost_per_million_tokens),
            "text": fmt.cost_per_million(row, report.currency),
        }
        for row in report.rows
        if row.key in shown and row.cost_per_million_tokens is not None
    ]
    frame = pd.DataFrame(rows, columns=["cohort", "unit_cost", "text"])
    chart: alt.Chart = (
        alt.Chart(frame)
        .mark_bar(cornerRadiusEnd=3)
        .encode(
            x=alt.X(
                "unit_cost:Q",
                title=f"{report.currency} per million tokens",
                scale=alt.Scale(domainMin=0, domainMax=1.06 * float(frame["unit_cost"].max() or 1) if rows else 1),
            ),
            y=alt.Y("cohort:N", title=None, sort="-x", axis=alt.Axis(labelLimit=140)),
            color=_color(cohorts, legend=False),
            tooltip=["cohort:N", alt.Tooltip("text:N", title="per million tokens")],
        )
        .properties(height=_height(cohorts))
    )
    return chart


def _legend_columns(cohorts: Sequence[str]) -> int:
    """As many names side by side as a phone has room for: about 300 px, at 8 px a character and 30 px a symbol."""
    return min(max(300 // (30 + 8 * max((len(c) for c in cohorts), default=1)), 2), 4)


def _height(cohorts: Sequence[str]) -> int:
    """Of a chart with a legend: each further row of names comes on top, so that the lines keep their room."""
    return HEIGHT + 24 * (-(-max(len(cohorts), 1) // _legend_columns(cohorts)) - 1)


def _color(cohorts: Sequence[str], *, legend: bool = True) -> alt.Color:
    return alt.Color(
        "cohort:N",
        scale=alt.Scale(domain=list(cohorts)),
        legend=alt.Legend(title=None, orient="top", columns=_legend_columns(cohorts), labelLimit=110)
        if legend
        else None,
    )
