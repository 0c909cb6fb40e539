"""The Cost page's parts. Names of rows and budgets are text from outside: st.dataframe, st.text or a chart's data."""

from __future__ import annotations

from functools import partial

import streamlit as st

from controlplane.cost_cli.priced_as import PricedAs
from controlplane.store.cost_dimensions import DIMENSIONS
from dashboard import cost_charts
from dashboard import format as fmt
from dashboard.cost_budgets import BUDGET_COLUMNS, ahead_text, budget_frame, standing_text
from dashboard.cost_exports import FILES, Terms, command, content, file_name, hours_of, is_too_long
from dashboard.cost_load import BY, DEFAULT_BY, OF_TIME, QUADRANT_BY, Bill
from dashboard.cost_quadrant import HELP, placed, share_frame
from dashboard.cost_tables import bases_frame, basis_name
from dashboard.ledger import Ledger

CARD_WIDTH = 170
IDLE_SAID = {
    "none": "Idle time is a row of its own.",
    "weighted": "Idle time is spread over the rows by their machine time.",
    "even": "Idle time is spread over the rows in even parts.",
}


def ask_dimension(_: Ledger) -> str:
    """What rows stand for, in the URL as `by`."""
    chosen = st.segmented_control(
        "Cost by",
        list(BY),
        default=DEFAULT_BY,
        required=True,
        key="by",
        bind="query-params",
    )
    return chosen if chosen in BY else DEFAULT_BY


def show_totals(bill: Bill) -> None:
    """The whole bill in six figures: they are of everything, whatever the filters leave in the rows."""
    report = bill.report
    total, currency = report.total, report.currency
    cards = (
        (
            "Cost",
            fmt.cost(total.cost_nano, currency),
            f"Of everything in the range, at {basis_name(bill.main)} prices.",
        ),
        (
            "Per 1M tokens",
            fmt.cost_per_million(total, currency),
            "Of everything, with idle time in it: what compares with an API's price.",
        ),
        ("Idle cost", fmt.cost(total.idle_cost_nano, currency), "Machine time without work."),
        ("Wasted cost", fmt.cost(total.wasted_cost_nano, currency), "Of draft tokens that were rejected."),
        ("Prefill cost", fmt.cost(total.input_cost_nano, currency), "Of reading prompts."),
        ("Decode cost", fmt.cost(total.output_cost_nano, currency), "Of drafting and verification."),
    )
    with st.grid(6, min_column_width=CARD_WIDTH):
        for label, value, help in cards:
            st.metric(label, value, help=help, border=True, height="stretch")


def show_bill(ledger: Ledger, bill: Bill) -> None:
    """Every row under every basis, then rest, idle and total."""
    frame = bases_frame(bill.reports, bill.main, bill.by)
    with st.container(border=True):
        st.header(f"Bill by {bill.by}", anchor=False)
        if bill.note:
            st.caption(bill.note)
        st.caption(
            f"{IDLE_SAID[bill.report.idle_rule]} Rows, rest and idle add up to the total, to the billionth. Loaded: "
            "with the row's part of idle. Choose prices and what becomes of idle under *View*. The same in a terminal:"
        )
        st.code(_report_command(ledger, bill), language=None)
        st.dataframe(
            frame,
            hide_index=True,
            height="content" if len(frame) <= 25 else 740,
            column_config={
                frame.columns[0]: st.column_config.TextColumn(width="medium", pinned=True),
                **{name: st.column_config.TextColumn(alignment="right") for name in frame.columns[1:]},
            },
            alt=f"Cost by {bill.by} under {len(bill.reports)} price bases, with tokens, idle, waste and energy",
        )


def _report_command(ledger: Ledger, bill: Bill) -> str:
    several = len(bill.reports) > 1 and ledger.basis is None
    return f"{ledger.command(bill.by)}{' --basis all' if several else ''} --json"


def show_where_it_goes(ledger: Ledger, bill: Bill) -> None:
    """Cost by row, cut into what it was spent on; over time for hours and days."""
    report = bill.report
    with st.container(border=True):
        st.header("What it was spent on", anchor=False)
        if all(row.cost_nano is None for row in report.rows):
            _say_unpriced()
            return
        st.caption(
            f"{basis_name(bill.main).capitalize()} prices. Rejected drafts are the wasted part of decode. "
            + IDLE_SAID[report.idle_rule]
        )
        if bill.by in OF_TIME:
            chart = cost_charts.time_chart(report.rows, report.currency, bill.by, ledger.zone)
        else:
            rows = [*report.rows, *([report.idle] if report.idle.cost_nano else [])]
            chart = cost_charts.parts_chart(rows, report.currency)
        st.altair_chart(chart, alt=f"Cost by {bill.by} in prefill, kept decode, rejected drafts and idle")
        if bill.by not in OF_TIME and len(report.rows) > cost_charts.BARS_MOST:
            st.caption(f"The {cost_charts.BARS_MOST} dearest of {len(report.rows)}; the table has all.")


def show_bases(bill: Bill) -> None:
    """Cost per million under every basis, side by side."""
    with st.container(border=True):
        st.header("Price bases side by side", anchor=False)
        if all(row.cost_nano is None for report in bill.reports.values() for row in report.rows):
            _say_unpriced()
            return
        names = ", ".join(basis_name(basis) for basis in bill.reports)
        st.caption(f"Cost per million emitted tokens at {names} prices; a basis without a price has no bar.")
        st.altair_chart(
            cost_charts.bases_chart(bill.reports), alt=f"Cost per million tokens by {bill.by} at {names} prices"
        )


