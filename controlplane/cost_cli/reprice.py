"""`kadence cost reprice`: history by another sheet beside what was first reported; `close` puts that on record."""

from __future__ import annotations

import json
import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from sqlalchemy.exc import DBAPIError

from controlplane.cost_cli.amounts import money, plain
from controlplane.cost_cli.options import (
    AsJson,
    Config,
    DatabaseUrl,
    PricesFile,
    price_sheet,
    settings_of,
    stop,
    time_range,
)
from controlplane.cost_cli.report import BasisName
from controlplane.cost_cli.screen import screen
from controlplane.finops.pricing import PriceError, load_prices
from controlplane.finops.reprice import Repriced, Repricing
from controlplane.finops.reprice import reprice as priced_again
from controlplane.store.engine import StoreError, one_line
from controlplane.store.price_book import save_prices
from controlplane.store.price_history import close_hours, first_prices, machine_time
from controlplane.store.queries import TimeRange, open_ledger
from controlplane.store.time_range import iso

HOUR_S = 3600


class Unit(StrEnum):
    """What a row of `reprice` stands for."""

    DAY = "day"
    SKU = "sku"


def reprice(
    since: Annotated[str, typer.Option(help="Start: a duration before now (30d, 24h) or a UTC time.")],
    until: Annotated[str | None, typer.Option(help="End, likewise; default now.")] = None,
    prices: Annotated[
        Path | None, typer.Option(help="The sheet to price by; default: the one that a report goes by.")
    ] = None,
    by: Annotated[Unit, typer.Option(help="What a row stands for.")] = Unit.DAY,
    basis: Annotated[BasisName | None, typer.Option(help="Default: the first that the hours were priced on.")] = None,
    database_url: DatabaseUrl = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """What whole hours were first reported with, what they cost by a sheet, and the difference. Changes nothing."""
    settings = settings_of(config, database_url)
    try:
        asked = time_range(since, until, time.time())
    except ValueError as error:
        stop(str(error), 2)
    range = TimeRange(float(asked.start // HOUR_S * HOUR_S), float(-(-asked.end // HOUR_S) * HOUR_S))
    try:
        engine = open_ledger(settings.database_url)
        in_force = price_sheet(None, settings, engine)
        now = in_force if prices is None else load_prices(prices)
        first = first_prices(engine, range, in_force, basis.value if basis else None)
        chosen = basis.value if basis else first.default_basis
        result = priced_again(machine_time(engine, range), first, now, chosen, by.value)
    except (StoreError, PriceError) as error:
        stop(str(error), 1)
    except DBAPIError as error:
        stop(one_line(error), 1)
    if result.open_hours:
        typer.echo(
            f"warning: hours that are not on record yet: {result.open_hours} (`kadence cost close`, or a running "
            "endpoint, puts them there); their first price is that of the sheet in force",
            err=True,
        )
    if as_json:
        typer.echo(json.dumps(reprice_json(result, range, chosen, by.value)))
        return
    screen().print(reprice_table(result, range, chosen, by.value))


def reprice_json(result: Repricing, range: TimeRange, basis: str, by: str) -> dict[str, Any]:
    """Money as decimal strings, null where something is unpriced."""
    return {
        "range": {"start": iso(range.start), "end": iso(range.end)},
        "currency": result.currency,
        "basis": basis,
        "rows": [{by: row.key, **_row(row)} for row in result.rows],
        "total": _row(result.total),
        "open_hours": result.open_hours,
    }


def _row(row: Repriced) -> dict[str, Any]:
    return {
        "machine_s": row.ns / 1e9,
        "first": money(row.first_nano),
        "now": money(row.now_nano),
        "difference": money(row.difference_nano),
        "first_unpriced_s": row.first_unpriced_ns / 1e9,
        "now_unpriced_s": row.now_unpriced_ns / 1e9,
    }


def reprice_table(result: Repricing, range: TimeRange, basis: str, by: str) -> Table:
    table = Table(
        title=f"Priced again, {iso(range.start)} to {iso(range.end)} ({result.currency or 'no prices'}, {basis})",
        caption="first: with the price that each hour was first reported with",
    )
    table.add_column(by)
    for name in ("machine h", "first", "now", "difference"):
        table.add_column(name, justify="right", no_wrap=True)

    def cells(row: Repriced) -> list[str]:
        amounts = ["unpriced" if nano is None else plain(nano) for nano in (row.first_nano, row.now_nano)]
        difference = row.difference_nano
        change = "" if difference is None else ("-" if difference < 0 else "+") + plain(abs(difference))
        return [row.key, f"{row.ns / 3.6e12:.3f}", *amounts, change]

    for row in result.rows:
        table.add_row(*cells(row))
    table.add_section()
    table.add_row(*cells(result.total), style="bold")
    return table


def close(
    prices: PricesFile = None, database_url: DatabaseUrl = None, config: Config = None, as_json: AsJson = False
) -> None:
    """Put on record what hours cost by the sheet in force: those that ended over an hour ago and are not on record.

    A running endpoint does this once an hour. What is on record is never changed.
    """
    settings = settings_of(config, database_url)
    try:
        engine = open_ledger(settings.database_url)
        sheet = price_sheet(prices, settings, engine)
        if not sheet.prices and not sheet.text:
            stop(f"prices: there is no price sheet at {settings.prices}, and none in the database; every hour would go "
                 "on record as unpriced. Write one, or name it with --prices", 1)  # fmt: skip
        save_prices(engine, sheet, by="kadence cost close")
        closed = close_hours(engine, sheet, time.time())
    except (StoreError, PriceError) as error:
        stop(str(error), 1)
    except DBAPIError as error:
        stop(one_line(error), 1)
    if as_json:
        typer.echo(json.dumps({"closed": closed, "revision": sheet.revision}))
    else:
        typer.echo(f"{closed} hours of machines are on record now, at the prices of sheet {sheet.revision}")


COMMANDS = {"reprice": reprice, "close": close}
