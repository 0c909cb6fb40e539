"""`kadence cost report`: what a stretch of time cost, by one dimension, with idle apart."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated

import typer
from sqlalchemy.exc import DBAPIError

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
from controlplane.cost_cli.priced_as import AS, PricedAs, prices_as
from controlplane.cost_cli.report_format import report_json, report_table
from controlplane.cost_cli.screen import screen
from controlplane.finops.carbon import Carbon, carbon_between
from controlplane.finops.pricing import PriceError
from controlplane.settings import Settings
from controlplane.store.cost import cost_reports
from controlplane.store.cost_dimensions import parse_where
from controlplane.store.engine import StoreError, one_line
from controlplane.store.queries import TimeRange, open_ledger, time_bounds
from controlplane.store.time_range import iso


class Dimension(StrEnum):
    COHORT = "cohort"
    TENANT = "tenant"
    MODEL = "model"
    SKU = "sku"
    DIRECTION = "direction"
    HOUR = "hour"
    DAY = "day"


class BasisName(StrEnum):
    ON_DEMAND = "on_demand"
    RESERVED = "reserved"
    SPOT = "spot"
    OWNED = "owned"


class ReportBasis(StrEnum):
    ON_DEMAND = "on_demand"
    RESERVED = "reserved"
    SPOT = "spot"
    OWNED = "owned"
    ALL = "all"


class IdleName(StrEnum):
    NONE = "none"
    WEIGHTED = "weighted"
    EVEN = "even"


def report(
    by: Annotated[Dimension, typer.Option(help="What a row stands for.")] = Dimension.COHORT,
    where: Annotated[
        list[str] | None,
        typer.Option(
            help="Only this: cohort=chat. Again for one more value, or another dimension. What is left is rest."
        ),
    ] = None,
    since: Annotated[str, typer.Option(help="Start: a duration before now (7d, 24h, 90m) or a UTC time.")] = "7d",
    until: Annotated[str | None, typer.Option(help="End, likewise; default now.")] = None,
    basis: Annotated[
        ReportBasis | None,
        typer.Option(help="Which prices; default: the first of these that the sheet has. all: side by side."),
    ] = None,
    idle: Annotated[
        IdleName, typer.Option(help="Idle time: a row of its own (none), or spread over the rows.")
    ] = IdleName.NONE,
    prices: PricesFile = None,
    priced_as: Annotated[PricedAs, AS] = PricedAs.CURRENT,
    database_url: DatabaseUrl = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Cost and energy by one dimension; rows + rest + idle = the bill."""
    settings = settings_of(config, database_url)
    try:
        range = time_range(since, until, time.time())
        filters = parse_filters(where or ())
    except ValueError as e:
        stop(str(e), 2)
    try:
        engine = open_ledger(settings.database_url)
        sheet = prices_as(priced_as, engine, range, price_sheet(prices, settings, engine))
        bases: tuple[str, ...] = (basis or sheet.default_basis,) if basis != ReportBasis.ALL else ()
        results = cost_reports(engine, range, by.value, sheet, bases, where=filters, idle=idle.value)
        bounds = time_bounds(engine)
        carbon, carbon_warning = carbon_of(settings, range)
    except (StoreError, PriceError) as e:
        stop(str(e), 1)
    except DBAPIError as e:
        stop(one_line(e), 1)
    main = sheet.default_basis if sheet.default_basis in results else next(iter(results))
    for line in dict.fromkeys(line for each in results.values() for line in (*each.unpriced, *each.warnings)):
        typer.echo(f"warning: {line}", err=True)
    if carbon_warning:
        typer.echo(f"warning: {carbon_warning}", err=True)
    if as_json:
        typer.echo(json.dumps(report_json(results, main, by.value, range, carbon)))
        return
    console = screen(width=180)
    console.print(report_table(results, main, by.value, range, carbon))
    if not results[main].machine_s:
        known = f"it covers {iso(bounds.start)} to {iso(bounds.end)}" if bounds else "it is empty"
        console.print(f"No windows in this range; the ledger: {known}.", highlight=False)
    elif filters and not results[main].rows:
        asked = ", ".join(where or ())
        console.print(f"Nothing in this range has {asked} (--where): all of it is in the rest.", highlight=False)


def parse_filters(where: Sequence[str]) -> dict[str, list[str]]:
    """`--where` as dimension -> values. Raises ValueError naming the flag."""
    filters: dict[str, list[str]] = {}
    for text in where:
        name, equals, value = text.partition("=")
        if not equals or not name.strip() or not value.strip():
            raise ValueError(f"--where: {text!r} is not written as DIMENSION=VALUE, such as cohort=chat")
        filters.setdefault(name.strip(), []).append(value.strip())
    try:
        parse_where(filters)
    except ValueError as e:
        raise ValueError(f"--{e}") from None
    return filters


def carbon_of(settings: Settings, range: TimeRange) -> tuple[Carbon | None, str | None]:
    """What the range's energy is counted with in grams of CO2, and a line on why it is not."""
    try:
        return carbon_between(settings.carbon_zone, range.start, range.end, settings.pue), None
    except ValueError as e:
        return None, str(e)


COMMANDS = {"report": report}
