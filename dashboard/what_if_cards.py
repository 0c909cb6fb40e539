"""The sliders of the What-if page, all of them in the URL, and the cards below them."""

from __future__ import annotations

from typing import Final

import altair as alt
import pandas as pd
import streamlit as st

from controlplane.decision.what_if import extrapolations
from dashboard import format as fmt
from dashboard.charts import HEIGHT
from dashboard.figures import chosen_row
from dashboard.layout import plain
from dashboard.ledger import Ledger
from dashboard.speculation_evidence import Evidence, beside, rests_on
from dashboard.what_if_figures import (
    AS_NOW,
    FULL,
    LOADS,
    PERCENT,
    SHARES,
    Asked,
    WhatIf,
    by_rung,
    figure_table,
    rungs,
)

BIND: Final = "query-params"
CARD_WIDTH = 190
RESET: dict[str, int | str] = {"price": FULL, "utilisation": AS_NOW, "k": AS_NOW, "acceptance": FULL, "load": AS_NOW}
"""Where the sliders stand when nothing is asked, by their name in the URL."""


def reset() -> None:
    """All sliders to what is now."""
    for name, value in RESET.items():
        st.session_state[name] = value


def ask(evidence: Evidence, price: float | None, cohort: int | None, currency: str | None) -> Asked:
    """The sliders, and where they stand."""
    least, most, step = PERCENT
    ks = rungs(evidence, cohort)
    if st.session_state.get("k", AS_NOW) not in ks:  # another cohort has another ladder
        st.session_state["k"] = AS_NOW
    with st.container(border=True):
        with st.grid(3, min_column_width=240):
            k = st.select_slider("K", ks, key="k", bind=BIND, help="A rung; a cohort without it goes to the one below.")
            acceptance = st.slider(
                "Acceptance, % of now", least, most, FULL, step, key="acceptance", bind=BIND,
                help="Scales the measured conditional acceptance of every position, to 100 % at most.",
            )  # fmt: skip
            load = st.select_slider(
                "Running sequences, at most", LOADS, key="load", bind=BIND,
                help="On one worker: the upper bound of a load bucket. now: as they were in these windows.",
            )  # fmt: skip
            utilisation = st.select_slider(
                "Utilisation, %", SHARES, key="utilisation", bind=BIND,
                help="Busy share of machine time; idle time is paid for, too.",
            )  # fmt: skip
            per_hour = st.slider(
                "Price, % of now", least, most, FULL, step, key="price", bind=BIND, disabled=price is None,
                help="Of a machine hour.",
            )  # fmt: skip
            st.button("Reset to now", on_click=reset, icon=":material/restart_alt:", type="tertiary")
        st.text(_stands(evidence, price, per_hour, currency))
    return Asked(per_hour, utilisation, k, acceptance, load)


def _stands(evidence: Evidence, price: float | None, per_hour: int, currency: str | None) -> str:
    hour = fmt.UNPRICED if price is None else f"{fmt.money(price * per_hour / 100, currency)} a machine hour"
    busy = "not known" if evidence.utilisation is None else f"{100 * evidence.utilisation:.1f} %"
    return f"Price: {hour}. Utilisation now: {busy}."


def show_figures(found: WhatIf) -> None:
    """The four figures as cards with their difference."""
    with st.grid(4, min_column_width=CARD_WIDTH):
        for figure in found.figures:
            st.metric(
                figure.name,
                figure.then,
                None if figure.change is None else f"{figure.difference} against now",
                delta_color="off" if figure.difference == "none" else "inverse" if figure.is_better_low else "normal",
                delta_arrow="off" if figure.change is None or figure.difference == "none" else "auto",
                border=True,
                height="stretch",
            )


def show_table(found: WhatIf) -> None:
    """The same beside what was measured."""
    with st.container(border=True):
        st.header("Against now", anchor=False)
        st.dataframe(figure_table(found), hide_index=True, alt="Each figure expected now, measured, and what if")
        st.caption(
            "Speed is of one busy worker, without prefill; cost and energy have prefill and idle time in them."
            f" From what is uncertain in acceptance alone, the speed asked about may be"
            f" {100 * found.interval:.1f} % higher or lower (95 %). Where *measured* is far from *expected now*, trust"
            " the difference no further than that."
        )


def show_by_rung(evidence: Evidence, price: float | None, asked: Asked, cohort: int | None) -> None:
    frame = by_rung(evidence, price, asked, cohort, rungs(evidence, cohort))
    if len(frame) < 2:
        return
    with st.container(border=True):
        st.header("Every K", anchor=False)
        st.caption("Tokens per second of one busy worker, all else as the sliders say, with its 95 % interval.")
        st.altair_chart(_rung_chart(frame), alt=f"Tokens per second at {len(frame)} values of K")


def _rung_chart(frame: pd.DataFrame) -> alt.LayerChart | alt.FacetChart:
    base = alt.Chart(frame).encode(
        x=alt.X("k:O", title="K", axis=alt.Axis(labelAngle=0)),
        tooltip=[
            alt.Tooltip("k:O", title="K"),
            alt.Tooltip("tokens_per_s:Q", title="tokens per second", format=",.1f"),
            alt.Tooltip("low:Q", title="95 % from", format=",.1f"),
            alt.Tooltip("high:Q", title="95 % to", format=",.1f"),
        ],
    )
    y = alt.Y("tokens_per_s:Q", title="tokens per second", scale=alt.Scale(domainMin=0))
    spans = base.mark_rule(strokeWidth=2, color="#D55E00").encode(y=alt.Y("low:Q"), y2="high:Q")
    return alt.layer(base.mark_bar(color="#3A8FC8").encode(y=y), spans).properties(height=HEIGHT)


def show_data(ledger: Ledger, evidence: Evidence, asked: Asked, cohort: int | None) -> None:
    """Which data all of it rests on, and what lies beyond what was measured."""
    with st.container(border=True):
        st.header("What this rests on", anchor=False)
        st.text(rests_on(evidence, ledger.zone))
        for note in beside(evidence):
            st.text(note)
        beyond = list(extrapolations(evidence.believed, asked.change(cohort)))
        for line in beyond:
            st.text(f"Beyond what was measured: {line}.")
        if not beyond:
            st.caption(":material/check: All of it lies within what was measured.")
        st.caption(
            "Acceptance, step times and joules are what the controller decides on, formed again from these windows. A"
            " step takes what it takes when every sequence beside it drafts the same K, at the upper bound of its load."
            f" The bill of the range says {_bill(ledger)} per million tokens:"
        )
        st.code(ledger.command("cohort"), language="bash")


def _bill(ledger: Ledger) -> str:
    report = ledger.report("cohort")
    return plain(fmt.cost_per_million(chosen_row(report, ledger.cohort), report.currency))
