"""`kadence cost prices`: check a price sheet, show what is in force, and the sheets before it."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from sqlalchemy.exc import DBAPIError

from controlplane.cost_cli.amounts import nine, plain
from controlplane.cost_cli.options import AsJson, Config, DatabaseUrl, PricesFile, price_sheet, settings_of, stop
from controlplane.cost_cli.screen import screen
from controlplane.finops.pricing import Price, PriceError, PriceSheet, load_prices
from controlplane.finops.pricing.parse import problem_line
from controlplane.finops.pricing.sheet import hour
from controlplane.settings import Settings
from controlplane.store.engine import StoreError, one_line
from controlplane.store.price_book import sheets_in_force
from controlplane.store.queries import open_ledger
from controlplane.store.time_range import iso, parse_moment

prices_app = typer.Typer(no_args_is_help=True, help="Check a price sheet, show what is in force, and its history.")


@prices_app.callback()
def prices() -> None:
    """Check a price sheet, show what is in force, and its history."""


@prices_app.command()
def check(
    file: Annotated[
        Path | None, typer.Argument(help="The price sheet; default: the configured one.", metavar="[FILE]")
    ] = None,
    strict: Annotated[bool, typer.Option(help="Missing periods and stale prices are problems too.")] = False,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Every problem of a sheet with its line; missing periods and stale prices as warnings. Exit 1 when it is bad."""
    path = file or settings_of(config).prices
    problems: Sequence[str] = ()
    remarks: Sequence[str] = ()
    sheet = PriceSheet()
    try:
        sheet = load_prices(path)
        remarks = [problem_line(str(path), remark) for remark in sheet.remarks(time.time())]
    except PriceError as error:
        problems = error.problems
    is_ok = not problems and not (strict and remarks)
    if as_json:
        said = {"ok": is_ok, "file": str(path), "problems": list(problems), "warnings": list(remarks)}
        typer.echo(json.dumps({**said, "prices": len(sheet.prices), "currency": sheet.currency}))
    else:
        for line in (*problems, *(f"warning: {remark}" for remark in remarks)):
            typer.echo(line, err=True)
        if is_ok:
            bases = ", ".join(dict.fromkeys(p.basis for p in sheet.prices)) or "no basis"
            typer.echo(f"{path}: {len(sheet.prices)} prices, {sheet.currency or 'no currency'}, {bases}")
    raise typer.Exit(0 if is_ok else 1)


@prices_app.command()
def show(
    prices: PricesFile = None,
    at: Annotated[str | None, typer.Option(help="When: a duration before now or a UTC time; default now.")] = None,
    database_url: DatabaseUrl = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """What is in force, by sku and basis, with where and when it was read; owned hours taken apart."""
    settings = settings_of(config, database_url)
    try:
        when = time.time() if at is None else parse_moment(at, time.time())
    except ValueError as error:
        stop(f"--at: {error}", 2)
    sheet = sheet_of(prices, settings)
    found = sorted((p for p in sheet.prices if p.covers(when)), key=lambda p: (p.sku, p.basis))
    for remark in sheet.remarks(when):
        typer.echo(f"warning: {remark.message}", err=True)
    if as_json:
        said = {"at": iso(when), "currency": sheet.currency, "revision": sheet.revision}
        typer.echo(json.dumps({**said, "prices": [price_json(p) for p in found]}))
        return
    table = Table(title=f"Prices in force at {iso(when)} ({sheet.currency or 'no prices'}), revision {sheet.revision}")
    for name in ("sku", "basis"):
        table.add_column(name, no_wrap=True)
    for name in ("an hour", "capital", "electricity"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("since", "until", "read on", "region", "source"):
        table.add_column(name)
    for p in found:
        parts = [plain(part) for part in p.owned.parts_nano] if p.owned else ["", ""]
        until = "" if p.effective_to is None else hour(p.effective_to)
        table.add_row(p.sku, p.basis, plain(p.per_hour_nano), *parts, hour(p.effective_from), until,
                      p.as_of.isoformat(), p.region, p.source)  # fmt: skip
    screen().print(table)


@prices_app.command()
def history(
    revision: Annotated[str | None, typer.Option(help="Print the text of this sheet instead.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many, newest first.")] = 50,
    database_url: DatabaseUrl = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """The sheets that were in force, newest first: since when, and who put them there."""
    settings = settings_of(config, database_url)
    try:
        found = sheets_in_force(open_ledger(settings.database_url), 10**6 if revision else limit)
    except StoreError as error:
        stop(str(error), 1)
    except DBAPIError as error:
        stop(one_line(error), 1)
    if revision is not None:
        text = next((entry.text for entry in found if entry.revision == revision), None)
        if text is None:
            stop(f"--revision: no price sheet {revision} was in force; `kadence cost prices history` lists them", 2)
        typer.echo(json.dumps({"revision": revision, "text": text}) if as_json else text)
        return
    rows = [{"revision": e.revision, "applied_at": iso(e.applied_at), "applied_by": e.applied_by} for e in found]
    if as_json:
        typer.echo(json.dumps({"revisions": rows}))
        return
    table = Table(title="Price sheets in force, newest first")
    for name in ("since", "revision", "by"):
        table.add_column(name)
    for row in rows:
        table.add_row(row["applied_at"], row["revision"], row["applied_by"])
    screen().print(table)


def price_json(price: Price) -> dict[str, Any]:
    """Money as decimal strings; `owned` null where the hour was not built from capex."""
    owned = None
    if price.owned is not None:
        terms = {name: f"{getattr(price.owned, name):f}" for name in price.owned.__dataclass_fields__}
        capital, electricity = price.owned.parts_nano
        owned = {**terms, "capital_per_hour": nine(capital), "electricity_per_hour": nine(electricity)}
    return {
        "sku": price.sku,
        "basis": price.basis,
        "per_hour": nine(price.per_hour_nano),
        "list_per_hour": None if price.list_per_hour is None else f"{price.list_per_hour:f}",
        "owned": owned,
        "region": price.region,
        "source": price.source,
        "as_of": price.as_of.isoformat(),
        "effective_from": iso(price.effective_from),
        "effective_to": None if price.effective_to is None else iso(price.effective_to),
    }


def sheet_of(named: Path | None, settings: Settings) -> PriceSheet:
    """As a report takes it: the named file, the configured one where it is there, else that of the database."""
    try:
        if named is not None or settings.prices.exists():
            return load_prices(named or settings.prices)  # no database is needed
        return price_sheet(None, settings, open_ledger(settings.database_url))
    except (PriceError, StoreError) as error:
        stop(str(error), 1)
    except DBAPIError as error:
        stop(one_line(error), 1)
