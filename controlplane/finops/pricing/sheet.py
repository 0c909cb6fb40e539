"""A price sheet: prices of one currency by sku, basis and date, and what can be wrong with them together."""

from __future__ import annotations

import difflib
import hashlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from functools import cached_property
from itertools import groupby, pairwise
from typing import NamedTuple

from controlplane.finops.pricing.price import BASES, HOUR_S, Basis, Price, PriceError
from controlplane.finops.pricing.text import prices_text

STALE_AFTER_DAYS = 180
"""Of a sheet that does not say otherwise."""


class SheetProblem(NamedTuple):
    """One thing wrong with prices, or worth a look. line: in the file, where it is known; field: the one to change."""

    line: int | None
    field: str
    message: str


class Gap(NamedTuple):
    """Unix seconds for which a sku and basis that were priced before are not; end None: until further notice."""

    before: Price
    start: float
    end: float | None


@dataclass(frozen=True)
class PriceSheet:
    """Validated prices of one currency: of each (sku, basis) at most one covers any moment.

    text: of the file it was read from. Raises PriceError on prices that do not go together.
    """

    prices: tuple[Price, ...] = ()
    stale_after_days: int = STALE_AFTER_DAYS
    text: str = field(default="", compare=False, repr=False)

    def __post_init__(self) -> None:
        problems = sheet_problems(self.prices)
        if problems:
            raise PriceError(f"{p.field}: {p.message}" for p in problems)

    @property
    def currency(self) -> str | None:
        """None for a sheet without prices."""
        return self.prices[0].currency if self.prices else None

    @cached_property
    def default_basis(self) -> Basis:
        """First of on_demand, reserved, spot, owned that the sheet has any price for."""
        present = {p.basis for p in self.prices}
        return next((b for b in BASES if b in present), "on_demand")

    @cached_property
    def revision(self) -> str:
        """First 12 hex digits of the SHA-256 of the text; of its own wording where it was not read from a text."""
        return hashlib.sha256(self.written.encode()).hexdigest()[:12]

    @cached_property
    def written(self) -> str:
        """The text that it was read from, else one that reads back equal."""
        return self.text or prices_text(self.prices, self.stale_after_days)

    @cached_property
    def _by_key(self) -> Mapping[tuple[str, str], tuple[list[float], list[Price]]]:
        """(sku, basis) -> starts, ascending, and the price that begins at each."""
        by_key: dict[tuple[str, str], tuple[list[float], list[Price]]] = {}
        for p in sorted(self.prices, key=lambda p: p.effective_from):
            starts, prices = by_key.setdefault((p.sku, p.basis), ([], []))
            starts.append(p.effective_from)
            prices.append(p)
        return by_key

    def price_at(self, sku: str, basis: str, when: float) -> Price | None:
        """The price of that very sku and basis at `when` (unix seconds); None = unpriced."""
        starts, prices = self._by_key.get((sku, basis), ((), ()))
        price = prices[i - 1] if (i := bisect_right(starts, when)) else None
        return price if price is not None and price.covers(when) else None

    def per_second(self, sku: str, when: float) -> float | None:
        """What a second of that sku costs at `when` on the sheet's default basis, for weighing; None = unpriced."""
        price = self.price_at(sku, self.default_basis, when)
        return None if price is None else float(price.per_hour) / 3600.0

    def change_points(self, start: float, end: float) -> list[float]:
        """start, every moment in between at which some price begins or ends, end; ascending (unix seconds)."""
        edges = {t for p in self.prices for t in (p.effective_from, p.effective_to) if t is not None}
        return [start, *sorted(t for t in edges if start < t < end), end]

    def why_unpriced(self, sku: str, basis: str, when: float) -> str:
        """One line for a person: what is missing from the sheet. A sku that is spelt alike is named, and never used."""
        missing = f"{sku} has no {basis} price on {day(when)}"
        if (sku, basis) in self._by_key:
            return f"{missing}: close the gap in effective_from/effective_to"
        if other := sorted({p.basis for p in self.prices if p.sku == sku}):
            return f"{missing}: the sheet has {', '.join(other)} for it"
        close = difflib.get_close_matches(sku, sorted({p.sku for p in self.prices}), n=1, cutoff=0.8)
        alike = f" (it has {close[0]}; a sku must match in full)" if close else ""
        return f"{missing}: the sheet does not name it{alike}"

    def why_stale(self, price: Price, when: float) -> str | None:
        """One line for a person where the price was read over stale_after_days before `when`; else None."""
        if when - midnight(price.as_of) <= self.stale_after_days * 86400.0:
            return None
        days = self.stale_after_days
        return f"the {price.basis} price of {price.sku} was read on {price.as_of}, over {days} days ago"

    def gaps(self) -> Iterator[Gap]:
        """Stretches between two lines of a sku and basis, and after the last of them, in which neither holds."""
        for _, prices in self._by_key.values():
            for before, after in pairwise(prices):
                if before.effective_to is not None and before.effective_to < after.effective_from:
                    yield Gap(before, before.effective_to, after.effective_from)
            if prices[-1].effective_to is not None:
                yield Gap(prices[-1], prices[-1].effective_to, None)

    def remarks(self, now: float) -> tuple[SheetProblem, ...]:
        """What a sheet without problems still leaves open at `now` (unix seconds), in the order of the file.

        Missing periods that began, prices in force that were read long ago, and days of reading that are yet to come.
        """
        found = [_gap_remark(gap) for gap in self.gaps() if gap.start <= now]
        for p in self.prices:
            stale = self.why_stale(p, now) if p.covers(now) else None
            if stale:
                found.append(SheetProblem(p.line, "as_of", stale))
            if midnight(p.as_of) > now:
                found.append(
                    SheetProblem(p.line, "as_of", f"{p.sku} ({p.basis}) was read on {p.as_of}, which is to come")
                )
        return tuple(sorted(found, key=lambda r: r.line or 0))


