"""The cards of the savings page."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from controlplane.experiment import Run
from controlplane.finops.savings import MEASURES, WHAT
from controlplane.finops.savings_report import Report
from controlplane.store.experiments import experiments
from dashboard import savings_charts as charts
from dashboard import savings_figures as figures
from dashboard.layout import plain
from dashboard.ledger import Ledger
from dashboard.savings_reading import Asked, SavingsReading, Told

CARD_WIDTH = 200
COLORS = {"running": "blue", "finished": "green", "stopped": "orange"}


def ask(ledger: Ledger) -> Asked:
    """Which experiment, where there are several, and which measure the plots are of."""
    try:
        names = [run.id for run in experiments(ledger.engine)]
    except Exception:  # what is wrong with the database is said by the reading that follows
        names = []
    with st.container(horizontal=True, vertical_alignment="bottom"):
        chosen = None
        if len(names) > 1:
            chosen = st.selectbox("Experiment", names, key="experiment", bind="query-params", width=300)
        measure = st.segmented_control(
            "Measure", list(MEASURES), default="capacity", required=True, key="measure", bind="query-params"
        )
    return Asked(chosen, figures.measure_of(measure))


def show_next(found: SavingsReading) -> None:
    step = figures.next_step(found.told.report if found.told else None, found.section)
    with st.container(border=True):
        st.header("What to run next", anchor=False)
        st.text(step.sentence)
        st.code(step.command, language="bash", wrap_lines=True)


def show_state(ledger: Ledger, report: Report) -> None:
    run = report.run
    with st.container(horizontal=True, gap="small"):
        st.badge(run.state, color=COLORS.get(run.state, "gray"))  # type: ignore[arg-type]
        st.badge(f"{report.savings['capacity'].pairs} of {run.spec.pairs} pairs counted", color="gray")
        if report.pending:
            st.badge(f"{report.pending} under way", color="gray")
        if report.refused:
            st.badge(f"{len(report.refused)} not counted", icon=":material/warning:", color="orange")
    st.text(f"{run.id}, {figures.state_text(run, ledger.zone)}")
    st.text(f"By {run.by}: {run.why or '-'}")
    st.caption(plain(figures.spec_text(run.spec)))


def show_savings(report: Report) -> None:
    """The sentence that may be quoted, then each measure with its interval, and the month."""
    with st.container(border=True):
        st.header(plain(report.headline), anchor=False)
        if not report.savings["capacity"].is_clear:
            st.caption("Grey: the interval includes 0, or is not there yet. Nothing is claimed.")
        with st.grid(4, min_column_width=CARD_WIDTH):
            for measure, saving in report.savings.items():
                color = "off" if not saving.is_clear else "green" if (saving.share or 0) > 0 else "red"
                st.metric(
                    measure.capitalize(),
                    figures.saved(saving),
                    delta=plain(figures.standing(saving)),
                    delta_color=color,  # type: ignore[arg-type]
                    delta_arrow="off",
                    help=f"{WHAT[measure]}. {saving.pairs} pairs, always-valid p {saving.p:.3g}.",
                    border=True,
                    height="stretch",
                )
            value, beside = figures.month_text(report.projection, report.currency)
            st.metric(
                "Last 30 days, projected",
                value,
                delta=plain(beside),
                delta_color="off",
                delta_arrow="off",
                help=report.projection.label,
                border=True,
                height="stretch",
            )
        month = report.projection
        if month.refused is not None:
            st.caption(plain(f"The last 30 days are not projected: {month.refused}."))
        else:
            st.caption(
                plain(
                    f"The last 30 days: {figures.percent(month.share)} of machine time "
                    f"({figures.interval(month.low, month.high)}), {month.label}."
                )
            )
        st.caption("Capacity is not cash: on a fleet of fixed size nothing is saved until it shrinks.")


def show_plots(ledger: Ledger, found: SavingsReading, told: Told) -> None:
    measure, spec = found.measure, told.report.run.spec
    left, right = st.columns(2)
    with left, st.container(border=True):
        st.header("Confidence sequence", anchor=False)
        st.caption("Holds at every look together. Dashed: the interval of one planned look. Grey line: no saving.")
        frame = charts.look_frame(found.looks)
        if len(frame):
            last = told.report.savings[measure]
            st.altair_chart(
                charts.sequence_chart(frame, spec.pairs),
                alt=f"Saving of {measure} after each pair: now {figures.saved(last)}, "
                f"{figures.interval(last.low, last.high)}",
            )
        else:
            st.caption(f"{measure.capitalize()}: {figures.standing(told.report.savings[measure])}.")
    with right, st.container(border=True):
        st.header("Paired windows", anchor=False)
        st.caption("Each pair is one window with and one without speculation, joined. Lower is cheaper.")
        pairs = charts.pair_frame(told.pairs, measure)
        if pairs["rate"].notna().any():
            st.altair_chart(
                charts.pair_chart(pairs, measure, ledger.zone),
                alt=f"{charts.RATES[measure]} in both windows of {len(pairs) // 2} pairs",
            )
        else:
            st.caption("No pair counts yet." if measure != "energy" else "Energy was not measured in both windows.")


def show_guardrails(report: Report) -> None:
    with st.container(border=True):
        st.header("Guardrails", anchor=False)
        st.caption(
            "With speculation against without. Broken: the interval is beyond the limit, and there is no saving."
        )
        st.dataframe(
            figures.guardrail_table(report.guardrails), hide_index=True, alt="Guardrails with verdict, change and limit"
        )
        if report.length_distance is not None:
            st.caption(f"Mix of output lengths: {report.length_distance:.1%} of the outputs are in another bucket.")


def show_adjustment(found: SavingsReading, report: Report) -> None:
    adjusted = report.savings[found.measure]
    with st.container(border=True):
        st.header("Adjusted for offered load (CUPED)", anchor=False)
        st.caption(plain(figures.adjustment_text(adjusted)))
        if found.unadjusted is not None:
            st.dataframe(
                figures.adjustment_table(adjusted, found.unadjusted),
                hide_index=True,
                alt="The saving with and without adjustment for offered load",
            )


def show_checks(ledger: Ledger, report: Report) -> None:
    with st.container(border=True):
        st.header("Checks", anchor=False)
        st.dataframe(figures.check_table(report), hide_index=True, alt="Checks of the pairs")
        if report.refused:
            st.dataframe(figures.pair_table(report), hide_index=True, alt="Pairs that are not counted, with why")
        with st.expander("What this does not say"):
            for line in report.not_said:
                st.caption(plain(line))
            st.caption(plain(f"Policies: {', '.join(report.revisions) or 'none'}. "
                             f"Energy measured by: {', '.join(report.sources) or 'nothing'}."))  # fmt: skip
    st.caption("The same in a terminal:")
    st.code(figures.report_command(report.run, ledger.basis), language="bash")


def show_runs(ledger: Ledger, runs: Sequence[Run]) -> None:
    if len(runs) > 1:
        with st.container(border=True):
            st.header("Experiments on record", anchor=False)
            st.dataframe(figures.run_table(runs, ledger.zone), hide_index=True, alt="Experiments, newest first")
