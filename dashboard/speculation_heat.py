"""Heat maps of K by cohort and load: the plan in force, and the K that was used. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import altair as alt
import numpy as np
import pandas as pd

from controlplane.decision.observation import BUCKETS
from controlplane.decision.sentence import load_label
from dashboard.speculation_evidence import Evidence

ROW_PX, HEAD_PX = 24, 60
COLUMNS = ("cohort", "load", "k", "text", "seconds")
LOADS = tuple(load_label(bucket).replace(" or more", "+") for bucket in range(BUCKETS))

MOST = (10, 25, 50, 100)
"""How many cohorts may be shown at once; charts of more rows than this cannot be read."""


def chosen(names: Sequence[str], *, most: int, contains: str = "") -> list[str]:
    """The first `most` of the names that contain a text, whatever its case, in the order given."""
    wanted = contains.strip().casefold()
    return [name for name in names if wanted in name.casefold()][:most]


def plan_frame(k: Mapping[str, Sequence[int]], cohorts: Sequence[str]) -> pd.DataFrame:
    """K that the plan has for each cohort and load."""
    rows = [
        (name, load, float(by_load), str(by_load), None)
        for name in cohorts
        for load, by_load in zip(LOADS, k.get(name, ()), strict=False)
    ]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def used_frame(evidence: Evidence, cohorts: Sequence[str]) -> pd.DataFrame:
    """Mean K that steps were planned with, weighted by their wall time; no row where nothing ran."""
    rows = []
    for name in cohorts:
        c = evidence.index(name)
        if c is None:
            continue
        for b in np.flatnonzero(evidence.believed.steps[c].any(axis=1)).tolist():
            k = evidence.k_used(c, b)
            text = f"{k:.0f}" if abs(k - round(k)) < 0.05 else f"{k:.1f}"
            rows.append((name, LOADS[b], k, text, float(evidence.believed.seconds[c, b].sum())))
    return pd.DataFrame(rows, columns=list(COLUMNS))


def heat_chart(frame: pd.DataFrame, cohorts: Sequence[str]) -> alt.LayerChart | alt.FacetChart:
    """One square a cohort and load, darker for a larger K, with K written in it; nothing where there is no row."""
    most = max(float(frame["k"].max()) if len(frame) else 0.0, 1.0)
    base = alt.Chart(frame).encode(
        x=alt.X("load:O", title="running sequences", sort=list(LOADS), scale=alt.Scale(domain=list(LOADS)),
                axis=alt.Axis(labelAngle=0, orient="top", labelOverlap=False, labelFontSize=9)),
        y=alt.Y("cohort:N", title=None, sort=list(cohorts), scale=alt.Scale(domain=list(cohorts)),
                axis=alt.Axis(labelLimit=140)),
    )  # fmt: skip
    squares = base.mark_rect(stroke="gray", strokeWidth=0.5).encode(
        color=alt.Color("k:Q", scale=alt.Scale(scheme="blues", domain=[0, most]), legend=None),
        tooltip=[
            "cohort:N",
            alt.Tooltip("load:N", title="running sequences"),
            alt.Tooltip("k:Q", title="K", format=".2f"),
            alt.Tooltip("seconds:Q", title="seconds of steps", format=",.1f"),
        ],
    )
    text = base.mark_text(fontSize=12).encode(
        text="text:N",
        color=alt.condition(alt.datum.k > 0.55 * most, alt.value("white"), alt.value("#17212B")),
    )
    return alt.layer(squares, text).properties(height=HEAD_PX + ROW_PX * max(len(cohorts), 1))
