"""The price sheet in the database, for readers that see nothing but the database."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from typing import cast

import sqlalchemy as sa

from controlplane.finops.pricing import NANO, Basis, Price, PriceSheet
from controlplane.store.engine import writing
from controlplane.store.models import PriceEntry


def save_prices(engine: sa.Engine, sheet: PriceSheet) -> None:
    """Make the stored price book equal to the sheet: what the sheet no longer names is gone."""
    rows = [
        {
            "sku": p.sku,
            "basis": p.basis,
            "currency": p.currency,
            "per_hour_nano": p.per_hour_nano,
            "region": p.region,
            "source": p.source,
            "as_of": p.as_of.isoformat(),
            "effective_from": p.effective_from,
            "effective_to": p.effective_to,
        }
        for p in sheet.prices
    ]
    with writing(engine).begin() as connection:
        connection.execute(sa.delete(PriceEntry))
        if rows:
            connection.execute(sa.insert(PriceEntry), rows)


def stored_prices(engine: sa.Engine) -> PriceSheet:
    """The price book as it was saved last; an empty sheet before that."""
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
