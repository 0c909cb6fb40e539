"""Break-even as a picture: where acceptance stands for each cohort and load, and from where it pays to draft. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt
import pandas as pd

from dashboard.break_even_rows import EvenRow
from dashboard.speculation_tables import VERDICTS, needed_text

ROW_PX, HEAD_PX = 22, 70
MOST_ROWS = 30
STANDS, NEEDED = "stands at", "pays from"


def most_left(rows: Sequence[EvenRow], most: int = MOST_ROWS) -> list[EvenRow]:
    """The rows with a rung over 0, those that took most machine time first."""
    asked = [row for row in rows if row.rung is not None]
    return sorted(asked, key=lambda row: (-row.machine_s, row.cohort, row.load_bucket))[:most]


def label(row: EvenRow) -> str:
    return f"{row.cohort} · {row.load}"


def even_frame(rows: Sequence[EvenRow]) -> pd.DataFrame:
    """Two rows for each: where acceptance stands, and from where speculation pays (1 where even 1 is too little)."""
    lines = []
    for row in rows:
        shared = (label(row), VERDICTS[row.pays], row.rung, row.expected, row.needed)
        lines.append((*shared, STANDS, row.accept_now, f"{100 * row.accept_now:.0f} %"))
        lines.append((*shared, NEEDED, 1.0 if row.accept_needed is None else row.accept_needed, needed_text(row)))
    return pd.DataFrame(lines, columns=["where", "pays", "k", "expected", "needed", "what", "acceptance", "text"])


def even_chart(rows: Sequence[EvenRow]) -> alt.LayerChart | alt.FacetChart:
    """A line for each cohort and load: a tick where speculation pays from, a circle where acceptance stands."""
    frame = even_frame(rows)
    base = alt.Chart(frame).encode(
        x=alt.X("acceptance:Q", title="acceptance, alike at every position", axis=alt.Axis(format="%"),
                scale=alt.Scale(domain=[0, 1])),
        y=alt.Y("where:N", title=None, sort=[label(row) for row in rows], axis=alt.Axis(labelLimit=180)),
        tooltip=[
            alt.Tooltip("where:N", title="cohort and running sequences"),
            alt.Tooltip("what:N", title="mark"),
            alt.Tooltip("text:N", title="acceptance"),
            alt.Tooltip("pays:N", title="speculation pays"),
            alt.Tooltip("k:Q", title="at K"),
            alt.Tooltip("expected:Q", title="tokens a step", format=".2f"),
            alt.Tooltip("needed:Q", title="tokens needed", format=".2f"),
        ],
    )  # fmt: skip
    colours = alt.Scale(domain=[STANDS, NEEDED], range=["#0072B2", "#D55E00"])
    between = base.mark_line(strokeWidth=2, opacity=0.6, color="gray").encode(detail="where:N")
    marks = base.mark_point(size=90, filled=True, opacity=1).encode(
        shape=alt.Shape(
            "what:N",
            scale=alt.Scale(domain=[STANDS, NEEDED], range=["circle", "stroke"]),
            legend=alt.Legend(title=None, orient="top"),
        ),
        angle=alt.Angle("what:N", scale=alt.Scale(domain=[STANDS, NEEDED], range=[0, 90]), legend=None),
        stroke=alt.Stroke("what:N", scale=colours, legend=None),
        strokeWidth=alt.value(2.5),
        color=alt.Color("what:N", scale=colours, legend=None),
    )
    return alt.layer(between, marks).properties(height=HEAD_PX + ROW_PX * max(len(rows), 1))
