"""The survival curve: how likely the j-th draft token is kept, by position, with its interval. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt
import numpy as np
import pandas as pd

from controlplane.decision.break_even import Z95
from controlplane.decision.what_if import LEAST_EXAMINED
from dashboard.charts import HEIGHT
from dashboard.speculation_evidence import Evidence

MEASURED, ASSUMED = "measured", "assumed"
COLUMNS = ("cohort", "position", "survival", "low", "high", "accepted", "examined", "kind")


def survival_frame(evidence: Evidence, cohorts: Sequence[str]) -> pd.DataFrame:
    """A row for each cohort and draft position, from 1 to the deepest rung of its ladder.

    survival: P(the token at that position is kept) where K reaches it, from the estimator that decides on K: a product
    of conditional acceptances, censored at K (Kaplan-Meier). low, high: 95 % interval on its logarithm, by Greenwood's
    sum of relative variances. accepted: conditional acceptance at the position. examined: discounted drafts behind it.
    kind: assumed where hardly a draft was examined, so that other positions and cohorts speak for it.
    """
    outlook, hazards, table = evidence.believed.outlook, evidence.believed.hazards, evidence.believed.state.table
    rows = []
    for name in cohorts:
        c = evidence.index(name)
        if c is None:
            continue
        top = int(np.flatnonzero(table.is_rung[c])[-1])
        sd = np.sqrt(np.cumsum(outlook.relative[c]))
        for j in range(top):
            survival, spread = float(outlook.survival[c, j]), float(np.exp(Z95 * sd[j]))
            examined = float(hazards.examined[c, j])
            rows.append(
                (
                    name,
                    j + 1,
                    survival,
                    survival / spread,
                    min(survival * spread, 1.0),
                    float(hazards.mean[c, j]),
                    examined,
                    MEASURED if examined >= LEAST_EXAMINED else ASSUMED,
                )
            )
    return pd.DataFrame(rows, columns=list(COLUMNS))


def survival_chart(frame: pd.DataFrame, cohorts: Sequence[str]) -> alt.LayerChart | alt.FacetChart:
    """A line a cohort with its interval at each position; a cross where nothing was examined there."""
    color = alt.Color(
        "cohort:N", scale=alt.Scale(domain=list(cohorts)), legend=alt.Legend(title=None, orient="top", labelLimit=110)
    )
    x = alt.X("position:Q", title="draft position", axis=alt.Axis(tickMinStep=1, format="d"))
    tooltip = [
        "cohort:N",
        alt.Tooltip("position:Q", title="position"),
        alt.Tooltip("survival:Q", title="kept", format=".1%"),
        alt.Tooltip("low:Q", title="95 % from", format=".1%"),
        alt.Tooltip("high:Q", title="95 % to", format=".1%"),
        alt.Tooltip("accepted:Q", title="kept, where all before were", format=".1%"),
        alt.Tooltip("examined:Q", title="drafts examined, faded", format=",.0f"),
        alt.Tooltip("kind:N", title="rests on"),
    ]
    base = alt.Chart(frame).encode(x=x, color=color)
    y = alt.Y("survival:Q", title="kept", scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(format="%"))
    lines = base.mark_line(strokeWidth=2).encode(y=y)
    spans = base.mark_rule(strokeWidth=1.5, opacity=0.7).encode(y=alt.Y("low:Q", title="kept"), y2="high:Q")
    points = base.mark_point(size=60, filled=True, opacity=1).encode(
        y=y,
        shape=alt.Shape(
            "kind:N",
            scale=alt.Scale(domain=[MEASURED, ASSUMED], range=["circle", "cross"]),
            legend=alt.Legend(title=None, orient="bottom", symbolFillColor="gray", symbolStrokeColor="gray"),
        ),
        tooltip=tooltip,
    )
    return alt.layer(lines, spans, points).properties(height=HEIGHT + 50)
