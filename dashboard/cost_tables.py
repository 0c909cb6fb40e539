"""A cost report as the tables that the Overview and the Cost page show: every row, then rest, idle and total. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pandas as pd

from controlplane.store.queries import CostReport, CostRow
from dashboard import format as fmt

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


def all_rows(report: CostReport) -> list[CostRow]:
    """As `kadence cost report` prints them: rows, rest where there is a filter, idle, total."""
    return [*report.rows, *(() if report.rest is None else (report.rest,)), report.idle, report.total]


def bill_frame(report: CostReport, cohort: str | None = None) -> pd.DataFrame:
    """One basis, by cohort; with `cohort` of the rows only that one."""
    rows = [row for row in report.rows if cohort in (None, row.key)]
    shown = [*rows, *all_rows(report)[len(report.rows) :]]
    lines = [
        (
            row.key,
            fmt.cost_per_million(row, report.currency),
            fmt.cost(row.cost_nano, report.currency),
            fmt.count(row.emitted_tokens),
            *reversed(_energy(row)),
            fmt.cost(row.wasted_cost_nano, report.currency),
            fmt.count(row.requests),
        )
        for row in shown
    ]
    return pd.DataFrame(lines, columns=list(BILL_COLUMNS))


def basis_name(basis: str) -> str:
    """`on_demand` as a person writes it: on demand."""
    return basis.replace("_", " ")


def bases_frame(reports: Mapping[str, CostReport], main: str, by: str) -> pd.DataFrame:
    """Usage, then cost and unit cost under every basis, then what the main basis makes of idle, waste and prefill."""
    head = [by.capitalize(), "Emitted tokens", "Input tokens", "Requests"]
    for basis in reports:
        head += [_heading(basis, "cost"), _heading(basis, "per 1M"), _heading(basis, "loaded 1M")]
    head += ["Idle part", "Wasted", "Per 1M input", "Energy", "Energy per token"]
    lines = [
        _line(dict(zip(reports, rows, strict=True)), reports[main], main)
        for rows in zip(*(all_rows(report) for report in reports.values()), strict=True)
    ]
    return pd.DataFrame(lines, columns=head)


def _heading(basis: str, what: str) -> str:
    return f"{basis_name(basis).capitalize()} {what}"


def _line(rows: Mapping[str, CostRow], report: CostReport, main: str) -> list[str]:
    row, currency = rows[main], report.currency
    is_idle = row.key == "idle" and row is report.idle
    usage = [fmt.NOTHING if is_idle else fmt.count(n) for n in (row.emitted_tokens, row.input_tokens, row.requests)]
    money = [text for each in rows.values() for text in _money(each, currency)]
    return [
        row.key,
        *usage,
        *money,
        fmt.cost(row.idle_cost_nano, currency),
        fmt.NOTHING if is_idle else fmt.cost(row.wasted_cost_nano, currency),
        fmt.NOTHING if is_idle else fmt.per_million(row.input_cost_nano, row.cost_per_million_input_tokens, currency),
        *_energy(row),
    ]


def _energy(row: CostRow) -> tuple[str, str]:
    """Energy, and a token's; a dash where there was no machine time to measure, as in idle that was spread."""
    if row.energy_uj is None and not row.machine_ns and not row.idle_ns:
        return fmt.NOTHING, fmt.NOTHING
    return fmt.energy(row.energy_uj), fmt.energy_per_token(row)


def _money(row: CostRow, currency: str | None) -> Iterator[str]:
    yield fmt.cost(row.cost_nano, currency)
    yield fmt.cost_per_million(row, currency)
    yield fmt.per_million(row.loaded_cost_nano, row.loaded_cost_per_million_tokens, currency)


PARTS = ("prefill", "kept decode", "rejected drafts", "idle")
"""What a row's cost is made of, in the order in which bars stack them."""


def parts_of(row: CostRow) -> dict[str, int | None]:
    """The row's cost in PARTS, in nano-units, which add up to it; None = unpriced. Idle: only where it is inside."""
    wasted = row.wasted_cost_nano
    kept = None if row.output_cost_nano is None or wasted is None else row.output_cost_nano - wasted
    idle = row.idle_cost_nano if row.has_idle else 0
    return dict(zip(PARTS, (row.input_cost_nano, kept, wasted, idle), strict=True))


def parts_frame(rows: Sequence[CostRow], most: int | None = None) -> pd.DataFrame:
    """A line for each part of each row that has a price and a cost: key, part, order, cost in nano-units and in units.
    The `most` dearest rows, or all in the order given.
    """
    priced = [row for row in rows if row.cost_nano is not None]
    if most is not None:
        priced = sorted(priced, key=lambda row: (-(row.cost_nano or 0), row.key))[:most]
    lines = [
        (row.key, part, PARTS.index(part), nano, nano / 1e9)
        for row in priced
        for part, nano in parts_of(row).items()
        if nano is not None
    ]
    return pd.DataFrame(lines, columns=["key", "part", "order", "nano", "cost"])
