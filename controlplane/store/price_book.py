"""The price sheet in the database, for readers that see nothing but the database, and the sheets before it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import cast

import sqlalchemy as sa

from controlplane.finops.pricing import NANO, Basis, Price, PriceSheet, parse_prices
from controlplane.store.engine import writing
from controlplane.store.models import PriceEntry
from controlplane.store.price_models import PriceRevision


@dataclass(frozen=True, slots=True)
class SheetInForce:
    """A price sheet that came into force at applied_at (unix seconds), and by whom."""

    revision: str
    applied_at: float
    applied_by: str
    text: str


def save_prices(engine: sa.Engine, sheet: PriceSheet, by: str = "kadence", at: float | None = None) -> bool:
    """Put the sheet in force: it becomes the newest revision, and `price` holds its lines and no others.

    at: unix seconds, now where it is not given. Returns False, and changes nothing, where that very sheet is in force.
    """
    newest = sa.select(PriceRevision.revision).order_by(PriceRevision.id.desc()).limit(1)
    with writing(engine).begin() as connection:
        if connection.dialect.name == "postgresql":
            # Two processes that save at once: the second one looks after the first one has written.
            connection.execute(sa.text("LOCK TABLE price_revision IN EXCLUSIVE MODE"))
        if connection.scalar(newest) == sheet.revision:
            return False
        connection.execute(
            sa.insert(PriceRevision).values(
                revision=sheet.revision,
                applied_at=time.time() if at is None else at,
                applied_by=by,
                text=sheet.written,
            )
        )
        connection.execute(sa.delete(PriceEntry))
        if sheet.prices:
            connection.execute(sa.insert(PriceEntry), [_row(p) for p in sheet.prices])
    return True


def _row(price: Price) -> dict[str, object]:
    return {
        "sku": price.sku,
        "basis": price.basis,
        "currency": price.currency,
        "per_hour_nano": price.per_hour_nano,
        "region": price.region,
        "source": price.source,
        "as_of": price.as_of.isoformat(),
        "effective_from": price.effective_from,
        "effective_to": price.effective_to,
    }


def stored_prices(engine: sa.Engine) -> PriceSheet:
    """The sheet that was saved last; an empty one before that.

    Raises PriceError where it was saved by a release that allowed what this one does not.
    """
    found = sheets_in_force(engine, limit=1)
    if found:
        return parse_prices(found[0].text, source=f"price sheet {found[0].revision} in the database")
    return _sheet_of_before_revisions(engine)


def sheets_in_force(engine: sa.Engine, limit: int = 50) -> list[SheetInForce]:
    """The newest `limit` sheets, newest first; the first one is in force."""
    columns = (PriceRevision.revision, PriceRevision.applied_at, PriceRevision.applied_by, PriceRevision.text)
    with engine.connect() as connection:
        rows = connection.execute(sa.select(*columns).order_by(PriceRevision.id.desc()).limit(limit))
        return [SheetInForce(*row) for row in rows]


def _sheet_of_before_revisions(engine: sa.Engine) -> PriceSheet:
    """From the lines alone, of a database that was filled before revision 0005."""
    query = sa.select(PriceEntry.__table__).order_by(PriceEntry.id)
    with engine.connect() as connection:
        rows = connection.execute(query).mappings().all()
    return PriceSheet(
        tuple(
            Price(
                sku=row["sku"],
                basis=cast(Basis, row["basis"]),
                currency=row["currency"],
                per_hour=Decimal(row["per_hour_nano"]) / NANO,
                region=row["region"],
                source=row["source"],
                as_of=date.fromisoformat(row["as_of"]),
                effective_from=row["effective_from"],
                effective_to=row["effective_to"],
            )
            for row in rows
        )
    )
