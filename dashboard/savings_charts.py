"""Pairs of windows and the confidence sequence, as charts."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import tzinfo
from math import exp

import altair as alt
import pandas as pd

from controlplane.finops.savings import Measure, Pair, Saving
from dashboard.charts import HEIGHT
from dashboard.time_axis import time_tip, time_x, times, told

WITH, WITHOUT = "with speculation", "without"
RATES: dict[Measure, str] = {
    "capacity": "busy milliseconds per emitted token",
    "cash": "cost per million emitted tokens",
    "energy": "joules per emitted token",
}


def pair_rate(pair: Pair, measure: Measure, *, is_treatment: bool) -> float | None:
    """What a token took in one arm, in the unit of RATES; None where it was not measured, or is unpriced."""
    sums = pair.treatment if is_treatment else pair.control
    if measure == "energy":
        amount, tokens, unit = sums.energy_uj, sums.measured_tokens, 1e6
    elif measure == "capacity":
        amount, tokens, unit = sums.busy_ns, sums.tokens, 1e6
    else:
        amount, tokens, unit = sums.billed_nano, sums.tokens, 1e3
    return None if amount is None or not tokens else amount / tokens / unit


def pair_frame(pairs: Sequence[Pair], measure: Measure) -> pd.DataFrame:
    """Two rows a pair, one for each arm, and the pair's saving; those without the measure are left out."""
    rows = []
    for pair in pairs:
        ratio = pair.log_ratio(measure)
        if ratio is None:
            continue
        order = "at once" if pair.treatment_first is None else "first" if pair.treatment_first else "second"
        for arm in (WITH, WITHOUT):
            rate = pair_rate(pair, measure, is_treatment=arm == WITH)
            rows.append((pair.started_at, pair.index, arm, rate, 1 - exp(ratio), order))
    frame = pd.DataFrame(rows, columns=["at", "pair", "arm", "rate", "saving", "order"])
    frame["rate"] = frame["rate"].astype("float64")
    frame["at"] = times(frame["at"])
    return frame


def pair_chart(frame: pd.DataFrame, measure: Measure, zone: tzinfo) -> alt.LayerChart | alt.FacetChart:
    """Both windows of each pair, joined by a line: the shorter way down is the saving of that pair."""
    tip = [
        time_tip(),
        alt.Tooltip("pair:Q"),
        alt.Tooltip("arm:N"),
        alt.Tooltip("rate:Q", title=RATES[measure], format=",.4g"),
        alt.Tooltip("saving:Q", title="saving of the pair", format="+.1%"),
        alt.Tooltip("order:N", title="window with speculation came"),
    ]
    frame, x = told(frame, zone), time_x(frame, zone)
    arms = alt.Scale(domain=[WITH, WITHOUT])
    y = alt.Y("rate:Q", title=RATES[measure], scale=alt.Scale(zero=False))
    joined = alt.Chart(frame).mark_line(color="gray", opacity=0.6).encode(x=x, y=y, detail=alt.Detail("pair:Q"))
    ends = (
        alt.Chart(frame)
        .mark_point(size=55, filled=True, opacity=0.9)
        .encode(
            x=x,
            y=y,
            color=alt.Color("arm:N", scale=arms, legend=alt.Legend(title=None, orient="top")),
            shape=alt.Shape("arm:N", scale=arms, legend=alt.Legend(title=None, orient="top")),
            tooltip=tip,
        )
    )
    return alt.layer(joined, ends).properties(height=HEIGHT + 30)


def look_frame(looks: Sequence[Saving]) -> pd.DataFrame:
    """A row for each number of pairs at which an interval was known."""
    rows = [
        (found.pairs, found.share, found.low, found.high, found.fixed_low, found.fixed_high)
        for found in looks
        if found.low is not None
    ]
    columns = ["pairs", "saving", "low", "high", "fixed_low", "fixed_high"]
    return pd.DataFrame(rows, columns=columns).astype(dict.fromkeys(columns[1:], "float64"))


def sequence_chart(frame: pd.DataFrame, pairs: int) -> alt.LayerChart | alt.FacetChart:
    """The saving and its confidence sequence after pair after pair, and the line of no saving.

    pairs: at which the experiment ends. Dashed: the interval of one planned look, which must not be watched.
    """
    last = max([pairs, *frame["pairs"].tolist()])
    x = alt.X("pairs:Q", title="complete pairs", scale=alt.Scale(domain=[0, last]), axis=alt.Axis(tickMinStep=1))
    percent = alt.Axis(format="+.0%")
    tip = [
        alt.Tooltip("pairs:Q"),
        alt.Tooltip("saving:Q", format="+.1%"),
        alt.Tooltip("low:Q", format="+.1%"),
        alt.Tooltip("high:Q", format="+.1%"),
    ]
    zero = alt.Chart(pd.DataFrame({"none": [0.0]})).mark_rule(strokeWidth=2, color="gray").encode(y="none:Q")
    band = (
        alt.Chart(frame)
        .mark_area(opacity=0.25)
        .encode(x=x, y=alt.Y("low:Q", title="saving", axis=percent), y2="high:Q", tooltip=tip)
    )
    line = (
        alt.Chart(frame)
        .mark_line(strokeWidth=2, point={"size": 18, "filled": True})
        .encode(x=x, y=alt.Y("saving:Q", axis=percent), tooltip=tip)
    )
    fixed = [
        alt.Chart(frame).mark_line(strokeDash=[3, 3], strokeWidth=1, color="gray").encode(x=x, y=f"{name}:Q")
        for name in ("fixed_low", "fixed_high")
    ]
    return alt.layer(zero, band, *fixed, line).properties(height=HEIGHT + 30)