def show_quadrant(bill: Bill) -> None:
    """Share of cost against share of tokens: who pays for more than they use."""
    if bill.by not in QUADRANT_BY:
        return
    found = placed(bill.allocated)
    with st.container(border=True):
        st.header("Allocation against usage", anchor=False)
        if not found:
            st.caption("Nothing to compare: no row has both a cost and tokens in this range.")
            return
        rule = bill.allocated.idle_rule
        st.caption(
            "Share of the cost against share of the emitted tokens. Above the line a token costs more than the "
            f"average, below it less; dashed: an even share. Idle is spread ({rule}): who reserves a machine pays for "
            "its idle time, too."
        )
        left, right = st.columns([3, 2])
        with left:
            st.altair_chart(
                cost_charts.quadrant_chart(found, bill.by),
                alt=f"{len(found)} points: share of cost against share of tokens by {bill.by}",
            )
        with right:
            st.dataframe(
                share_frame(found, bill.by),
                hide_index=True,
                alt=f"Share of tokens, share of cost and cost of a token against the average, by {bill.by}",
            )
            st.caption("\n".join(f"- {text}" for text in HELP.values()))


def show_budgets(ledger: Ledger, bill: Bill) -> None:
    """What is spent so far, what is expected until the reset, and the limit; then all budgets."""
    with st.container(border=True):
        st.header("Forecast against budget", anchor=False)
        if not bill.budgets:
            what = "The policy in force has no budget" if bill.has_policy else "No policy is on record"
            st.caption(f"{what}. Give a cohort or a tenant one in the policy, under `budget:`, and apply it.")
            return
        by_name = {each.status.name: each for each in bill.budgets}
        name = st.selectbox("Budget", list(by_name), key="budget", bind="query-params", width=320)
        chosen = by_name.get(name or "", bill.budgets[0])
        st.text(f"{standing_text(chosen.status)}; {ahead_text(chosen.status)}")
        st.altair_chart(
            cost_charts.forecast_chart(chosen, ledger.zone),
            alt="Spending of the period so far, what is expected at the reset with its interval, and the limit",
        )
        frame = budget_frame(bill.budgets)
        st.dataframe(
            frame,
            hide_index=True,
            column_config={name: st.column_config.TextColumn(alignment="right") for name in BUDGET_COLUMNS[3:8]},
            alt=f"{len(frame)} budgets: where they stand, what is spent, what is expected",
        )
        st.caption(
            "From the ledger, whatever range is shown above; shaded: a 95 % interval. With requests under way, of a "
            "running system: `kadence budget status`; of past periods: `kadence budget history`."
        )


def show_exports(ledger: Ledger, bill: Bill) -> None:
    """The files of `kadence cost export`; each is made when its button is pressed."""
    with st.container(border=True):
        st.header("Exports", anchor=False)
        span = hours_of(ledger.range)
        if span is None:
            st.caption("An export is of whole hours, and this range has none: choose a longer one.")
            return
        start, end = (fmt.iso(at) for at in (span.start, span.end))
        st.caption(f"Whole hours, {start} to {end}, with the filters above. A file is made when you press its button.")
        terms = _ask_terms(ledger)
        if terms.by is None and is_too_long(span, bill.cohorts):
            st.caption("Every cell of this range is too much for a browser: choose a row a value, or use the command.")
        if bill.report.unpriced:
            st.caption("Part of it has no price: null in CSV and Parquet, and left out of FOCUS, never 0.")
        with st.container(horizontal=True):
            for file in FILES:
                st.download_button(
                    file.label,
                    data=partial(
                        content, ledger.engine, span, ledger.sheet, _where(ledger), ledger.settings, file, terms
                    ),
                    file_name=file_name(file, span, terms),
                    mime=file.mime,
                    icon=":material/download:",
                    key=f"export-{file.label}",
                    on_click="ignore",
                    disabled=terms.by is None and is_too_long(span, bill.cohorts),
                )
        st.caption("In a terminal:")
        st.code(command(FILES[0], span, _where(ledger), terms, file_name(FILES[0], span, terms)), language=None)


def _where(ledger: Ledger) -> dict[str, list[str]]:
    return {name: list(values) for name, values in ledger.where.items()}


def _ask_terms(ledger: Ledger) -> Terms:
    with st.expander("Options of the files", icon=":material/tune:"), st.grid(3, min_column_width=CARD_WIDTH):
        by = st.selectbox(
            "A row for",
            DIMENSIONS,
            index=None,
            placeholder="every cell",
            format_func=lambda name: f"each {name}",
            key="export_by",
            help="Every cell: hour, sku, model, cohort, tenant and direction. FOCUS is always cell by cell.",
        )
        priced_as = st.selectbox(
            "Prices",
            [each.value for each in PricedAs],
            format_func=lambda name: {"current": "of the sheet now", "first": "as first reported"}[name],
            key="export_as",
            help="As first reported: with the prices that each hour was first shown with, as on an invoice of then.",
        )
        version = st.selectbox(
            "FOCUS version",
            ("1.2", "1.4"),
            format_func=lambda name: f"{name} (provisional)" if name == "1.4" else name,
            key="export_focus",
        )
        provider = st.text_input("FOCUS: provider", Terms().provider, key="export_provider")
        account = st.text_input("FOCUS: billing account", Terms().account, key="export_account")
    return Terms(by, ledger.basis, priced_as, version, provider.strip() or Terms().provider,
                 account.strip() or Terms().account)  # fmt: skip


def _say_unpriced() -> None:
    st.caption("Unpriced: the price sheet has no price for these machines. Add one to it and the bars appear.")
