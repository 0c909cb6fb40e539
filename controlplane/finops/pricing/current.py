"""What machines cost right now, small enough to be told once a second."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from controlplane.finops.pricing.sheet import PriceSheet


@dataclass(frozen=True, slots=True)
class MachinePrices:
    """Prices in force at one moment: (sku, basis) -> nano-units of the currency an hour. What is not there is unpriced.

    currency: None for a sheet without prices. basis: the sheet's default.
    """

    currency: str | None = None
    basis: str = "on_demand"
    per_hour_nano: Mapping[tuple[str, str], int] = field(default_factory=dict)


def machine_prices(sheet: PriceSheet, when: float) -> MachinePrices:
    """The sheet's prices that hold at `when` (unix seconds)."""
    per_hour: dict[tuple[str, str], int] = {(p.sku, p.basis): p.per_hour_nano for p in sheet.prices if p.covers(when)}
    return MachinePrices(sheet.currency, sheet.default_basis, per_hour)
