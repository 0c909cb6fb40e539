"""The Overview's cards. Each figure says where it comes from: the page that has more, and the command that prints it.

Names of cohorts, budgets, drafters and sources are text from outside: st.text, st.dataframe, chart data or `plain`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import streamlit as st

from controlplane.alerts import Alert
from controlplane.finops.savings_report import Report
from controlplane.store.queries import PlanRow
from dashboard import figures
from dashboard import format as fmt
from dashboard.cost_budgets import Outlook, ahead_text, standing_text
from dashboard.cost_tables import basis_name
from dashboard.layout import draws_figures_alone, plain
from dashboard.ledger import Ledger
from dashboard.overview_load import Overview
from dashboard.overview_trend import by_bucket, change_text

CARD_WIDTH = 165
NOT_KNOWN = "not known"
START_AN_EXPERIMENT = "`kadence experiment start`"
HERE = Path(__file__).parent


def link(page: str, label: str, command: str) -> None:
    """Where a figure comes from: a page, and in its tooltip the command, which never has a name from outside in it."""
    if (HERE / page).is_file():
        st.page_link(page, label=label, icon=":material/arrow_outward:", help=f"In a terminal: `{command}`")
    else:
        st.caption(f"`{command}`")


def show_alerts(alerts: Sequence[Alert], ledger: Ledger) -> None:
    """A line for each active alert: what, how often, since when; nothing where there is none."""
    for alert in alerts:
        with st.container(border=True, horizontal=True, gap="small"):
            critical = alert.severity == "critical"
            st.badge(f"{plain(alert.kind)} alert", icon=":material/warning:", color="red" if critical else "orange")
            seen = f"{alert.count} times" if alert.count > 1 else "once"
            st.badge(f"seen {seen} since {fmt.moment(alert.first_seen, ledger.zone)}", color="gray")
            st.text(f"{alert.detail}. To clear it: kadence alerts clear {alert.name} --why '...'")


def show_plan_line(plan: PlanRow | None, now: float) -> None:
    """The plan in one line of badges."""
    if plan is None:
        st.caption("No plan yet: the controller has not decided anything.")
        return
    left = plan.expires_at - now
    with st.container(horizontal=True, gap="small"):
        st.badge(f"Plan {plan.version}", icon=":material/route:", color="blue")
        st.badge(f"issued {fmt.duration(now - plan.issued_at)} ago", icon=":material/schedule:", color="gray")
        if left > 0:
            st.badge(f"expires in {fmt.duration(left)}", icon=":material/timer:", color="gray")
        else:
            st.badge(f"expired {fmt.duration(-left)} ago, fallback K", icon=":material/timer_off:", color="orange")
        if plan.kill_switch == "off":
            st.badge("kill switch off", icon=":material/check:", color="green")
        else:
            st.badge(f"kill switch: {plain(plan.kill_switch)}", icon=":material/block:", color="red")


def show_advice(found: Overview) -> None:
    """At most three things to do, each with the page that shows why."""
    with st.container(border=True):
        st.header("What to change", anchor=False)
        if not found.advice:
            st.caption("Nothing stands out: no alert, no budget in danger, no cohort switched off, little idle time.")
        for each in found.advice:
            with st.container(horizontal=True, gap="small", vertical_alignment="center"):
                st.text(each.sentence)
                link(each.page, each.label, each.command)


def show_key_figures(ledger: Ledger, found: Overview) -> None:
    """Of everything, or of the chosen cohort or model."""
    with st.grid(6, min_column_width=CARD_WIDTH):
        for basis in found.headline.rows:
            _show_cost(ledger, found, basis)
        _show_saving(found.saving)
        _show_energy(ledger, found)
        _show_speed(found, ledger)
        _show_acceptance(found, ledger)
        _show_idle(ledger, found)
        _show_tokens(ledger, found)
        _show_budgets(found)
        _show_alert_count(found.alerts)


def _show_cost(ledger: Ledger, found: Overview, basis: str) -> None:
    head = found.headline
    row, trend = head.rows[basis], head.cost[basis]
    label = "Cost per 1M tokens" if basis == head.main else f"Cost per 1M, {basis_name(basis)}"
    what = "Idle time is in it." if row.has_idle else "Idle time is not in it."
    with st.container(border=True, height="stretch"):
        st.metric(
            label,
            fmt.cost_per_million(row, ledger.currency),
            help=f"Emitted tokens at {basis_name(basis)} prices. {what}",
            chart_data=_line(trend.known),
            **_change(found, change_text(row.cost_per_million_tokens, trend.before)),
        )
        link("pages/cost.py", "Cost", f"kadence cost report --since {_since(ledger)} --basis all")


def _show_saving(saving: Report | None) -> None:
    help = "Machine time per token with speculation against without, of pairs of windows drawn by chance."
    with st.container(border=True, height="stretch"):
        if saving is None:
            st.metric("Saved by speculation", fmt.NOT_MEASURED, help=help)
            st.caption(f"No experiment yet. Start one: {START_AN_EXPERIMENT}")
        else:
            capacity = saving.savings["capacity"]
            is_said = capacity.share is not None and capacity.low is not None and capacity.high is not None
            value = f"{100 * (capacity.share or 0.0):.1f} %" if is_said else "no verdict yet"
            st.metric("Saved by speculation", value, help=help)
            st.caption(plain(saving.headline))
            if is_said:
                st.caption(plain(month_text(saving)))
        link("pages/savings.py", "Savings", "kadence experiment report")


def month_text(saving: Report) -> str:
    """What it comes to over the last 30 days, or why that is not said."""
    month = saving.projection
    if month.share is None:
        return f"last 30 days: not projected, {month.refused}"
    money = "unpriced" if month.nano is None else fmt.cost(month.nano, saving.currency)
    return f"last 30 days: {money} of machine time"


def _show_energy(ledger: Ledger, found: Overview) -> None:
    row, trend = found.headline.row, found.headline.energy
    with st.container(border=True, height="stretch"):
        st.metric(
            "Energy per token",
            fmt.energy_per_token(row),
            help="Per emitted token of the windows that were measured.",
            chart_data=_line(trend.known),
            **_change(found, change_text(row.j_per_token, trend.before)),
        )
        st.caption("source: none" if row.energy_uj is None else f"source: {plain(row.energy_source)}")
        link("pages/energy.py", "Energy and carbon", f"kadence cost report --since {_since(ledger)} --json")


def _show_speed(found: Overview, ledger: Ledger) -> None:
    points = found.totals
    by_time = by_bucket(points)
    with st.container(border=True, height="stretch"):
        st.metric(
            "Tokens per second",
            fmt.rate(figures.tokens_per_second(points)),
            help="Emitted tokens over the time in which there was work.",
            chart_data=_line([s for s in map(figures.tokens_per_second, by_time) if s is not None]),
        )
        link("pages/speculation.py", "Speculation", f"kadence cost report --since {_since(ledger)} --json")


def _show_acceptance(found: Overview, ledger: Ledger) -> None:
    points = found.totals
    by_time = by_bucket(points)
    value = figures.acceptance_length(points)
    note = figures.untold(points)
    with st.container(border=True, height="stretch"):
        st.metric(
            "Acceptance length",
            NOT_KNOWN if value is None and note else fmt.ratio(value),
            help="Tokens emitted per draft-verify step, the extra token included.",
            chart_data=_line([a for a in map(figures.acceptance_length, by_time) if a is not None]),
        )
        if note:
            st.caption(note)
        link("pages/speculation.py", "Speculation", f"kadence cost report --since {_since(ledger)} --json")


def _show_idle(ledger: Ledger, found: Overview) -> None:
    report = found.report
    with st.container(border=True, height="stretch"):
        st.metric(
            "Idle share",
            fmt.share(report.idle_s, report.machine_s),
            help="Machine time without work, of all cohorts together. It is paid for too.",
        )
        paid = report.total.idle_cost_nano
        st.caption(plain(f"{fmt.cost(paid, report.currency)} of {fmt.cost(report.total.cost_nano, report.currency)}"))
        link("pages/cost.py", "Cost", f"kadence cost report --since {_since(ledger)} --idle weighted")


def _show_tokens(ledger: Ledger, found: Overview) -> None:
    row = found.headline.row
    with st.container(border=True, height="stretch"):
        st.metric("Emitted tokens", fmt.count(row.emitted_tokens), help=f"{fmt.count(row.requests)} requests finished.")
        st.caption(f"{fmt.count(row.requests)} requests")
        link("pages/cost.py", "Cost", f"kadence cost report --since {_since(ledger)}")


def budget_words(budgets: Sequence[Outlook], *, has_policy: bool) -> tuple[str, str]:
    """The state of all budgets in a word or two, and one line on the most urgent."""
    if not budgets:
        return ("none set", "The policy in force has no budget") if has_policy else ("none set", "No policy on record")
    worst = budgets[0]
    line = f"{worst.status.name}: {standing_text(worst.status)}; {ahead_text(worst.status)}"
    for standing, word in (("exceeded", "exceeded"), ("unknown", "unknown"), ("soft", "over a threshold")):
        count = sum(each.status.standing == standing for each in budgets)
        if count:
            return f"{count} of {len(budgets)} {word}", line
    danger = sum(each.is_in_danger for each in budgets)
    return (f"{danger} of {len(budgets)} in danger" if danger else "all ok"), line


def _show_budgets(found: Overview) -> None:
    value, line = budget_words(found.budgets, has_policy=found.has_policy)
    with st.container(border=True, height="stretch"):
        st.metric("Budgets", value, help="Of all cohorts and tenants, in their present periods.")
        st.caption(plain(line))
        link("pages/cost.py", "Cost", "kadence budget status")


def _show_alert_count(alerts: Sequence[Alert]) -> None:
    kinds = sorted({alert.kind for alert in alerts})
    with st.container(border=True, height="stretch"):
        st.metric("Active alerts", fmt.count(len(alerts)), help="Until somebody clears them.")
        told = ", ".join(f"{sum(a.kind == kind for a in alerts)} {kind}" for kind in kinds)
        st.caption(plain(told or "no budget threshold, no unusual cost, no wrong text"))
        link("pages/policy.py", "Policy and audit", "kadence alerts list")


def _since(ledger: Ledger) -> str:
    """For a tooltip, which is Markdown: what was typed is told as the moment it means."""
    return ledger.since if ledger.filters.span != "custom" else fmt.iso(ledger.range.start)


def _change(found: Overview, text: str | None) -> dict[str, Any]:
    """What a card says of the stretch before: less is good, and no change is neither."""
    before = found.headline.before
    if text is None or before is None:
        return {}
    is_same = text in ("+0.0 %", "-0.0 %")
    return {
        "delta": text,
        "delta_color": "off" if is_same else "inverse",
        "delta_arrow": "off" if is_same else "auto",
        "delta_description": f"vs {fmt.duration(before.end - before.start)} before",
    }


def _line(points: Sequence[float]) -> list[float] | None:
    """For a sparkline, which two points are the least of."""
    return list(points) if len(points) > 1 and not draws_figures_alone() else None
