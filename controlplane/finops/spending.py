"""What machine time costs in dollars: exact until it is rounded once, and unknown where a price is missing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal

from controlplane.finops.attribution import rounded_cost
from controlplane.finops.forecast import HOUR_S
from controlplane.finops.pricing import NANO, PriceSheet

CURRENCY = "USD"
Cell = tuple[int, str]
"""Hour since the unix epoch, and sku."""


@dataclass(frozen=True, slots=True)
class Spent:
    """What machine time comes to under a price sheet.

    exact: by hour, in nano-dollars times the ns of an hour, so that it is rounded once. total: their sum. unpriced_ns:
    machine time that has no price. why: what is missing, in one line, "" where nothing is.
    """

    exact: Mapping[int, int] = field(default_factory=dict)
    total: int = 0
    unpriced_ns: int = 0
    why: str = ""

    @property
    def nano(self) -> int:
        """Nano-dollars of the time that has a price."""
        return rounded_cost(self.total)

    @property
    def by_hour(self) -> dict[int, int]:
        """Nano-dollars by hour since the unix epoch, each rounded."""
        return {hour: rounded_cost(each) for hour, each in self.exact.items()}

    def plus(self, other: Spent) -> Spent:
        """Both together: the same as of all the machine time at once."""
        if not other.total and not other.unpriced_ns:
            return self
        exact = {**self.exact, **{hour: self.exact.get(hour, 0) + each for hour, each in other.exact.items()}}
        unpriced = self.unpriced_ns + other.unpriced_ns
        return Spent(exact, self.total + other.total, unpriced, self.why or other.why)


def spent(use: Mapping[Cell, int], sheet: PriceSheet) -> Spent:
    """What machine time (ns by cell) costs at the sheet's default basis, each hour at its price."""
    basis, exact, unpriced, why = sheet.default_basis, dict[int, int](), 0, currency_problem(sheet)
    is_computable = not why
    for (hour, sku), ns in use.items():
        if not ns:
            continue
        price = sheet.price_at(sku, basis, hour * HOUR_S) if is_computable else None
        if price is not None:
            exact[hour] = exact.get(hour, 0) + ns * price.per_hour_nano
        else:
            unpriced += ns
            why = why or sheet.why_unpriced(sku, basis, hour * HOUR_S)
    return Spent(exact, sum(exact.values()), unpriced, why)


def currency_problem(sheet: PriceSheet) -> str:
    """Why no budget can be computed under this sheet; "" where they can."""
    if sheet.currency in (None, CURRENCY):
        return ""
    return f"budgets are in {CURRENCY} and the price sheet is in {sheet.currency}; neither is converted"


def money(nano: int) -> str:
    """Nano-dollars as a decimal string with at least two places."""
    amount = Decimal(nano) / NANO
    exact = amount.normalize()
    return f"{exact:f}" if -int(exact.as_tuple().exponent) > 2 else f"{amount:.2f}"


def dollars(nano: int) -> str:
    """For a sentence: cents, or four digits of what is less than a dollar."""
    amount = Decimal(nano) / NANO
    if amount >= 1 or not nano:
        return f"{amount:.2f}"
    digits = f"{Decimal(f'{amount:.4g}'):f}"
    return f"{amount:.2f}" if len(digits) < len("0.00") else digits
