"""`kadence cost reconcile`: our bill beside the provider's invoice, and why they differ."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from sqlalchemy.exc import DBAPIError

from controlplane.cost_cli.export_files import moment_text
from controlplane.cost_cli.export_run import ledger
from controlplane.cost_cli.options import AsJson, Config, DatabaseUrl, PricesFile, price_sheet, settings_of, stop
from controlplane.cost_cli.report import BasisName
from controlplane.cost_cli.screen import screen
from controlplane.finops.invoice import CANDIDATES, Invoice, InvoiceError, parse_invoice
from controlplane.finops.pricing import PriceError, Prices
from controlplane.finops.reconcile import CAUSES, Difference, Reconciliation, invoice_range, our_hours
from controlplane.finops.reconcile import reconcile as compare
from controlplane.store.engine import StoreError, one_line
from controlplane.store.price_history import machine_time
from controlplane.store.queries import TimeRange
from controlplane.store.time_range import iso, parse_moment

ROWS_SHOWN = 40


def reconcile(
    invoice: Annotated[Path, typer.Argument(help="CSV: FOCUS, or with a start, a resource and a cost in each line.")],
    mapping: Annotated[
        list[str] | None,
        typer.Option(help="THEIRS=SKU: what the invoice calls a sku; THEIRS= leaves it out. Repeatable."),
    ] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(help=f"USE=NAME: the column for {', '.join(CANDIDATES)}. Repeatable; default: by name."),
    ] = None,
    since: Annotated[
        str | None, typer.Option(help="Start: a duration before now or a UTC time; default: the invoice's.")
    ] = None,
    until: Annotated[str | None, typer.Option(help="End, likewise.")] = None,
    tolerance: Annotated[
        str, typer.Option(help="Exit 1 when the difference, or one cause of it, is over this share of the invoice.")
    ] = "1%",
    basis: Annotated[
        BasisName | None, typer.Option(help="The prices to expect on the invoice; default: the sheet's first.")
    ] = None,
    prices: PricesFile = None,
    database_url: DatabaseUrl = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Sets our bill beside an invoice: hours, prices and quantities that differ, by resource."""
    settings = settings_of(config, database_url)
    try:
        share = parse_share(tolerance)
        names = _pairs("--mapping", mapping or [])
        given = _pairs("--column", column or [])
        with invoice.open(encoding="utf-8-sig", newline="") as text:
            read = parse_invoice(text, given, invoice.name)
        read, dropped = within(read, since, until, time.time())
    except OSError as error:
        stop(f"{invoice}: cannot read the invoice: {error.strerror}", 2)
    except ValueError as error:
        stop(str(error), 2)
    start, end = invoice_range(read)
    range = TimeRange(start.timestamp(), end.timestamp())
    try:
        with ledger(settings.database_url) as engine:
            sheet: Prices = price_sheet(prices, settings, engine)
            chosen = basis.value if basis else sheet.default_basis
            hours = our_hours(machine_time(engine, range), sheet, chosen)
    except (StoreError, PriceError) as error:
        stop(str(error), 1)
    except DBAPIError as error:
        stop(one_line(error), 1)
    if read.currency is not None and sheet.currency is not None and read.currency != sheet.currency:
        stop(f"{invoice.name}: currency: it is in {read.currency}, the price sheet in {sheet.currency}; "
             "compare it with a sheet in its own currency (--prices)", 2)  # fmt: skip
    found = compare(read, hours, names)
    is_ok = not found.exceeds(share)
    warnings = _warnings(read, found, sheet.currency, {hour.sku for hour in hours}, dropped)
    for line in warnings:
        typer.echo(f"warning: {line}", err=True)
    if as_json:
        said = reconciliation_json(found, read, range, sheet.currency, chosen)
        typer.echo(json.dumps({"ok": is_ok, **said, "tolerance": str(share), "warnings": warnings}))
    else:
        screen().print(reconciliation_table(found, range, sheet.currency or read.currency or "no currency", chosen))
        typer.echo(f"{'within' if is_ok else 'over'} the tolerance of {tolerance}", err=not is_ok)
    raise typer.Exit(0 if is_ok else 1)


def parse_share(text: str) -> Decimal:
    """`1%` or `0.01` as 0.01. Raises ValueError."""
    try:
        number = Decimal(text.strip().removesuffix("%"))
    except InvalidOperation:
        number = Decimal("NaN")
    share = number / 100 if text.strip().endswith("%") else number
    if not (share.is_finite() and 0 <= share <= 1):
        raise ValueError(f"--tolerance: {text!r} is not a share such as 1% or 0.01")
    return share


def _pairs(flag: str, texts: Sequence[str]) -> dict[str, str]:
    found = {}
    for text in texts:
        # A provider's name may hold a =; ours and the columns of a file seldom do.
        name, equals, value = text.rpartition("=") if flag == "--mapping" else text.partition("=")
        if not equals or not name.strip():
            raise ValueError(f"{flag}: {text!r} is not written as NAME=VALUE")
        if name.strip() in found:
            raise ValueError(f"{flag}: {name.strip()} is given twice")
        found[name.strip()] = value.strip()
    return found


