"""`kadence policy plan`: what a policy would change, from the recorded traffic, before anyone applies it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from controlplane.policy import Policy
from controlplane.policy_cli.common import WRONG_USE, AsJson, File, load, stop
from controlplane.policy_cli.journal import Since, Until, moments, shown
from controlplane.policy_cli.records import Config, DatabaseUrl, ledger

if TYPE_CHECKING:
    import sqlalchemy as sa

    from controlplane.finops.pricing import PriceSheet


def plan(
    file: File,
    since: Since = "24h",
    until: Until = None,
    against: Annotated[
        Path | None, typer.Option(help="The policy to compare with; default: the last one that was put in force.")
    ] = None,
    prices: Annotated[
        Path | None, typer.Option(help="Price sheet; default: the configured one, else the one in the database.")
    ] = None,
    database_url: DatabaseUrl = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """What a policy would change, from recorded traffic: cohorts, K, speed, latency, money, energy. Changes nothing."""
    from controlplane.policy_cli.planned import planned

    new = load(file, as_json)
    engine, range = ledger(config, database_url, as_json), moments(since, until, as_json)
    old = load(against, as_json) if against else _in_force(engine, as_json)
    sheet = _prices(prices, config, engine, as_json)
    said = planned(engine, range, new, old, sheet, lambda ticks, total: shown(ticks, "planning", total))
    if as_json:
        typer.echo(json.dumps(said.as_json()))
        return
    for line in said.lines():
        typer.echo(line)
    for warning in said.warnings:
        typer.echo(f"warning: {warning}", err=True)


COMMANDS = {"plan": plan}


def _in_force(engine: sa.Engine, as_json: bool) -> Policy:
    from controlplane.store.policies import policy_in_force

    try:
        return policy_in_force(engine)
    except ValueError as error:
        stop(f"{error}; name the one to compare with by --against", as_json)


def _prices(named: Path | None, config: Path | None, engine: sa.Engine, as_json: bool) -> PriceSheet:
    """The file that was named, else the configured file if it is there, else the database's price book."""
    from controlplane.finops.pricing import PriceError, load_prices
    from controlplane.settings import load_settings
    from controlplane.store.price_book import stored_prices

    path = named or load_settings(config).prices
    try:
        return load_prices(path) if named or path.exists() else stored_prices(engine)
    except PriceError as error:
        stop(str(error), as_json, WRONG_USE if named else 1)
