"""What the commands of `kadence cost` have in common: options, settings, a range, a price sheet, and how they end."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NoReturn

import sqlalchemy as sa
import typer

from controlplane.finops.pricing import PriceSheet, load_prices
from controlplane.settings import Settings, SettingsError, load_settings
from controlplane.store.price_book import stored_prices
from controlplane.store.time_range import TimeRange, iso, parse_moment

AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]
Config = Annotated[Path | None, typer.Option(help="YAML file of settings.")]
DatabaseUrl = Annotated[str | None, typer.Option(help="Database; default: the configured one.")]
PricesFile = Annotated[
    Path | None, typer.Option(help="Price sheet; default: the configured one, else the one in the database.")
]


def settings_of(config: Path | None, database_url: str | None = None) -> Settings:
    """The settings, or the end of the command."""
    try:
        return load_settings(config, database_url=database_url)
    except SettingsError as error:
        stop(str(error), 2)


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


def stop(message: str, code: int) -> NoReturn:
    """End the command with why."""
    typer.echo(message, err=True)
    raise typer.Exit(code)