def within(invoice: Invoice, since: str | None, until: str | None, now: float) -> tuple[Invoice, int]:
    """The lines that lie in the range as a whole, and how many do not. Raises ValueError naming the flag."""
    edges = []
    for flag, text in (("--since", since), ("--until", until)):
        try:
            edges.append(None if text is None else parse_moment(text, now))
        except ValueError as error:
            raise ValueError(f"{flag}: {error}") from None
    start, end = edges
    lines = tuple(
        line
        for line in invoice.lines
        if (start is None or line.start.timestamp() >= start) and (end is None or line.end.timestamp() <= end)
    )
    if not lines:
        raise InvoiceError("--since, --until: no line of the invoice lies between them")
    return replace(invoice, lines=lines), len(invoice.lines) - len(lines)


def _warnings(invoice: Invoice, found: Reconciliation, currency: str | None, skus: set[str], dropped: int) -> list[str]:
    lines = []
    if invoice.currency is None:
        lines.append(f"the invoice names no currency: taken as {currency or 'that of the price sheet'}")
    strange = sorted({row.resource for row in found.rows if row.theirs is not None} - skus)
    if strange and skus:
        lines.append(
            f"on the invoice and not in the ledger: {', '.join(strange)}; the ledger has {', '.join(sorted(skus))}: "
            f"say which is which with --mapping '{strange[0]}=SKU', or leave it out with --mapping '{strange[0]}='"
        )
    if unpriced := sorted({row.resource for row in found.rows if any(p.cause == "unpriced" for p in row.parts)}):
        lines.append(f"the price sheet has no price for {', '.join(unpriced)} in some hours: ours is unknown there")
    if dropped:
        lines.append(f"{dropped} lines of the invoice lie outside of the range, in whole or in part")
    if found.left_out:
        lines.append(f"{found.left_out:f} of the invoice was left out by --mapping")
    return lines


def reconciliation_json(
    found: Reconciliation, invoice: Invoice, range: TimeRange, currency: str | None, basis: str
) -> dict[str, Any]:
    """Money as decimal strings, null where a side has nothing (or no price)."""
    return {
        "range": {"start": iso(range.start), "end": iso(range.end)},
        "currency": currency,
        "basis": basis,
        "grain": found.grain,
        "columns": dict(invoice.columns),
        "invoice": f"{found.theirs:f}",
        "ours": f"{found.ours:f}",
        "difference": f"{found.difference:f}",
        "left_out": f"{found.left_out:f}",
        "causes": [
            {"cause": cause, "amount": f"{amount:f}", "meaning": CAUSES.get(cause)}
            for cause, amount in sorted(found.by_cause.items())
        ],
        "rows": [_row_json(row) for row in found.rows],
    }


def _row_json(row: Difference) -> dict[str, Any]:
    def known(value: Decimal | None) -> str | None:
        return None if value is None else f"{value:f}"

    return {
        "start": moment_text(row.start),
        "end": moment_text(row.end),
        "resource": row.resource,
        "invoice": known(row.theirs),
        "ours": known(row.ours),
        "difference": f"{row.amount:f}",
        "invoice_hours": known(row.their_hours),
        "our_hours": f"{row.our_hours:f}",
        "hours_without_windows": row.hours_without_windows,
        "causes": {part.cause: f"{part.amount:f}" for part in row.parts},
    }


def reconciliation_table(found: Reconciliation, range: TimeRange, currency: str, basis: str) -> Table:
    """The largest differences, by time, then the sums by cause."""
    differing = sorted((row for row in found.rows if row.parts), key=lambda row: -abs(row.amount))
    shown = sorted(differing[:ROWS_SHOWN], key=lambda row: (row.start, row.resource))
    more = f" The {ROWS_SHOWN} largest of {len(differing)} are shown." if len(differing) > ROWS_SHOWN else ""
    agree = len(found.rows) - len(differing)
    table = Table(
        title=f"Invoice beside ledger, by {found.grain}, {iso(range.start)} to {iso(range.end)} ({currency}, {basis})",
        caption=f"{agree} of {len(found.rows)} agree to the last digit.{more} Difference: invoice - ours",
    )
    for name in ("start", "resource"):
        table.add_column(name, no_wrap=True)
    for name in ("invoice h", "our h", "invoice", "ours", "difference"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("why")
    for row in shown:
        table.add_row(*_cells(row))
    table.add_section()
    for cause, amount in sorted(found.by_cause.items()):
        table.add_row("", "", "", "", "", "", f"{amount:.6f}", _meaning(cause), style="dim")
    total = ("total", "", "", "", f"{found.theirs:.6f}", f"{found.ours:.6f}", f"{found.difference:.6f}", "")
    table.add_row(*total, style="bold")
    return table


def _meaning(cause: str) -> str:
    return f"{cause}: {CAUSES[cause]}" if cause in CAUSES else cause


def _cells(row: Difference) -> list[str]:
    causes = ", ".join(part.cause if len(row.parts) == 1 else f"{part.cause} {part.amount:.6f}" for part in row.parts)
    silent = f" ({row.hours_without_windows} h without windows)" if row.hours_without_windows and row.our_hours else ""
    return [
        moment_text(row.start),
        row.resource,
        "" if row.their_hours is None else f"{row.their_hours:.3f}",
        f"{row.our_hours:.3f}",
        "" if row.theirs is None else f"{row.theirs:.6f}",
        "" if row.ours is None else f"{row.ours:.6f}",
        f"{row.amount:.6f}",
        causes + silent,
    ]


COMMANDS = {"reconcile": reconcile}
