"""Below the Overview's cards: the bill by cohort, why K is what it is, K and speed over time."""

from __future__ import annotations

import streamlit as st

from dashboard import charts
from dashboard.cost_tables import BILL_COLUMNS, basis_name, bill_frame
from dashboard.ledger import Ledger
from dashboard.overview_cards import link
from dashboard.overview_load import Overview
from dashboard.overview_why import WHY_COLUMNS, why_frame


def show_k(ledger: Ledger, found: Overview) -> None:
    """K by cohort over time, and beside each cohort's K the reason for it."""
    marks = len(charts.decision_frame(found.changes, found.shown))
    with st.container(border=True):
        st.header("K over time", anchor=False)
        st.caption("K as planned, by cohort. A diamond is a decision: point at it for the reason.")
        st.altair_chart(
            charts.k_chart(found.series, found.changes, found.bucket_s, found.colours, found.shown, ledger.zone),
            alt=f"K over time for {len(found.shown)} cohorts, with {marks} decisions that changed it",
        )
        total = len(found.report.rows)
        if len(found.shown) > 1 and total > len(found.colours):
            st.caption(f"The {len(found.colours)} busiest of {total} cohorts. Choose one above to see it.")


def show_why(ledger: Ledger, found: Overview) -> None:
    """K now and the decision that made it so, a line a cohort."""
    frame = why_frame(found.plan, found.changes, found.shown, ledger.zone)
    with st.container(border=True):
        st.header("Why K is what it is", anchor=False)
        st.dataframe(
            frame,
            hide_index=True,
            column_config={WHY_COLUMNS[2]: st.column_config.TextColumn(width=640)},
            alt=f"K of {len(frame)} cohorts now, and the decision that last changed it",
        )
        link("pages/speculation.py", "Speculation", "kadence policy replay")


def show_unit_cost(found: Overview) -> None:
    report = found.report
    idle = "not included" if report.idle_rule == "none" else f"spread ({report.idle_rule})"
    with st.container(border=True):
        st.header("Cost per million tokens", anchor=False)
        if all(row.cost_nano is None for row in report.rows):
            st.caption("Unpriced: the price sheet has no price for the machine. Add one to it and these bars appear.")
            return
        st.caption(f"Emitted tokens, {basis_name(report.basis)} price, idle {idle}.")
        st.altair_chart(
            charts.unit_cost_chart(report, found.colours, found.shown),
            alt="Cost per million emitted tokens by cohort",
        )


def show_bill(ledger: Ledger, found: Overview) -> None:
    """The bill by cohort; the rows and idle add up to the total."""
    frame = bill_frame(found.report, ledger.cohort)
    with st.container(border=True):
        st.header("Bill by cohort", anchor=False)
        st.caption("Cohorts and idle add up to the total. The same rows in a terminal:")
        st.code(ledger.command(), language=None)
        st.dataframe(
            frame,
            hide_index=True,
            column_config={
                "Cohort": st.column_config.TextColumn(width="medium"),
                **{name: st.column_config.TextColumn(alignment="right") for name in BILL_COLUMNS[1:]},
            },
            alt="Cost, energy and tokens by cohort, then idle, then the total",
        )


def show_speed(ledger: Ledger, found: Overview) -> None:
    with st.container(border=True):
        st.header("Tokens per second", anchor=False)
        st.altair_chart(
            charts.series_chart(
                found.series,
                "tokens_per_s",
                "tokens per second",
                found.bucket_s,
                found.colours,
                found.shown,
                ledger.zone,
            ),
            alt=f"Emitted tokens per second over time for {len(found.shown)} cohorts",
        )
