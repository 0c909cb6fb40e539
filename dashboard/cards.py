"""The cards that pages are made of. Each figure comes from a CostRow, a CohortPoint or the plan as they were read."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from controlplane.store.queries import CostRow
from dashboard import charts, figures
from dashboard import format as fmt
from dashboard.snapshot import View

CARD_WIDTH = 170


def show_key_figures(view: View) -> None:
    """Of the chosen cohort, or of everything."""
    report, currency = view.snapshot.report, view.snapshot.report.currency
    row = figures.chosen_row(report, view.cohort)
    points = figures.chosen_points(view.snapshot.series, view.cohort)
    whole = view.cohort is None
    with st.grid(6, min_column_width=CARD_WIDTH):
        st.metric(
            "Cost per 1M tokens",
            fmt.cost_per_million(row, currency),
            help="Emitted tokens. " + ("Idle time is in it." if whole else "Idle time is not in it."),
            border=True,
            height="stretch",
        )
        st.metric(
            "Tokens per second",
            fmt.rate(figures.tokens_per_second(points)),
            help="Emitted tokens over the time in which there was work.",
            border=True,
            height="stretch",
        )
        st.metric(
            "Acceptance length",
            fmt.ratio(figures.acceptance_length(points)),
            help="Tokens emitted per draft-verify step, the extra token included.",
            border=True,
            height="stretch",
        )
        st.metric(
            "Energy per token",
            fmt.energy_per_token(row),
            help=f"Per emitted token. Source: {row.energy_source}.",
            border=True,
            height="stretch",
        )
        st.metric(
            "Idle share",
            fmt.share(report.idle_s, report.machine_s),
            help="Machine time without work, of all cohorts together. It is paid for too.",
            border=True,
            height="stretch",
        )
        st.metric(
            "Emitted tokens",
            fmt.count(row.emitted_tokens),
            help=f"{fmt.count(row.requests)} requests finished.",
            border=True,
            height="stretch",
        )


def show_alerts(view: View) -> None:
    """A line for each active alert: what, how often, since when; nothing where there is none."""
    for alert in view.snapshot.alerts:
        box = st.container(border=True, horizontal=True, gap="small")
        with box:
            critical = alert.severity == "critical"
            st.badge(f"{alert.kind} alert", icon=":material/warning:", color="red" if critical else "orange")
            seen = f"{alert.count} times" if alert.count > 1 else "once"
            st.badge(f"seen {seen} since {fmt.moment(alert.first_seen, view.zone)}", color="gray")
            st.text(f"{alert.detail}. To clear it: kadence alerts clear {alert.name} --why '...'")


def show_plan_line(view: View) -> None:
    """The plan in one line of badges."""
    plan, now = view.snapshot.plan, view.snapshot.at
    if plan is None:
        st.caption("No plan yet: the controller has not decided anything.")
        return
    with st.container(horizontal=True, gap="small"):
        st.badge(f"Plan {plan.version}", icon=":material/route:", color="blue")
        st.badge(f"issued {fmt.duration(now - plan.issued_at)} ago", icon=":material/schedule:", color="gray")
        _show_expiry(plan.expires_at - now)
        _show_kill_switch(plan.kill_switch)


def show_plan_figures(view: View) -> None:
    """Version, age, expiry and kill switch as cards."""
    plan, now = view.snapshot.plan, view.snapshot.at
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
            help=f"{fmt.moment(plan.expires_at, view.zone)}. "
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


def _show_expiry(left_s: float) -> None:
    if left_s > 0:
        st.badge(f"expires in {fmt.duration(left_s)}", icon=":material/timer:", color="gray")
    else:
        st.badge(f"expired {fmt.duration(-left_s)} ago, fallback K", icon=":material/timer_off:", color="orange")


def _show_kill_switch(mode: str) -> None:
    if mode == "off":
        st.badge("kill switch off", icon=":material/check:", color="green")
    else:
        st.badge(f"kill switch: {mode}", icon=":material/block:", color="red")


def show_k(view: View) -> None:
    shot = view.snapshot
    changes = len(charts.decision_frame(shot.changes, view.shown))
    with st.container(border=True):
        st.subheader("K over time", anchor=False)
        st.caption("K as planned, by cohort. A diamond is a decision: point at it for the reason.")
        st.altair_chart(
            charts.k_chart(shot.series, shot.changes, shot.bucket_s, view.colours, view.shown),
            alt=f"K over time for {len(view.shown)} cohorts, with {changes} decisions that changed it",
        )
        _say_how_many(view)


def show_speed(view: View) -> None:
    shot = view.snapshot
    with st.container(border=True):
        st.subheader("Tokens per second", anchor=False)
        st.altair_chart(
            charts.series_chart(
                shot.series, "tokens_per_s", "tokens per second", shot.bucket_s, view.colours, view.shown
            ),
            alt=f"Emitted tokens per second over time for {len(view.shown)} cohorts",
        )


def show_acceptance(view: View) -> None:
    shot = view.snapshot
    with st.container(border=True):
        st.subheader("Acceptance length", anchor=False)
        st.altair_chart(
            charts.series_chart(
                shot.series, "acceptance_length", "tokens per step", shot.bucket_s, view.colours, view.shown, floor=1
            ),
            alt=f"Acceptance length over time for {len(view.shown)} cohorts",
        )


def show_unit_cost(view: View) -> None:
    report = view.snapshot.report
    with st.container(border=True):
        st.subheader("Cost per million tokens", anchor=False)
        if report.total.cost_nano is None:
            st.caption("Unpriced: the price sheet has no price for the machine. Add one to it and these bars appear.")
            return
        st.caption(f"Emitted tokens, {report.basis.replace('_', ' ')} price, idle not included.")
        st.altair_chart(
            charts.unit_cost_chart(report, view.colours, view.shown),
            alt="Cost per million emitted tokens by cohort",
        )


def show_bill(view: View) -> None:
    """The bill by cohort; the rows and idle add up to the total."""
    report = view.snapshot.report
    rows = [*(r for r in report.rows if view.cohort in (None, r.key)), report.idle, report.total]
    with st.container(border=True):
        st.subheader("Bill by cohort", anchor=False)
        st.caption(
            "Cohorts and idle add up to the total. "
            f"The same rows in a terminal: `kadence cost report --since {view.since}`"
        )
        st.dataframe(
            pd.DataFrame([_bill_line(r, report.currency) for r in rows]),
            hide_index=True,
            column_config={
                "Cohort": st.column_config.TextColumn(width="medium"),
                **{name: st.column_config.TextColumn(alignment="right") for name in BILL_COLUMNS[1:]},
            },
            alt="Cost, energy and tokens by cohort, then idle, then the total",
        )


BILL_COLUMNS = (
    "Cohort",
    "Per million tokens",
    "Cost",
    "Emitted tokens",
    "Energy per token",
    "Energy",
    "Wasted cost",
    "Requests",
)


def _bill_line(row: CostRow, currency: str | None) -> dict[str, str]:
    values = (
        row.key,
        fmt.cost_per_million(row, currency),
        fmt.cost(row.cost_nano, currency),
        fmt.count(row.emitted_tokens),
        fmt.energy_per_token(row),
        fmt.energy(row.energy_uj),
        fmt.cost(row.wasted_cost_nano, currency),
        fmt.count(row.requests),
    )
    return dict(zip(BILL_COLUMNS, values, strict=True))


def show_counts(view: View) -> None:
    """What each cohort drafted and kept in the range."""
    cohorts = sorted({p.cohort for p in view.snapshot.series if view.cohort in (None, p.cohort)})
    lines = [figures.counts(c, figures.chosen_points(view.snapshot.series, c)) for c in cohorts]
    with st.container(border=True):
        st.subheader("Drafted and accepted", anchor=False)
        st.dataframe(
            pd.DataFrame(lines, columns=list(figures.COUNT_COLUMNS)),
            hide_index=True,
            column_config={
                "Tokens per second": st.column_config.NumberColumn(format="%.1f"),
                "Acceptance length": st.column_config.NumberColumn(format="%.2f"),
                "Accepted": st.column_config.NumberColumn(format="percent"),
                "Mean K": st.column_config.NumberColumn(format="%.2f"),
                "Planned K": st.column_config.NumberColumn(format="%.2f"),
                **{name: st.column_config.NumberColumn(format="localized") for name in figures.COUNT_COLUMNS[6:]},
            },
            alt="Speed, acceptance length, draft and step counts by cohort",
        )


def show_plan(view: View) -> None:
    """K of every cohort by load, as workers obey it now."""
    plan = view.snapshot.plan
    if plan is None:
        return
    frame = figures.plan_frame(plan, view.cohort)
    with st.container(border=True):
        st.subheader("Plan in force", anchor=False)
        st.caption("K by cohort and running sequences on a worker. The fallback holds once the plan has expired.")
        if plan.kill_switch != "off":
            st.caption(f":material/block: The kill switch is on {plan.kill_switch}: it comes before these.")
        st.dataframe(frame, hide_index=True, alt="Planned K by cohort and load")


def show_decisions(view: View) -> None:
    """The log, newest first, with its own filters."""
    held = st.toggle("Show decisions that kept K", key="holds", bind="query-params")
    shot = view.snapshot
    rows = [d for d in (shot.decisions if held else shot.changes) if view.cohort in (None, d.cohort)]
    reasons = sorted({str(d.reason) for d in rows})
    reason = st.pills("Reason", reasons, key="reason", bind="query-params") if len(reasons) > 1 else None
    rows = [d for d in rows if reason in (None, str(d.reason))]
    if not rows:
        st.caption("No decision in this time range matches the filters.")
        return
    st.dataframe(
        figures.decision_table(rows, view.zone),
        hide_index=True,
        height="content" if len(rows) <= 20 else 740,
        column_config={
            "Time": st.column_config.TextColumn(width=150),
            "K": st.column_config.TextColumn(width=60),
            "Why": st.column_config.TextColumn(width=430, help="Click a cell to read all of it."),
        },
        alt=f"{len(rows)} decisions with their reasons, newest first",
    )
    st.caption(f"{len(rows)} decisions, newest first.")


def _say_how_many(view: View) -> None:
    total = len({p.cohort for p in view.snapshot.series})
    if view.cohort is None and total > len(view.colours):
        st.caption(f"The {len(view.colours)} busiest of {total} cohorts. Choose one above to see it.")
