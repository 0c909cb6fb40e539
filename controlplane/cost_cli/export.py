"""`kadence cost export`: the bill, cell by cell or by one dimension, as CSV, Parquet, JSON or FOCUS."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from sqlalchemy.exc import DBAPIError

from controlplane.cost_cli.amounts import money, nine
from controlplane.cost_cli.export_files import moment_text
from controlplane.cost_cli.export_run import Asked, Format, Written, ledger, write
from controlplane.cost_cli.options import (
    Config,
    DatabaseUrl,
    PricesFile,
    price_sheet,
    settings_of,
    stop,
    time_range,
)
from controlplane.cost_cli.priced_as import AS, PricedAs, prices_as
from controlplane.cost_cli.report import BasisName, Dimension, parse_filters
from controlplane.finops.carbon import NO_ZONE, carbon_grams
from controlplane.finops.export_cells import HOUR_S, Carbon, hour_start
from controlplane.finops.focus import FocusSource
from controlplane.finops.policy_hours import revisions_in
from controlplane.finops.pricing import PriceError
from controlplane.settings import Settings
from controlplane.store.engine import StoreError, one_line
from controlplane.store.policies import policy_history
from controlplane.store.queries import TimeRange
from controlplane.store.time_range import iso

LINES_SHOWN = 20
STDOUT = "-"
PROVIDER, ACCOUNT = "Kadence", "kadence"
"""Of FOCUS rows, unless said otherwise."""


class FocusVersion(StrEnum):
    """1.4 is provisional."""

    V1_2 = "1.2"
    V1_4 = "1.4"


def export(
    output: Annotated[str, typer.Option("--output", "-o", help="The file; it is replaced. - is standard output.")],
    format: Annotated[Format, typer.Option(help="focus: CSV, or Parquet where FILE ends in .parquet.")] = Format.CSV,
    focus_version: Annotated[FocusVersion, typer.Option(help="1.4 is provisional.")] = FocusVersion.V1_2,
    since: Annotated[str, typer.Option(help="Start: a duration before now (30d, 24h) or a UTC time.")] = "30d",
    until: Annotated[str | None, typer.Option(help="End, likewise; default: the last whole hour.")] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(help="Only this: cohort=chat. Again for one more value, or another dimension."),
    ] = None,
    by: Annotated[
        Dimension | None,
        typer.Option(help="One row a value of it; default: hour x sku x model x cohort x tenant x direction."),
    ] = None,
    basis: Annotated[
        BasisName | None, typer.Option(help="Which prices the bill is made with; default: the sheet's first.")
    ] = None,
    priced_as: Annotated[PricedAs, AS] = PricedAs.CURRENT,
    provider: Annotated[str, typer.Option(help="focus: who offers the service and issues its bill.")] = PROVIDER,
    billing_account: Annotated[str, typer.Option(help="focus: id of the billing account.")] = ACCOUNT,
    prices: PricesFile = None,
    database_url: DatabaseUrl = None,
    config: Config = None,
    as_json: Annotated[bool, typer.Option("--json", help="What was written, as one JSON object on stdout.")] = False,
) -> None:
    """The bill of whole hours, cell by cell. What has no price is null; FOCUS leaves it out, lists it and exits 1."""
    if output == STDOUT and (format is Format.PARQUET or as_json):
        stop("--output: - is for csv, json and focus without --json", 2)
    if by is not None and format is Format.FOCUS:
        stop("--by: FOCUS rows are of one hour, sku, model, cohort, tenant and direction; leave it away", 2)
    for flag, name in (("--provider", provider), ("--billing-account", billing_account)):
        if not name.strip():
            stop(f"{flag}: it is empty, and FOCUS has no row without one; leave it away for the default", 2)
    settings = settings_of(config, database_url)
    target = None if output == STDOUT else Path(output)
    try:
        if target is not None and not target.parent.is_dir():
            stop(f"--output: there is no folder {target.parent}", 2)
        if target is not None and target.is_dir():
            stop(f"--output: {target} is a folder", 2)
    except OSError as error:
        stop(f"--output: {error.strerror}", 2)
    try:
        range = whole_hours(time_range(since, until, time.time()), "--until" if until else "--since")
        wanted = parse_filters(where or ())
    except ValueError as error:
        stop(str(error), 2)
    try:
        with ledger(settings.database_url) as engine:
            sheet = prices_as(priced_as, engine, range, price_sheet(prices, settings, engine))
            chosen = basis.value if basis else sheet.default_basis
            asked = Asked(engine, range, sheet, chosen, wanted, by.value if by else None, carbon_by_hour(settings))
            source = focus_source(asked, focus_version.value, provider, billing_account)
            written = write(asked, format, source, target)
    except (StoreError, PriceError) as error:
        stop(str(error), 1)
    except DBAPIError as error:
        stop(one_line(error), 1)
    except ValueError as error:
        stop(str(error), 2)
    except BrokenPipeError:
        raise  # whoever reads standard output has seen enough
    except OSError as error:
        stop(f"--output: cannot write {output}: {error.strerror or error}", 1)
    is_ok = format is not Format.FOCUS or not written.unpriced
    _say(written, asked)
    if as_json:
        typer.echo(json.dumps(summary_json(written, asked, format, focus_version.value, output, is_ok)))
    elif target is not None:
        amount = "unpriced" if written.nano is None else f"{nine(written.nano)} {asked.prices.currency or ''}"
        more = " and what has no price" if written.unpriced and is_ok else ""
        held = "" if is_ok else "; what has no price was held back"
        typer.echo(f"{output}: {written.rows:,} rows, {amount}{more}{held}; {_range_told(range, written)}", err=True)
    raise typer.Exit(0 if is_ok else 1)


def focus_source(asked: Asked, version: str, provider: str = PROVIDER, account: str = ACCOUNT) -> FocusSource:
    """What FOCUS rows of that export say besides the bill: who issues it, by which policies, with which carbon."""
    applied = ((e.applied_at, e.revision) for e in policy_history(asked.engine, 1_000_000) if e.what == "applied")
    return FocusSource(
        asked.prices,
        asked.basis,
        version,
        provider,
        account,
        is_whole=not set(asked.where) - {"sku", "hour", "day"},
        carbon=asked.carbon,
        policy_in=revisions_in(applied),
    )


def whole_hours(asked: TimeRange, flag: str) -> TimeRange:
    """Both ends back to the full hour, so that no hour is exported in part. Raises ValueError naming the flag."""
    start, end = (float(edge // HOUR_S * HOUR_S) for edge in (asked.start, asked.end))
    if start >= end:
        raise ValueError(f"{flag}: an export is of whole hours, and {iso(asked.start)} to {iso(asked.end)} has none")
    return TimeRange(start, end)


def _range_told(range: TimeRange, written: Written) -> str:
    """What was looked at: an hour that is not over is left for the next export, and a first user wonders at 0 rows."""
    told = f"{iso(range.start)} to {iso(range.end)}"
    return told if written.rows else f"nothing is on record in the whole hours {told}"


def carbon_by_hour(settings: Settings) -> Carbon:
    """By the figure of each hour's own year."""
    zone, pue = settings.carbon_zone, settings.pue
    if zone == NO_ZONE:
        return lambda uj, at: None
    return lambda uj, at: carbon_grams(uj, zone, at, pue=pue)


