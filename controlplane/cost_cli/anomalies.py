"""`kadence cost anomalies`: hours in which a cohort's tokens cost unusually much or little, and the likely cause."""

from __future__ import annotations

import json
import time
from decimal import Decimal
from math import ceil, exp, floor
from typing import Annotated, Any

import typer
from rich.table import Table
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
from controlplane.cost_cli.report import BasisName
from controlplane.cost_cli.screen import screen
from controlplane.finops.anomaly import DEFAULT, Anomaly, Findings, Rule, find, hours_needed
from controlplane.finops.anomaly_text import cause_text, hour_text, percent, sentence
from controlplane.finops.pricing import PriceError
from controlplane.store.anomalies import hour_uses
from controlplane.store.engine import StoreError, one_line
from controlplane.store.queries import TimeRange, open_ledger, time_bounds
from controlplane.store.time_range import iso

HOUR_S = 3600


def anomalies(
    since: Annotated[str, typer.Option(help="Start: a duration before now (7d, 24h, 90m) or a UTC time.")] = "7d",
    until: Annotated[str | None, typer.Option(help="End, likewise; default now.")] = None,
    min_tokens: Annotated[
        int, typer.Option(min=1, help="Emitted tokens that an hour needs to be looked at, or to look back on.")
    ] = DEFAULT.min_tokens,
    threshold: Annotated[
        float, typer.Option(min=0.1, help="Robust z-score from which an hour is unusual.")
    ] = DEFAULT.threshold,
    basis: Annotated[
        BasisName | None, typer.Option(help="Which prices; default: the first of these that the sheet has.")
    ] = None,
    prices: PricesFile = None,
    database_url: DatabaseUrl = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Unusual hours by cohort, of cost and of energy per token, each with its likely cause."""
    settings = settings_of(config, database_url)
    try:
        range = time_range(since, until, time.time())
        rule = Rule(threshold=threshold, min_tokens=min_tokens)
    except ValueError as e:
        stop(str(e), 2)
    try:
        engine = open_ledger(settings.database_url)
        first, last = judged_hours(range, time_bounds(engine))
        sheet = price_sheet(prices, settings, engine)
        asked = basis or sheet.default_basis
        found = find(hour_uses(engine, hours_needed(first, last), sheet, asked), first, last, rule)
    except (StoreError, PriceError, DBAPIError) as e:
        stop(one_line(e), 1)
    currency = sheet.currency or ""
    if as_json:
        typer.echo(json.dumps(anomalies_json(found, range, currency, asked)))
        return
    console = screen()
    if found.anomalies:
        console.print(_table(found, currency))
    console.print(_summary(found), highlight=False)


def judged_hours(range: TimeRange, recorded: TimeRange | None) -> tuple[int, int]:
    """First and last (exclusive) hour since the unix epoch: whole ones, so not one that has not ended yet, and no more
    of them than were recorded.
    """
    first, last = ceil(range.start / HOUR_S), floor(range.end / HOUR_S)
    if recorded is None:
        return first, last
    return max(first, floor(recorded.start / HOUR_S)), min(last, ceil(recorded.end / HOUR_S))


def anomalies_json(found: Findings, range: TimeRange, currency: str, basis: str) -> dict[str, Any]:
    """The object that `--json` prints; money as decimal strings."""
    return {
        "range": {"start": iso(range.start), "end": iso(range.end)},
        "currency": currency or None,
        "basis": basis,
        "rows": [_row(each, currency) for each in found.anomalies],
        "hours": {"examined": found.examined, "too_few_tokens": found.thin, "too_little_before": found.young},
    }


def _row(each: Anomaly, currency: str) -> dict[str, Any]:
    value, usual = (
        str(Decimal(amount).quantize(Decimal("1e-6"))) if each.metric == "cost" else amount
        for amount in (each.value, each.usual)
    )
    return {
        "cohort": each.cohort,
        "hour": hour_text(each.hour),
        "metric": "cost_per_million_tokens" if each.metric == "cost" else "j_per_token",
        "value": value,
        "usual": usual,
        "change_percent": _percent(each.change),
        "z": round(each.z, 3),
        "cause": each.cause,
        "parts_percent": {factor: _percent(part) for factor, part in each.parts.items()},
        "baseline": each.baseline,
        "baseline_hours": each.hours,
        "sentence": sentence(each, currency),
    }


def _percent(change: float) -> float:
    return round(100.0 * (exp(change) - 1.0), 2)


def _table(found: Findings, currency: str) -> Table:
    table = Table()
    for name in ("hour (UTC)", "cohort", "per"):
        table.add_column(name)
    for name in ("value", "usual", "change", "z"):
        table.add_column(name, justify="right")
    table.add_column("likely cause")
    for each in found.anomalies:
        unit = f"million tokens, {currency}" if each.metric == "cost" else "token, J"
        table.add_row(
            hour_text(each.hour), each.cohort, unit, f"{each.value:.4g}", f"{each.usual:.4g}", percent(each.change),
            f"{each.z:+.1f}", f"{each.cause} {percent(each.parts[each.cause])}: {cause_text(each, currency)}",
        )  # fmt: skip
    return table


def _summary(found: Findings) -> str:
    return (
        f"{len(found.anomalies)} unusual of {found.examined} hours of cohorts; {found.thin} more had too few tokens, "
        f"{found.young} too little before them to say what is usual."
    )


COMMANDS = {"anomalies": anomalies}
