"""The tables of price history. Units as in models.py."""

from __future__ import annotations

from sqlalchemy import UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from controlplane.store.models import Base, RowId


class PriceRevision(Base):
    """A price sheet as it came into force: the text, when and by whom. The newest is the one in force.

    A sheet that comes back after another one was in force is one more row.
    """

    __tablename__ = "price_revision"
    __table_args__ = (UniqueConstraint("applied_at", "revision"),)

    id: Mapped[int] = mapped_column(RowId, primary_key=True)
    revision: Mapped[str]
    applied_at: Mapped[float]
    applied_by: Mapped[str]
    text: Mapped[str]


class HourPrice(Base):
    """What an hour of a sku was first reported with, by basis: written once, some time after the hour, never changed.

    per_hour_nano, currency: null = it was unpriced. revision: of the price sheet that was in force then. A (hour, sku)
    that has one of these has one for every basis.
    """

    __tablename__ = "hour_price"

    hour: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    sku: Mapped[str] = mapped_column(primary_key=True)
    basis: Mapped[str] = mapped_column(primary_key=True)
    per_hour_nano: Mapped[int | None]
    currency: Mapped[str | None]
    revision: Mapped[str]
    reported_at: Mapped[float]
