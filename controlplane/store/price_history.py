"""What hours were first reported with: fixed once, some time after the hour, and read back as prices.

An hour is fixed by `close_hours`, which the controller calls once an hour and `kadence cost close` on request. Reading
a report fixes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.orm import InstrumentedAttribute

from controlplane.finops.pricing import BASES, FirstPrice, FirstPrices, Prices, PriceSheet
from controlplane.store.cost_models import MachineHour
from controlplane.store.engine import writing
from controlplane.store.price_models import HourPrice
from controlplane.store.time_range import TimeRange
from controlplane.store.write import insert

HOUR_S = 3600
SETTLE_S = 3600.0
"""How long after its end an hour is fixed: what workers still have to report has arrived by then, as a rule."""
AT_ONCE = 500
"""(hour, sku) fixed in one transaction, so that the journal never waits long for the write lock."""


class MachineTime(NamedTuple):
    """All machine time (nanoseconds) of a sku in an hour (since the unix epoch)."""

    hour: int
    sku: str
    ns: int


def close_hours(engine: sa.Engine, sheet: PriceSheet, now: float) -> int:
    """Fix, by the sheet in force, every hour with machine time that ended SETTLE_S before `now` and is not fixed yet.

    Returns how many (hour, sku) were fixed; 0 when nothing is left to do. What is fixed is never changed, whoever else
    calls this meanwhile. A sku whose first window of an hour arrives later is fixed then.
    """
    last = int((now - SETTLE_S) // HOUR_S) - 1
    fixed = sa.select(HourPrice.hour).where(HourPrice.hour == MachineHour.hour, HourPrice.sku == MachineHour.sku)
    query = (
        sa.select(MachineHour.hour, MachineHour.sku)
        .where(MachineHour.hour <= last, ~fixed.exists())
        .order_by(MachineHour.hour, MachineHour.sku)
    )
    with engine.connect() as connection:
        open_hours = [(int(hour), str(sku)) for hour, sku in connection.execute(query)]
    for some in _in_batches(open_hours):
        rows = [row for hour, sku in some for row in _first_prices(sheet, hour, sku, now)]
        with writing(engine).begin() as connection:
            connection.execute(insert(connection, HourPrice).on_conflict_do_nothing(), rows)
    return len(open_hours)


def _in_batches(hours: list[tuple[int, str]]) -> Iterator[list[tuple[int, str]]]:
    for start in range(0, len(hours), AT_ONCE):
        yield hours[start : start + AT_ONCE]


def _first_prices(sheet: PriceSheet, hour: int, sku: str, now: float) -> Iterator[dict[str, object]]:
    """One row a basis: that a basis was unpriced is on record too."""
    for basis in BASES:
        price = sheet.price_at(sku, basis, hour * HOUR_S)
        yield {
            "hour": hour,
            "sku": sku,
            "basis": basis,
            "per_hour_nano": None if price is None else price.per_hour_nano,
            "currency": None if price is None else price.currency,
            "revision": sheet.revision,
            "reported_at": now,
        }


def first_prices(engine: sa.Engine, range: TimeRange, sheet: Prices, basis: str | None = None) -> FirstPrices:
    """What the hours of the range were first reported with; hours that are not fixed yet are priced by `sheet`.

    basis: the only one that will be asked for (None: all), a quarter of the rows.
    Raises PriceError where they were reported in several currencies.
    """
    columns = (getattr(HourPrice, name) for name in FirstPrice._fields)
    query = sa.select(*columns).where(*_in_range(HourPrice.hour, range))
    if basis is not None:
        query = query.where(HourPrice.basis == basis)
    with engine.connect() as connection:
        return FirstPrices(tuple(FirstPrice(*row) for row in connection.execute(query)), sheet)


def machine_time(engine: sa.Engine, range: TimeRange) -> list[MachineTime]:
    """By hour and sku, for every hour that the range touches."""
    query = (
        sa.select(MachineHour.hour, MachineHour.sku, MachineHour.ns)
        .where(*_in_range(MachineHour.hour, range))
        .order_by(MachineHour.hour, MachineHour.sku)
    )
    with engine.connect() as connection:
        return [MachineTime(*row) for row in connection.execute(query)]


def _in_range(hour: InstrumentedAttribute[int], range: TimeRange) -> tuple[sa.ColumnElement[bool], ...]:
    return hour >= int(range.start // HOUR_S), hour < int(-(-range.end // HOUR_S))
