"""Power, joules by token beside the batch, and energy by cohort, as charts. Names are only ever data."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import tzinfo

import altair as alt
import pandas as pd

from controlplane.store.cost_rows import CostReport
from controlplane.store.energy import BatchPoint, PowerPoint
from dashboard.charts import HEIGHT, MAX_SERIES
from dashboard.energy_figures import source_text
from dashboard.time_axis import time_tip, time_x, times, told

SMALL = 190
DRAFTED = ("no drafts", "up to 1", "1 to 2", "2 to 4", "over 4")
"""Draft tokens by step of a sequence, in classes that a colour and a shape stand for."""
WORK, WITH_IDLE = "work alone", "with idle"
KEPT, WASTED, IDLE = "work that was kept", "drafts not kept", "idle"


def largest(points: Sequence[PowerPoint], limit: int = MAX_SERIES) -> list[str]:
    """The `limit` machines that drew most, by name; one that was not measured comes last."""
    drew: dict[str, int] = {}
    for point in points:
        drew[point.machine] = drew.get(point.machine, 0) + (point.energy_uj or 0)
    return sorted(sorted(drew, key=lambda name: (-drew[name], name))[:limit])


def power_frame(points: Sequence[PowerPoint], machines: Sequence[str], bucket_s: float) -> pd.DataFrame:
    """A row for each point of those machines, by machine and time; `end` of the bucket, `watts` NaN: not measured.

    A line breaks where a machine was silent, and where it was not measured: an empty row stands there.
    """
    rows: list[dict[str, object]] = []
    last: PowerPoint | None = None
    chosen = [p for p in points if p.machine in set(machines)]
    for point in sorted(chosen, key=lambda p: (p.machine, p.source, p.at)):
        line = f"{point.machine} ({source_text(point.source)})"
        is_next = last is not None and (last.machine, last.source) == (point.machine, point.source)
        if last is not None and is_next and point.at - last.at > 1.5 * bucket_s:
            rows.append({"at": last.at + bucket_s, "end": last.at + bucket_s, "line": line, "ran": False})
        rows.append(
            {
                "at": point.at,
                "end": point.at + bucket_s,
                "line": line,
                "machine": point.machine,
                "source": source_text(point.source),
                "watts": point.watts,
                "ran": True,
            }
        )
        last = point
    frame = pd.DataFrame(rows, columns=["at", "end", "line", "machine", "source", "watts", "ran"])
    frame["watts"] = frame["watts"].astype("float64")
    for name in ("at", "end"):
        frame[name] = times(frame[name])
    return frame


def power_chart(
    points: Sequence[PowerPoint], bucket_s: float, machines: Sequence[str], zone: tzinfo
) -> alt.LayerChart | alt.FacetChart:
    """Mean power over time, a line for each machine and source; grey where one ran and was not measured."""
    frame = told(power_frame(points, machines, bucket_s), zone)
    lines = sorted(frame["line"].unique())
    missing = frame[frame["ran"].astype(bool) & frame["watts"].isna()]
    tip = [time_tip(), alt.Tooltip("machine:N"), alt.Tooltip("source:N", title="measured by")]
    grey = (
        alt.Chart(missing.assign(said="not measured"))
        .mark_rect(color="gray", opacity=0.25)
        .encode(x=time_x(frame, zone), x2="end:T", tooltip=[*tip, alt.Tooltip("said:N", title="power")])
    )
    drawn = (
        alt.Chart(frame)
        .mark_line(strokeWidth=2, point={"size": 14, "filled": True})
        .encode(
            x=time_x(frame, zone),
            y=alt.Y("watts:Q", title="watts", scale=alt.Scale(domainMin=0)),
            color=alt.Color("line:N", scale=alt.Scale(domain=lines), legend=_legend(1, symbol="stroke")),
            strokeDash=alt.StrokeDash("line:N", scale=alt.Scale(domain=lines), legend=None),
            tooltip=[*tip, alt.Tooltip("watts:Q", title="watts", format=",.1f")],
        )
    )
    return alt.layer(grey, drawn).properties(height=HEIGHT + 22 * len(lines))


def batch_frame(points: Sequence[BatchPoint], bucket_s: float) -> pd.DataFrame:
    """A row a bucket, with an empty one after each silence; unknown is NaN."""
    rows: list[dict[str, object]] = []
    for i, point in enumerate(points):
        if i and point.at - points[i - 1].at > 1.5 * bucket_s:
            rows.append({"at": points[i - 1].at + bucket_s})
        rows.append(
            {
                "at": point.at,
                WORK: point.active_j_per_token,
                WITH_IDLE: point.whole_j_per_token,
                "running": point.running,
                "tokens per step": point.tokens_per_step,
                "drafted per step": point.drafted_per_step,
                "drafted": drafted_class(point.drafted_per_step),
            }
        )
    measures = [WORK, WITH_IDLE, "running", "tokens per step", "drafted per step"]
    frame = pd.DataFrame(rows, columns=["at", *measures, "drafted"])
    frame[measures] = frame[measures].astype("float64")
    frame["at"] = times(frame["at"])
    return frame


def drafted_class(per_step: float | None) -> str | None:
    """Which of DRAFTED it is; None where no step was."""
    if per_step is None:
        return None
    if per_step == 0:
        return DRAFTED[0]
    return next((name for name, most in zip(DRAFTED[1:], (1, 2, 4), strict=False) if per_step <= most), DRAFTED[-1])


def joule_chart(frame: pd.DataFrame, zone: tzinfo) -> alt.Chart:
    """Joules by emitted token over time: of the work alone, and with the machines' idle energy."""
    return _lines(frame, [WORK, WITH_IDLE], "joules per token", zone, domain_min=0)


