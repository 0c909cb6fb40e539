"""`kadence cost report`: what a stretch of time cost, by cohort, model, tenant or hour, with idle apart."""

from __future__ import annotations

import json
import time
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NoReturn

import sqlalchemy as sa
import typer
from rich.console import Console
from rich.table import Table
from sqlalchemy.exc import DBAPIError

from controlplane.cost_cli.priced_as import AS, PricedAs, prices_as
from controlplane.finops.pricing import NANO, PriceError, PriceSheet, load_prices
from controlplane.settings import Settings, SettingsError, load_settings
from controlplane.store.engine import StoreError, one_line
from controlplane.store.price_book import stored_prices
from controlplane.store.queries import CostReport, CostRow, TimeRange, cost_report, open_ledger, time_bounds
from controlplane.store.time_range import iso, parse_moment


class Dimension(StrEnum):
    COHORT = "cohort"
    MODEL = "model"
    TENANT = "tenant"
    HOUR = "hour"


class BasisName(StrEnum):
    ON_DEMAND = "on_demand"
    RESERVED = "reserved"
    SPOT = "spot"
    OWNED = "owned"


def report(
    by: Annotated[Dimension, typer.Option(help="What a row stands for.")] = Dimension.COHORT,
    since: Annotated[str, typer.Option(help="Start: a duration before now (7d, 24h, 90m) or a UTC time.")] = "7d",
    until: Annotated[str | None, typer.Option(help="End, likewise; default now.")] = None,
    basis: Annotated[
        BasisName | None, typer.Option(help="Which prices; default: the first of these that the sheet has.")
    ] = None,
    prices: Annotated[
        Path | None, typer.Option(help="Price sheet; default: the configured one, else the one in the database.")
    ] = None,
    priced_as: Annotated[PricedAs, AS] = PricedAs.CURRENT,
    database_url: Annotated[str | None, typer.Option(help="Database; default: the configured one.")] = None,
    config: Annotated[Path | None, typer.Option(help="YAML file of settings.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Cost and energy by one dimension; rows + idle = the bill."""
    try:
        settings = load_settings(config, database_url=database_url)
        range = time_range(since, until, time.time())
    except (SettingsError, ValueError) as e:
        _stop(str(e), 2)
    try:
        engine = open_ledger(settings.database_url)
        sheet = prices_as(priced_as, engine, range, price_sheet(prices, settings, engine))
        result = cost_report(engine, range, by.value, sheet, basis.value if basis else None)
        bounds = time_bounds(engine)
    except (StoreError, PriceError) as e:
        _stop(str(e), 1)
    except DBAPIError as e:
        _stop(one_line(e), 1)
    for line in (*result.unpriced, *result.warnings):
        typer.echo(f"warning: {line}", err=True)
    if as_json:
        typer.echo(json.dumps(report_json(result, by.value, range)))
        return
    console = Console()
    if not console.is_terminal:  # into a file or a pipe there is no width to fit: keep every figure whole
        console = Console(width=160)
    console.print(report_table(result, by.value, range))
    if not result.machine_s:
        known = f"it covers {iso(bounds.start)} to {iso(bounds.end)}" if bounds else "it is empty"
        console.print(f"No windows in this range; the ledger: {known}.", highlight=False)


def time_range(since: str, until: str | None, now: float) -> TimeRange:
    """Raises ValueError naming the flag."""
    moments = {}
    for flag, text in (("--since", since), ("--until", until)):
        try:
            moments[flag] = now if text is None else parse_moment(text, now)
        except ValueError as e:
            raise ValueError(f"{flag}: {e}") from None
    if moments["--since"] >= moments["--until"]:
        raise ValueError(f"--since: {iso(moments['--since'])} is not before the end, {iso(moments['--until'])}")
    return TimeRange(moments["--since"], moments["--until"])


def price_sheet(named: Path | None, settings: Settings, engine: sa.Engine) -> PriceSheet:
    """The file that was named, else the configured file if it is there, else the database's price book."""
    if named is not None:
        return load_prices(named)
    if settings.prices.exists():
        return load_prices(settings.prices)
    return stored_prices(engine)


def report_json(result: CostReport, by: str, range: TimeRange) -> dict[str, Any]:
    """The report as design.md section 6 fixes it; money as decimal strings, unknown as null."""
    return {
        "range": {"start": iso(range.start), "end": iso(range.end)},
        "currency": result.currency,
        "basis": result.basis,
        "rows": [{by: row.key, **_row_json(row)} for row in result.rows],
        "idle": _row_json(result.idle),
        "total": _row_json(result.total),
        "machine_s": round(result.machine_s, 6),
        "unpriced": list(result.unpriced),
        "warnings": list(result.warnings),
    }


def _row_json(row: CostRow) -> dict[str, Any]:
    per_million = row.cost_per_million_tokens
    return {
        "input_tokens": row.input_tokens,
        "emitted_tokens": row.emitted_tokens,
        "requests": row.requests,
        "cost": money(row.cost_nano),
        "cost_per_million_tokens": None if per_million is None else f"{per_million:f}",
        "energy_j": _joules(row.energy_uj),
        "energy_source": row.energy_source,
        "j_per_token": row.j_per_token,
        "wasted_cost": money(row.wasted_cost_nano),
        "wasted_j": _joules(row.wasted_uj),
    }


def money(nano: int | None) -> str | None:
    """Nano-units as a decimal string with all nine decimals; None = unpriced."""
    return None if nano is None else f"{Decimal(nano) / NANO:.9f}"


def _joules(microjoules: int | None) -> float | None:
    return None if microjoules is None else microjoules / 1e6


def report_table(result: CostReport, by: str, range: TimeRange) -> Table:
    currency = result.currency or "no prices"
    is_measured = result.total.energy_uj is not None
    table = Table(
        title=f"Cost by {by}, {iso(range.start)} to {iso(range.end)} ({currency}, {result.basis})",
        caption="input, emitted: tokens. per 1M: cost of a million emitted tokens; of the total, idle is in it. "
        "rows + idle = total" + ("" if is_measured else ". Energy: not measured"),
    )
    table.add_column(by)
    energy = ("energy J", "J/token") if is_measured else ()
    for name in ("requests", "input", "emitted", "cost", "per 1M", "wasted", *energy):
        table.add_column(name, justify="right", no_wrap=True)
    for row in result.rows:
        table.add_row(*_cells(row, is_measured))
    table.add_section()
    table.add_row(*_cells(result.idle, is_measured), style="dim")
    table.add_row(*_cells(result.total, is_measured), style="bold")
    return table


def _cells(row: CostRow, with_energy: bool) -> list[str]:
    per_million, per_token = row.cost_per_million_tokens, row.j_per_token
    is_idle = row.key == "idle"
    energy = [
        "none" if row.energy_uj is None else f"{row.energy_uj / 1e6:,.1f}",
        "" if per_token is None else f"{per_token:.3f}",
    ]
    return [
        row.key,
        "" if is_idle else f"{row.requests:,}",
        "" if is_idle else f"{row.input_tokens:,}",
        "" if is_idle else f"{row.emitted_tokens:,}",
        "unpriced" if row.cost_nano is None else f"{Decimal(row.cost_nano) / NANO:.6f}",
        "" if per_million is None else f"{per_million:.4f}",
        "" if is_idle or row.wasted_cost_nano is None else f"{Decimal(row.wasted_cost_nano) / NANO:.6f}",
        *(energy if with_energy else ()),
    ]


def _stop(message: str, code: int) -> NoReturn:
    typer.echo(message, err=True)
    raise typer.Exit(code)


COMMANDS = {"report": report}
