"""The cards of the energy page. Each figure has what measured it beside it."""

from __future__ import annotations

import streamlit as st

from dashboard import energy_charts as charts
from dashboard import energy_figures as figures
from dashboard import format as fmt
from dashboard.energy_reading import EnergyReading
from dashboard.layout import plain, show_report_notes
from dashboard.ledger import Ledger

CARD_WIDTH = 170


def show_key_figures(found: EnergyReading) -> None:
    show_report_notes(found.report)
    with st.grid(6, min_column_width=CARD_WIDTH):
        for figure in figures.key_figures(found.row, found.carbon):
            st.metric(
                figure.label,
                figure.value,
                delta=plain(figure.source),
                delta_color="off",
                delta_arrow="off",
                help=figure.help,
                border=True,
                height="stretch",
            )


def show_command(ledger: Ledger) -> None:
    st.caption("The same figures in a terminal (energy_j, j_per_token, wasted_j, carbon_g):")
    st.code(f"{ledger.command('cohort')} --json", language="bash")


def show_power(ledger: Ledger, found: EnergyReading) -> None:
    machines = charts.largest(found.power)
    every = fmt.duration(found.power_s)
    with st.container(border=True):
        st.header("Power over time", anchor=False)
        says = (
            f"Mean power of each kind of machine, every {every}: measured energy over machine time. A kind of which "
            "a part went unmeasured reads low."
            if found.is_rolled_up
            else f"Mean power of each machine, every {every}, over the time that was measured."
        )
        st.caption(f"{says} Grey: it ran and nothing measured it, which is not 0 W. All models and cohorts together.")
        if found.power:
            st.altair_chart(
                charts.power_chart(found.power, found.power_s, machines, ledger.zone),
                alt=f"Mean power over time of {len(machines)} machines, with what measured each",
            )
        total = len({p.machine for p in found.power})
        if total > len(machines):
            st.caption(f"The {len(machines)} of {total} machines that drew most; the table has all.")
        st.dataframe(
            figures.machine_table(found.power), hide_index=True, alt="Power and energy by machine and what measured it"
        )


def show_batching(ledger: Ledger, found: EnergyReading) -> None:
    """Joules by token, how full the batch was and what speculation did: over time, then against each other."""
    frame = charts.batch_frame(found.batch, found.batch_s)
    with st.container(border=True):
        st.header("Batching against speculation", anchor=False)
        where = "" if found.batch_range.start <= ledger.range.start else " The newest three hours of the range."
        st.caption(
            "Joules per emitted token fall when a batch is fuller and when steps emit more; the three lines tell which "
            f"it was. All cohorts together, every {fmt.duration(found.batch_s)}.{where}"
        )
        if not found.batch:
            st.caption("No single windows are on record for this time: they were pruned, and rollups know no batch.")
            return
        left, right = st.columns([3, 2])
        with left:
            if frame[charts.WITH_IDLE].notna().any():
                st.altair_chart(
                    charts.joule_chart(frame, ledger.zone),
                    alt="Joules per emitted token over time, of the work and with idle",
                )
            else:
                st.caption("Joules per token: not measured.")
            st.altair_chart(charts.running_chart(frame, ledger.zone), alt="Running sequences on a machine over time")
            st.altair_chart(charts.step_chart(frame, ledger.zone), alt="Tokens emitted and drafted per step over time")
        with right:
            st.caption("Along one colour: batching. From one colour to another at the same batch: speculation.")
            if frame[charts.WORK].notna().any():
                st.altair_chart(
                    charts.batching_chart(frame, ledger.zone),
                    alt="Joules per token against running sequences, by how much was drafted per step",
                )
            else:
                st.caption("Not measured.")
        st.caption(f"Measured by: {_sources(found)}.")


def show_cohorts(found: EnergyReading) -> None:
    frame = charts.cohort_frame(found.report)
    with st.container(border=True):
        st.header("Energy by cohort", anchor=False)
        st.caption(
            "Cohorts, what the filters leave out, and idle add up to the total. Drafts not kept are in a cohort's."
        )
        if len(frame):
            st.altair_chart(charts.cohort_chart(frame), alt="Energy by cohort: kept work, drafts not kept, idle")
        missing = figures.unmeasured_names(found.report)
        if missing:
            st.text(f"Not measured, and so without a bar: {', '.join(missing[:10])}{' ...' if missing[10:] else ''}")
        st.dataframe(
            figures.cohort_table(found.report, found.carbon),
            hide_index=True,
            alt="Energy, joules per token, waste and carbon by cohort, with what measured them",
        )


def show_carbon(ledger: Ledger, found: EnergyReading) -> None:
    with st.container(border=True):
        st.header("What the carbon figure rests on", anchor=False)
        if found.carbon is None:
            st.text(figures.carbon_missing(ledger.settings.carbon_zone, found.carbon_problem))
            return
        st.dataframe(figures.carbon_table(found.row, found.carbon), hide_index=True, alt="Steps from energy to carbon")


def _sources(found: EnergyReading) -> str:
    start = found.batch_range.start - found.power_s
    names = sorted({figures.source_text(p.source) for p in found.power if p.at >= start})
    return ", ".join(names) or fmt.NOT_MEASURED