def running_chart(frame: pd.DataFrame, zone: tzinfo) -> alt.Chart:
    """How full the batch was: running sequences on a machine, mean over its busy time."""
    return _lines(frame, ["running"], "running sequences", zone, domain_min=0)


def step_chart(frame: pd.DataFrame, zone: tzinfo) -> alt.Chart:
    """What speculation did meanwhile: tokens emitted and drafted by step of a sequence."""
    return _lines(frame, ["tokens per step", "drafted per step"], "tokens", zone, domain_min=0)


def batching_chart(frame: pd.DataFrame, zone: tzinfo) -> alt.Chart:
    """Joules by token against batch occupancy, coloured and shaped by how much was drafted.

    Down along one colour is what batching saves; from one colour to another at the same occupancy is speculation.
    """
    known = told(frame.dropna(subset=[WORK, "running"]), zone)
    drafted = alt.Scale(domain=list(DRAFTED))
    chart: alt.Chart = (
        alt.Chart(known)
        .mark_point(size=55, filled=True, opacity=0.75)
        .encode(
            x=alt.X("running:Q", title="running sequences, mean", scale=alt.Scale(domainMin=0)),
            y=alt.Y(f"{WORK}:Q", title="joules per token, work alone", scale=alt.Scale(domainMin=0)),
            color=alt.Color("drafted:N", scale=drafted, legend=_legend(3, "drafted per step")),
            shape=alt.Shape("drafted:N", scale=drafted, legend=_legend(3, "drafted per step")),
            tooltip=[
                time_tip(),
                alt.Tooltip("running:Q", format=".2f"),
                alt.Tooltip(f"{WORK}:Q", title="joules per token", format=".4g"),
                alt.Tooltip("drafted per step:Q", format=".2f"),
                alt.Tooltip("tokens per step:Q", format=".2f"),
            ],
        )
        .properties(height=HEIGHT + 60)
    )
    return chart


def cohort_frame(report: CostReport, limit: int = 30) -> pd.DataFrame:
    """Joules of the `limit` cohorts that drew most, and of idle, in parts; what was not measured is left out."""
    measured = sorted((row for row in report.rows if row.energy_uj is not None), key=lambda r: -(r.energy_uj or 0))
    rows: list[tuple[str, str, float]] = []
    for row in measured[:limit]:
        wasted = row.wasted_uj or 0
        idle = (row.idle_uj or 0) if row.has_idle else 0
        parts = ((KEPT, (row.energy_uj or 0) - wasted - idle), (WASTED, wasted), (IDLE, idle))
        rows += [(row.key, part, uj / 1e6) for part, uj in parts if uj]
    if report.idle.energy_uj:
        rows.append(("idle", IDLE, report.idle.energy_uj / 1e6))
    return pd.DataFrame(rows, columns=["cohort", "part", "joules"])


def cohort_chart(frame: pd.DataFrame) -> alt.Chart:
    """Energy by cohort as bars in parts."""
    names = frame["cohort"].nunique()
    chart: alt.Chart = (
        alt.Chart(frame)
        .mark_bar()
        .encode(
            x=alt.X("joules:Q", title="joules", stack="zero"),
            y=alt.Y("cohort:N", title=None, sort="-x", axis=alt.Axis(labelLimit=140)),
            color=alt.Color("part:N", scale=alt.Scale(domain=[KEPT, WASTED, IDLE]), legend=_legend(3)),
            order=alt.Order("part:N", sort="descending"),
            tooltip=["cohort:N", alt.Tooltip("part:N"), alt.Tooltip("joules:Q", format=",.4g")],
        )
        .properties(height=130 + 26 * names)
    )
    return chart


def _lines(frame: pd.DataFrame, measures: Sequence[str], title: str, zone: tzinfo, *, domain_min: float) -> alt.Chart:
    """Columns of a frame as lines; one alone needs no legend."""
    long = told(frame, zone).melt(
        id_vars=["at", "time"], value_vars=list(measures), var_name="what", value_name="value"
    )
    scale = alt.Scale(domain=list(measures))
    legend = _legend(2, symbol="stroke") if len(measures) > 1 else None
    chart: alt.Chart = (
        alt.Chart(long)
        .mark_line(strokeWidth=2, point={"size": 14, "filled": True})
        .encode(
            x=time_x(frame, zone),
            y=alt.Y("value:Q", title=title, scale=alt.Scale(domainMin=domain_min)),
            color=alt.Color("what:N", scale=scale, legend=legend),
            strokeDash=alt.StrokeDash("what:N", scale=scale, legend=legend),
            tooltip=[time_tip(), alt.Tooltip("what:N"), alt.Tooltip("value:Q", title=title, format=".4g")],
        )
        .properties(height=SMALL)
    )
    return chart


def _legend(columns: int, title: str | None = None, symbol: str | None = None) -> alt.Legend:
    return alt.Legend(title=title, orient="top", columns=columns, labelLimit=280, symbolType=symbol or alt.Undefined)