def _say(written: Written, asked: Asked) -> None:
    lines = [use.line(why) for use, why in _reasons(written, asked)] or list(written.unpriced_lines)
    for line in lines[:LINES_SHOWN]:
        typer.echo(line, err=True)
    if len(lines) > LINES_SHOWN:
        typer.echo(f"... and {len(lines) - LINES_SHOWN} more stretches (--json lists all)", err=True)
    for line in written.warnings:
        typer.echo(f"warning: {line}", err=True)


def _reasons(written: Written, asked: Asked) -> Iterator[tuple[Any, str]]:
    for use in written.unpriced:
        yield use, asked.prices.why_unpriced(use.sku, asked.basis, float(use.first * HOUR_S))


def summary_json(
    written: Written, asked: Asked, format: Format, version: str, output: str, is_ok: bool
) -> dict[str, Any]:
    """What was written, and what had no price; money as decimal strings."""
    return {
        "ok": is_ok,
        "output": output,
        "format": format.value,
        "focus_version": version if format is Format.FOCUS else None,
        "range": {"start": iso(asked.range.start), "end": iso(asked.range.end)},
        "currency": asked.prices.currency,
        "basis": asked.basis,
        "rows": written.rows,
        "cost": money(written.nano),
        "unpriced": [
            {
                "sku": use.sku,
                "start": moment_text(hour_start(use.first)),
                "end": moment_text(hour_start(use.last + 1)),
                "cells": use.cells,
                "machine_s": use.ns / 1e9,
                "input_tokens": use.input_tokens,
                "emitted_tokens": use.emitted_tokens,
                "why": why,
            }
            for use, why in _reasons(written, asked)
        ],
        "warnings": [*written.unpriced_lines, *written.warnings],
    }


COMMANDS = {"export": export}
