"""Our bill beside the provider's invoice, and why they differ: by resource, as finely in time as the invoice is.

Each difference (theirs - ours) is taken apart into causes that add up to it exactly. Nothing is fitted: where the
invoice says no quantity, price and hours are not told apart.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Literal, NamedTuple

from controlplane.finops.attribution import NS_PER_HOUR, cost_of_time
from controlplane.finops.export_cells import HOUR_S, exact_sum, hour_start, scaled
from controlplane.finops.invoice import USAGE, Invoice, InvoiceLine
from controlplane.finops.pricing import Prices

Grain = Literal["hour", "day", "month", "invoice"]

CAUSES: Mapping[str, str] = {
    "not_serving": "they billed it, no window was recorded: the machine was on and not serving",
    "not_billed": "windows were recorded, they did not bill it",
    "quantity": "they billed other hours than the windows add up to",
    "price": "their price of an hour is another than the price sheet's",
    "unsplit": "their cost is another; without a quantity on the invoice, price and hours cannot be told apart",
    "unpriced": "the price sheet has no price for it",
}
"""Cause -> what it means. Taxes, credits and the like go by the invoice's own name of their category."""


class OurHour(NamedTuple):
    """A machine hour of the ledger. hour: since the unix epoch; cost_nano None: unpriced."""

    hour: int
    sku: str
    ns: int
    cost_nano: int | None


class Part(NamedTuple):
    """One cause's part of a difference, in the currency."""

    cause: str
    amount: Decimal


@dataclass(frozen=True, slots=True)
class Difference:
    """One resource in one stretch of the grain. theirs, ours: None where that side has nothing (or no price).

    parts: add up to theirs - ours; "unpriced" is named even where nobody billed it. *_hours: machine hours.
    hours_without_windows: hours of the clock in the stretch in which none was recorded.
    """

    start: datetime
    end: datetime
    resource: str
    theirs: Decimal | None
    ours: Decimal | None
    their_hours: Decimal | None
    our_hours: Decimal
    hours_without_windows: int
    parts: tuple[Part, ...]

    @property
    def amount(self) -> Decimal:
        """Theirs - ours."""
        return _less(self.theirs or Decimal(0), self.ours or Decimal(0))


@dataclass(frozen=True)
class Reconciliation:
    """Every stretch and resource that either side has, by time. left_out: cost of invoice lines mapped to nothing."""

    grain: Grain
    rows: tuple[Difference, ...]
    left_out: Decimal = Decimal(0)
    by_cause: Mapping[str, Decimal] = field(default_factory=dict)

    @property
    def theirs(self) -> Decimal:
        return exact_sum(row.theirs for row in self.rows if row.theirs is not None)

    @property
    def ours(self) -> Decimal:
        return exact_sum(row.ours for row in self.rows if row.ours is not None)

    @property
    def difference(self) -> Decimal:
        """Theirs - ours = the sum of by_cause."""
        return _less(self.theirs, self.ours)

    def exceeds(self, tolerance: Decimal) -> bool:
        """Whether the difference, or one cause of it, is over that fraction of the invoice.

        By cause, so that a machine billed twice does not hide behind one that was forgotten.
        """
        limit = tolerance * abs(self.theirs)
        return any(abs(amount) > limit for amount in (self.difference, *self.by_cause.values()))


def our_hours(machine_time: Iterable[tuple[int, str, int]], prices: Prices, basis: str) -> list[OurHour]:
    """From (hour, sku, ns) of the ledger, each billed as a report bills it: at the price of its hour, rounded once."""
    found = []
    for hour, sku, ns in machine_time:
        price = prices.price_at(sku, basis, float(hour * HOUR_S))
        found.append(OurHour(hour, sku, ns, None if price is None else cost_of_time(ns, price.per_hour_nano)))
    return found


def invoice_range(invoice: Invoice) -> tuple[datetime, datetime]:
    """First start and last end of its lines."""
    return min(line.start for line in invoice.lines), max(line.end for line in invoice.lines)


