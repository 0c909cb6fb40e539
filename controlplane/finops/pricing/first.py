"""What hours were first reported with: prices that a later sheet does not change."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from functools import cached_property
from typing import NamedTuple, cast

from controlplane.finops.pricing.price import BASES, HOUR_S, NANO, Basis, Price, PriceError, Prices
from controlplane.finops.pricing.sheet import day, moment_of


class FirstPrice(NamedTuple):
    """What an hour (hours since the unix epoch) of a sku was first reported with, on one basis.

    per_hour_nano: None = it was unpriced. revision: of the price sheet that was in force. reported_at: unix seconds.
    """

    hour: int
    sku: str
    basis: str
    per_hour_nano: int | None
    currency: str | None
    revision: str
    reported_at: float


@dataclass(frozen=True)
class FirstPrices:
    """The prices that hours were first reported with (a `Prices`); hours not reported yet are priced by `sheet`.

    Raises PriceError where they are not of one currency, which no sum could hold.
    """

    reported: tuple[FirstPrice, ...]
    sheet: Prices = field(repr=False)

    def __post_init__(self) -> None:
        names = sorted({r.currency for r in self.reported if r.per_hour_nano is not None and r.currency})
        if len(names) > 1:
            raise PriceError([f"hours were first reported in {', '.join(names)}: ask for a time of one currency"])

    @cached_property
    def _by_key(self) -> dict[tuple[str, str], dict[int, FirstPrice]]:
        by_key: dict[tuple[str, str], dict[int, FirstPrice]] = defaultdict(dict)
        for r in self.reported:
            by_key[r.sku, r.basis][r.hour] = r
        return by_key

    @property
    def currency(self) -> str | None:
        """Of what was reported, else of the sheet."""
        found = (r.currency for r in self.reported if r.per_hour_nano is not None and r.currency)
        return next(found, self.sheet.currency)

    @property
    def default_basis(self) -> Basis:
        """First of on_demand, reserved, spot, owned that any hour was priced on; the sheet's where none was."""
        priced = {r.basis for r in self.reported if r.per_hour_nano is not None}
        return next((b for b in BASES if b in priced), self.sheet.default_basis)

    def first(self, sku: str, basis: str, when: float) -> FirstPrice | None:
        """What the hour of `when` (unix seconds) was first reported with; None = it was not reported yet."""
        return self._by_key.get((sku, basis), {}).get(int(when // HOUR_S))

    def price_at(self, sku: str, basis: str, when: float) -> Price | None:
        """The price that hour was first reported with; None = it was unpriced."""
        first = self.first(sku, basis, when)
        return self.sheet.price_at(sku, basis, when) if first is None else _price(first)

    def change_points(self, start: float, end: float) -> list[float]:
        """start, every moment in between at which a first reported price or the sheet may change, end; ascending."""
        edges = set(self.sheet.change_points(start, end))
        for by_hour in self._by_key.values():
            for hour, first in by_hour.items():
                for neighbour, edge in ((hour - 1, hour), (hour + 1, hour + 1)):
                    other = by_hour.get(neighbour)
                    if other is None or other.per_hour_nano != first.per_hour_nano:
                        edges.add(float(edge * HOUR_S))
        return [start, *sorted(t for t in edges if start < t < end), end]

    def why_unpriced(self, sku: str, basis: str, when: float) -> str:
        """One line for a person: as of which sheet it had no price."""
        first = self.first(sku, basis, when)
        if first is None:
            return self.sheet.why_unpriced(sku, basis, when)
        return f"{sku} had no {basis} price on {day(when)} when it was first reported (price revision {first.revision})"

    def why_stale(self, price: Price, when: float) -> str | None:
        """None for a price that was reported: how old it was then is what the revision's sheet says."""
        if self.first(price.sku, price.basis, price.effective_from) is not None:
            return None
        return self.sheet.why_stale(price, when)


def _price(first: FirstPrice) -> Price | None:
    if first.per_hour_nano is None:
        return None
    reported_on: date = moment_of(first.reported_at).date()
    return Price(
        sku=first.sku,
        basis=cast(Basis, first.basis),
        currency=first.currency or "",
        per_hour=Decimal(first.per_hour_nano) / NANO,
        region="",
        source=f"first reported with price revision {first.revision}",
        as_of=reported_on,
        effective_from=float(first.hour * HOUR_S),
        effective_to=float((first.hour + 1) * HOUR_S),
    )