def sheet_problems(prices: Sequence[Price]) -> list[SheetProblem]:
    """Why these prices cannot be one sheet; empty when they can."""
    return [*_mixed_currencies(prices), *_part_hours(prices), *_overlaps(prices)]


def _mixed_currencies(prices: Iterable[Price]) -> Iterator[SheetProblem]:
    ordered = sorted(prices, key=lambda p: p.currency)
    first = [next(group) for _, group in groupby(ordered, key=lambda p: p.currency)]
    if len(first) > 1:
        names = ", ".join(p.currency for p in first)
        line = max((p.line or 0 for p in first), default=0) or None
        yield SheetProblem(line, "currency", f"a sheet holds one currency, this one has {names}")


def _part_hours(prices: Iterable[Price]) -> Iterator[SheetProblem]:
    for p in prices:
        for name in ("effective_from", "effective_to"):
            moment = getattr(p, name)
            if moment is not None and moment % HOUR_S:
                yield SheetProblem(p.line, name, f"of {p.sku} ({p.basis}): {part_hour(moment)}")


def part_hour(moment: float) -> str:
    """Why a price cannot change at that moment (unix seconds), and the nearest ones at which it can."""
    before = moment - moment % HOUR_S
    return (
        f"{hour(moment, 'seconds')} is not on a whole hour UTC; cost is kept by the hour, "
        f"so write {hour(before)} or {hour(before + HOUR_S)}"
    )


def _overlaps(prices: Iterable[Price]) -> Iterator[SheetProblem]:
    """Every line beside the one before it that holds longest."""
    ordered = sorted(prices, key=lambda p: (p.sku, p.basis, p.effective_from))
    for _, group in groupby(ordered, key=lambda p: (p.sku, p.basis)):
        a, *others = group
        for b in others:
            if a.effective_to is None or a.effective_to > b.effective_from:
                also = f" (the other is on line {b.line})" if b.line is not None else ""
                yield SheetProblem(
                    a.line,
                    "effective_to",
                    f"{a.sku} ({a.basis}) has two prices from {day(b.effective_from)} on{also}; "
                    "end the first one there, or give regions and contracts skus of their own",
                )
            if a.effective_to is not None and (b.effective_to is None or b.effective_to > a.effective_to):
                a = b


def _gap_remark(gap: Gap) -> SheetProblem:
    price = gap.before
    until = f"from {hour(gap.start)} to {hour(gap.end)}" if gap.end is not None else f"since {hour(gap.start)}"
    message = f"{price.sku} ({price.basis}) has no price {until}: these hours are unpriced"
    return SheetProblem(price.line, "effective_to", message)


def midnight(on: date) -> float:
    """The first moment of a day (unix seconds, UTC)."""
    return datetime(on.year, on.month, on.day, tzinfo=UTC).timestamp()


def moment_of(when: float) -> datetime:
    """Unix seconds as a UTC time."""
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=when)


def day(when: float) -> str:
    return moment_of(when).strftime("%Y-%m-%d")


def hour(when: float, precision: str = "minutes") -> str:
    """A day where it is the first moment of one, else a UTC time, as a sheet writes them."""
    moment = moment_of(when)
    text = moment.replace(tzinfo=None).isoformat(timespec=precision)
    return text.removesuffix("T00:00") if precision == "minutes" else text