def reconcile(invoice: Invoice, ours: Sequence[OurHour], mapping: Mapping[str, str] | None = None) -> Reconciliation:
    """Differences by resource and stretch. mapping: the invoice's resource -> our sku; "" leaves its lines out.

    The grain is the finest of hour, day and month into which every line of the invoice fits.
    """
    mapping = mapping or {}
    lines = [line for line in invoice.lines if mapping.get(line.resource) != ""]
    left_out = exact_sum(line.cost for line in invoice.lines if mapping.get(line.resource) == "")
    grain = _grain(lines)
    theirs: dict[tuple[datetime, str], list[InvoiceLine]] = defaultdict(list)
    recorded: dict[tuple[datetime, str], list[OurHour]] = defaultdict(list)
    first = invoice_range(invoice)[0]
    for line in lines:
        theirs[_bucket(line.start, grain, first), mapping.get(line.resource, line.resource)].append(line)
    for hour in ours:
        recorded[_bucket(hour_start(hour.hour), grain, first), hour.sku].append(hour)
    last = invoice_range(invoice)[1]
    rows = [
        _difference(key, theirs.get(key, []), recorded.get(key, []), _bucket_end(key[0], grain, last))
        for key in sorted({*theirs, *recorded})
    ]
    by_cause: dict[str, list[Decimal]] = defaultdict(list)
    for row in rows:
        for part in row.parts:
            by_cause[part.cause].append(part.amount)
    sums = {cause: exact_sum(amounts) for cause, amounts in by_cause.items()}
    return Reconciliation(grain, tuple(rows), left_out, sums)


def _grain(lines: Sequence[InvoiceLine]) -> Grain:
    grains: tuple[Grain, ...] = ("hour", "day", "month")
    for grain in grains:
        if all(line.end <= _bucket_end(_bucket(line.start, grain, line.start), grain, line.end) for line in lines):
            return grain
    return "invoice"


def _bucket(moment: datetime, grain: Grain, first: datetime) -> datetime:
    """First moment of the stretch that `moment` is in."""
    hour = moment.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    if grain == "hour":
        return hour
    if grain == "day":
        return hour.replace(hour=0)
    return hour.replace(hour=0, day=1) if grain == "month" else first


def _bucket_end(start: datetime, grain: Grain, last: datetime) -> datetime:
    if grain == "hour":
        return start + timedelta(hours=1)
    if grain == "day":
        return start + timedelta(days=1)
    if grain == "month":
        return start.replace(year=start.year + start.month // 12, month=start.month % 12 + 1)
    return last


def _difference(
    key: tuple[datetime, str], lines: Sequence[InvoiceLine], hours: Sequence[OurHour], end: datetime
) -> Difference:
    start, resource = key
    usage = [line for line in lines if line.category == USAGE]
    others: dict[str, list[Decimal]] = defaultdict(list)
    for line in lines:
        if line.category != USAGE:
            others[line.category].append(line.cost)
    billed = exact_sum(line.cost for line in usage)
    quantities = [line.hours for line in usage]
    their_hours = None if not usage or None in quantities else sum((q for q in quantities if q), Fraction(0))
    ns = sum(hour.ns for hour in hours)
    costs = [hour.cost_nano for hour in hours]
    ours = scaled(sum(c for c in costs if c is not None), 9) if hours and None not in costs else None
    parts = [*_parts(bool(usage), billed, their_hours, ns, ours, is_unpriced=None in costs)]
    parts += [Part(category, exact_sum(amounts)) for category, amounts in sorted(others.items())]
    total_hours = -(-int((end - start).total_seconds()) // HOUR_S)
    return Difference(
        start,
        end,
        resource,
        exact_sum(line.cost for line in lines) if lines else None,
        ours,
        None if their_hours is None else _decimal(their_hours),
        _decimal(Fraction(ns, NS_PER_HOUR)),
        total_hours - len({hour.hour for hour in hours if hour.ns}),
        tuple(part for part in parts if part.amount or part.cause == "unpriced"),
    )


def _parts(
    is_billed: bool, theirs: Decimal, their_hours: Fraction | None, ns: int, ours: Decimal | None, *, is_unpriced: bool
) -> list[Part]:
    """Of the usage alone; they add up to theirs - ours."""
    if is_unpriced:
        return [Part("unpriced", theirs)]
    if not ns:
        return [Part("not_serving", _less(theirs, ours or Decimal(0)))]
    ours = ours or Decimal(0)
    if not is_billed:
        return [Part("not_billed", -ours)]
    if their_hours is None:
        return [Part("unsplit", _less(theirs, ours))]
    # (their hours - ours) at our price, and the rest: (their price - ours) for their hours.
    quantity = _decimal(Fraction(ours) * their_hours * NS_PER_HOUR / ns - Fraction(ours))
    return [Part("quantity", quantity), Part("price", _less(theirs, ours, quantity))]


def _less(amount: Decimal, *others: Decimal) -> Decimal:
    """`amount` - `others`, exactly, however many digits there are."""
    return exact_sum((amount, *(other.copy_negate() for other in others)))


def _decimal(value: Fraction) -> Decimal:
    """To nine places, half to even."""
    return scaled(round(value * 10**9), 9)
