"""`--as current|first`: by the sheet of now, or with what each hour was first reported with."""

from __future__ import annotations

from enum import StrEnum

import sqlalchemy as sa
import typer

from controlplane.finops.pricing import PriceError, Prices, PriceSheet
from controlplane.store.price_history import first_prices
from controlplane.store.time_range import TimeRange

AS = typer.Option("--as", help="current: by the sheet; first: with the prices that hours were first reported with.")


class PricedAs(StrEnum):
    """Which prices history is shown with."""

    CURRENT = "current"
    FIRST = "first"


def prices_as(
    which: PricedAs, engine: sa.Engine, range: TimeRange, sheet: PriceSheet, basis: str | None = None
) -> Prices:
    """The sheet, or the first reported prices of the range, with the sheet for hours that are not on record yet.

    basis: the only one that will be asked for; None: all.

    Raises PriceError where the hours were first reported in several currencies, or in another one than the sheet's.
    """
    if which is PricedAs.CURRENT:
        return sheet
    first = first_prices(engine, range, sheet, basis)
    if sheet.currency not in (None, first.currency):
        raise PriceError(
            [f"--as first: hours were first reported in {first.currency}, the sheet is in {sheet.currency}"]
        )
    return first
