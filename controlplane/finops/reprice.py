"""History priced again: what hours were first reported with, what they cost by another sheet, and the difference."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from controlplane.finops.attribution import cost_of_time
from controlplane.finops.pricing import FirstPrices, PriceError, Prices
from controlplane.finops.pricing.price import HOUR_S
from controlplane.finops.pricing.sheet import day

RepricedBy = Literal["day", "sku"]
REPRICED_BY: tuple[RepricedBy, ...] = get_args(RepricedBy)


@dataclass(frozen=True, slots=True)
class Repriced:
    """What a day or a sku cost when it was first reported, and what it costs now, in nano-units.

    None = some of it is unpriced, and how much machine time (nanoseconds) that is stands beside it: a partial sum would
    look like a low bill. ns: all machine time.
    """

    key: str
    ns: int
    first_nano: int | None
    now_nano: int | None
    first_unpriced_ns: int
    now_unpriced_ns: int

    @property
    def difference_nano(self) -> int | None:
        """Now minus first; None where either is unpriced."""
        return None if self.first_nano is None or self.now_nano is None else self.now_nano - self.first_nano


@dataclass(frozen=True, slots=True)
class Repricing:
    """rows: by key, ascending. currency: of both. open_hours: (hour, sku) that are not fixed yet, whose first price is
    the sheet's.
    """

    rows: tuple[Repriced, ...]
    total: Repriced
    currency: str | None
    open_hours: int


def reprice(
    machine_time: Iterable[tuple[int, str, int]], first: FirstPrices, now: Prices, basis: str, by: RepricedBy = "day"
) -> Repricing:
    """Price machine time, given as (hour, sku, nanoseconds), twice on that basis: as first reported, and by `now`.

    The bill of an hour of a sku is rounded once, as in every report. Machine time that arrived after an hour was first
    reported counts in both. Raises PriceError where the two are not of one currency.
    """
    currencies = {prices.currency for prices in (first, now)} - {None}
    if len(currencies) > 1:
        raise PriceError([f"first reported in {first.currency}, the sheet is in {now.currency}: no difference to tell"])
    times = list(machine_time)
    keys: Mapping[str, Callable[[int, str], str]] = {
        "day": lambda hour, sku: day(hour * HOUR_S),
        "sku": lambda hour, sku: sku,
    }
    by_key: dict[str, list[tuple[int, int | None, int | None]]] = {}
    for hour, sku, ns in times:
        bill = (ns, _cost(first, hour, sku, ns, basis), _cost(now, hour, sku, ns, basis))
        by_key.setdefault(keys[by](hour, sku), []).append(bill)
    return Repricing(
        rows=tuple(_sum(key, by_key[key]) for key in sorted(by_key)),
        total=_sum("total", [bill for bills in by_key.values() for bill in bills]),
        currency=next(iter(currencies), None),
        open_hours=sum(first.first(sku, basis, hour * HOUR_S) is None for hour, sku, _ in times),
    )


def _cost(prices: Prices, hour: int, sku: str, ns: int, basis: str) -> int | None:
    price = prices.price_at(sku, basis, hour * HOUR_S)
    return None if price is None else cost_of_time(ns, price.per_hour_nano)


def _sum(key: str, bills: Sequence[tuple[int, int | None, int | None]]) -> Repriced:
    unpriced = [sum(bill[0] for bill in bills if bill[side] is None) for side in (1, 2)]
    sums = [None if any(bill[side] is None for bill in bills) else sum(bill[side] or 0 for bill in bills)
            for side in (1, 2)]  # fmt: skip
    return Repriced(key, sum(bill[0] for bill in bills), sums[0], sums[1], unpriced[0], unpriced[1])
