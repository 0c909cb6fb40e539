"""The cards of the Speculation page on K and acceptance: over time, by position, by load. Others: break_even_cards."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from controlplane.store.queries import PlanRow
from dashboard import charts
from dashboard import format as fmt
from dashboard.figures import untold
from dashboard.ledger import Ledger
from dashboard.speculation_evidence import beside, rests_on
from dashboard.speculation_heat import MOST, chosen, heat_chart, plan_frame, used_frame
from dashboard.speculation_load import Speculation
from dashboard.speculation_survival import survival_chart, survival_frame
from dashboard.speculation_tables import COUNT_COLUMNS, count_row, plan_table

CARD_WIDTH = 170
NO_EVIDENCE = (
    "No window of this range is on record any more, only its hours: choose a range that has windows, or send traffic"
    " with `kadence load`."
)
NO_STEP = "No step of it is in the windows that this rests on."


def ask_cohorts(ledger: Ledger, found: Speculation) -> list[str]:
    """Which cohorts the maps and tables have: the busiest, or those of a name. Both are in the URL."""
    if ledger.cohort is not None or len(found.ranked) <= MOST[0]:
        return list(found.ranked)
    with st.container(horizontal=True, vertical_alignment="bottom"):
        text = st.text_input(
            "Cohorts whose name contains", key="find", bind="query-params", placeholder="all of them", width=240
        )
        most = st.selectbox("At most", MOST, key="top", bind="query-params", width=120)
    names = chosen(found.ranked, most=most or MOST[0], contains=text or "")
    matching = len(chosen(found.ranked, most=len(found.ranked), contains=text or ""))
    st.caption(f"Tables and maps show {len(names)} of {matching} cohorts, the busiest first.")
    return names


def show_plan_figures(plan: PlanRow | None, now: float, ledger: Ledger) -> None:
    """Version, age, expiry and kill switch as cards."""
    if plan is None:
        st.caption("No plan yet: the controller has not decided anything.")
        return
    left = plan.expires_at - now
    with st.grid(4, min_column_width=CARD_WIDTH):
        st.metric("Plan version", fmt.count(plan.version), border=True, height="stretch")
        st.metric("Plan age", fmt.duration(now - plan.issued_at), border=True, height="stretch")
        st.metric(
            "Expiry",
            f"in {fmt.duration(left)}" if left > 0 else "expired",
            help=f"{fmt.moment(plan.expires_at, ledger.zone)}. "
            "After that workers use the policy's fallback K until a new plan comes.",
            border=True,
            height="stretch",
        )
        st.metric(
            "Kill switch",
            plan.kill_switch,
            help="off: normal control. fallback: the policy's fallback K. zero: no speculation.",
            border=True,
            height="stretch",
        )


def show_k(ledger: Ledger, found: Speculation) -> None:
    marks = len(charts.decision_frame(found.changes, found.shown))
    with st.container(border=True):
        st.header("K over time", anchor=False)
        st.caption("K as planned, by cohort. A diamond is a decision: point at it for the reason.")
        st.altair_chart(
            charts.k_chart(found.series, found.changes, found.bucket_s, found.coloured, found.shown, ledger.zone),
            alt=f"K over time for {len(found.shown)} cohorts, with {marks} decisions that changed it",
        )
        st.page_link("pages/policy.py", label="Every decision with its reason", icon=":material/policy:")
        if len(found.ranked) > len(found.shown):
            st.caption(f"The {len(found.shown)} busiest of {len(found.ranked)} cohorts. Choose one above to see it.")


def show_acceptance(ledger: Ledger, found: Speculation) -> None:
    with st.container(border=True):
        st.header("Acceptance length", anchor=False)
        if note := untold(found.series):
            st.caption(f"{note[0].upper()}{note[1:]}.")
        st.altair_chart(
            charts.series_chart(
                found.series, "acceptance_length", "tokens per step", found.bucket_s, found.coloured, found.shown,
                ledger.zone, floor=1,
            ),
            alt=f"Tokens per step with a draft over time for {len(found.shown)} cohorts",
        )  # fmt: skip


def show_survival(ledger: Ledger, found: Speculation) -> None:
    """The curve with its interval, and what it rests on."""
    with st.container(border=True):
        st.header("How deep drafts survive", anchor=False)
        if found.evidence is None:
            st.caption(NO_EVIDENCE)
            return
        cohorts = [name for name in found.shown if found.evidence.index(name) is not None]
        if not cohorts:
            st.caption(NO_STEP)
            return
        frame = survival_frame(found.evidence, cohorts)
        st.caption(
            "How likely the draft token at each position is kept, with its 95 % interval: what the controller believes."
            " A cross: hardly examined there, so other positions and cohorts speak for it."
        )
        if frame.empty:
            st.caption("None of these cohorts drafts: their ladders have no rung over 0.")
            return
        st.altair_chart(
            survival_chart(frame, cohorts),
            alt=f"Probability that a draft token is kept, by position, for {len(cohorts)} cohorts",
        )
        st.text(rests_on(found.evidence, ledger.zone))


def show_maps(found: Speculation, cohorts: list[str]) -> None:
    """K by cohort and load: the plan beside what was used."""
    left, right = st.columns(2)
    with left, st.container(border=True):
        st.header("Plan in force", anchor=False)
        if found.plan is None:
            st.caption("No plan yet: the controller has not decided anything.")
        else:
            names = [name for name in cohorts if name in found.plan.k]
            st.caption("K by cohort and running sequences on a worker.")
            if found.plan.kill_switch != "off":
                st.caption(f":material/block: The kill switch is on {found.plan.kill_switch}: it comes before these.")
            st.altair_chart(
                heat_chart(plan_frame(found.plan.k, names), names),
                alt=f"Planned K of {len(names)} cohorts by load",
            )
            with st.expander("As a table, with the fallback"):
                st.dataframe(plan_table(found.plan, names), hide_index=True, alt="Planned K by cohort and load")
    with right, st.container(border=True):
        st.header("K that was used", anchor=False)
        if found.evidence is None:
            st.caption(NO_EVIDENCE)
            return
        names = [name for name in cohorts if found.evidence.index(name) is not None]
        if not names:
            st.caption(NO_STEP)
            return
        frame = used_frame(found.evidence, names)
        st.caption("Mean over the time of steps, of the K that they were planned with. Empty: nothing ran there.")
        st.altair_chart(heat_chart(frame, names), alt=f"K that was used by {len(names)} cohorts at each load")


def show_counts(ledger: Ledger, found: Speculation, cohorts: list[str]) -> None:
    """What each cohort drafted and kept in the range: sums of the bill's rows."""
    by_key = {row.key: row for row in found.report.rows}
    lines = [count_row(by_key[name]) for name in cohorts if name in by_key]
    with st.container(border=True):
        st.header("Drafted and accepted", anchor=False)
        st.dataframe(
            pd.DataFrame(lines, columns=list(COUNT_COLUMNS)),
            hide_index=True,
            column_config={
                "Planned K": st.column_config.NumberColumn(format="%.2f"),
                "Mean K": st.column_config.NumberColumn(format="%.2f"),
                "Acceptance length": st.column_config.NumberColumn(format="%.2f"),
                "Accepted": st.column_config.NumberColumn(
                    format="percent", help="Accepted over drafted tokens. It falls with K by arithmetic alone."
                ),
                **{name: st.column_config.NumberColumn(format="localized") for name in COUNT_COLUMNS[5:]},
            },
            alt="Draft and step counts by cohort",
        )
        st.caption("Sums of the rows of:")
        st.code(ledger.command("cohort"), language="bash")


def show_notes(found: Speculation) -> None:
    """What a reader must know of the evidence."""
    if found.evidence is not None:
        for note in beside(found.evidence):
            st.text(note)
