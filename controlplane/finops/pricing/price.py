"""One price, and what every source of prices answers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from typing import Literal, Protocol, get_args

from controlplane.finops.pricing.owned import OwnedTerms

Basis = Literal["on_demand", "reserved", "spot", "owned"]
BASES: tuple[Basis, ...] = get_args(Basis)

NANO = Decimal(10) ** 9
HOUR_S = 3600


class PriceError(ValueError):
    """Prices that cannot be used; `problems` holds one line each, str() all of them."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))


@dataclass(frozen=True, slots=True)
class Price:
    """What one worker of that sku costs an hour. Valid from effective_from (unix seconds) until effective_to
    (exclusive; None = until further notice), both on whole hours UTC. as_of: the day it was read from `source`.

    list_per_hour: what the same hour is listed at, where per_hour is a negotiated or committed price. owned: the terms
    that per_hour was built from. line: where it is in its file.
    """

    sku: str
    basis: Basis
    currency: str
    per_hour: Decimal
    region: str
    source: str
    as_of: date
    effective_from: float
    effective_to: float | None = None
    list_per_hour: Decimal | None = None
    owned: OwnedTerms | None = None
    line: int | None = field(default=None, compare=False)

    @property
    def per_hour_nano(self) -> int:
        """Integer nano-units an hour; exact, because a sheet allows nine decimals at most."""
        return int(self.per_hour * NANO)

    def covers(self, when: float) -> bool:
        return self.effective_from <= when and (self.effective_to is None or when < self.effective_to)


class Prices(Protocol):
    """Where a report takes its prices from: a sheet, or what hours were first reported with (FirstPrices)."""

    @property
    def currency(self) -> str | None:
        """The one currency of all prices; None where there is none."""

    @property
    def default_basis(self) -> Basis:
        """What a report goes by that was not told a basis."""

    def price_at(self, sku: str, basis: str, when: float) -> Price | None:
        """The price of that very sku and basis at `when` (unix seconds); None = unpriced."""

    def change_points(self, start: float, end: float) -> list[float]:
        """start, every moment in between at which some price begins or ends, end; ascending (unix seconds)."""

    def why_unpriced(self, sku: str, basis: str, when: float) -> str:
        """One line for a person: what is missing."""

    def why_stale(self, price: Price, when: float) -> str | None:
        """One line for a person where the price was read too long before `when`; None where it was not."""
