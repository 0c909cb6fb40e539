"""The price sheet: what an hour of a worker's machine costs, with source and validity dates.

A price that is not on the sheet is unpriced (None), never 0 and never a guess. Prices change by effective date, and a
report prices history with the price of its day.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, cast, get_args

import yaml

Basis = Literal["on_demand", "reserved", "spot", "owned"]
BASES: tuple[Basis, ...] = get_args(Basis)

NANO = Decimal(10) ** 9

FIELDS = ("sku", "basis", "currency", "per_hour", "region", "source", "as_of", "effective_from", "effective_to")
REQUIRED = ("sku", "basis", "currency", "per_hour", "source", "as_of", "effective_from")


class PriceError(ValueError):
    """A price sheet that cannot be used; `problems` holds one line each, str() all of them."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))


@dataclass(frozen=True, slots=True)
class Price:
    """What one worker of that sku costs an hour. Valid from effective_from (unix seconds) until effective_to
    (exclusive; None = until further notice). as_of: the day the price was read from `source`.
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

    @property
    def per_hour_nano(self) -> int:
        """Integer nano-units an hour; exact, because a sheet allows nine decimals at most."""
        return int(self.per_hour * NANO)

    def covers(self, when: float) -> bool:
        return self.effective_from <= when and (self.effective_to is None or when < self.effective_to)


@dataclass(frozen=True)
class PriceSheet:
    """Validated prices of one currency: of each (sku, basis) at most one covers any moment."""

    prices: tuple[Price, ...] = ()

    def __post_init__(self) -> None:
        problems = [*_mixed_currencies(self.prices), *_overlaps(self.prices)]
        if problems:
            raise PriceError(problems)

    @property
    def currency(self) -> str | None:
        """None for a sheet without prices."""
        return self.prices[0].currency if self.prices else None

    @property
    def default_basis(self) -> Basis:
        """First of on_demand, reserved, spot, owned that the sheet has any price for."""
        present = {p.basis for p in self.prices}
        return next((b for b in BASES if b in present), "on_demand")

    @cached_property
    def _by_key(self) -> Mapping[tuple[str, str], tuple[Price, ...]]:
        by_key: dict[tuple[str, str], list[Price]] = {}
        for p in self.prices:
            by_key.setdefault((p.sku, p.basis), []).append(p)
        return {key: tuple(prices) for key, prices in by_key.items()}

    def price_at(self, sku: str, basis: str, when: float) -> Price | None:
        """The price of that sku at `when` (unix seconds); None = unpriced."""
        return next((p for p in self._by_key.get((sku, basis), ()) if p.covers(when)), None)

    def per_second(self, sku: str, when: float) -> float | None:
        """What a second of that sku costs at `when` on the sheet's default basis, for weighing; None = unpriced."""
        price = self.price_at(sku, self.default_basis, when)
        return None if price is None else float(price.per_hour) / 3600.0

    def change_points(self, start: float, end: float) -> list[float]:
        """start, every moment in between at which some price begins or ends, end; ascending (unix seconds)."""
        edges = {t for p in self.prices for t in (p.effective_from, p.effective_to) if t is not None}
        return [start, *sorted(t for t in edges if start < t < end), end]

    def why_unpriced(self, sku: str, basis: str, when: float) -> str:
        """One line for a person: what is missing from the sheet."""
        day = datetime.fromtimestamp(when, UTC).strftime("%Y-%m-%d")
        if (sku, basis) in self._by_key:
            return f"{sku} has no {basis} price on {day}: close the gap in effective_from/effective_to"
        other = sorted({p.basis for p in self.prices if p.sku == sku})
        hint = f"the sheet has {', '.join(other)} for it" if other else "the sheet does not name it"
        return f"{sku} has no {basis} price on {day}: {hint}"


def _mixed_currencies(prices: Iterable[Price]) -> list[str]:
    names = sorted({p.currency for p in prices})
    return [f"currency: a sheet holds one currency, this one has {', '.join(names)}"] if len(names) > 1 else []


def _overlaps(prices: Iterable[Price]) -> list[str]:
    problems = []
    ordered = sorted(prices, key=lambda p: (p.sku, p.basis, p.effective_from))
    for a, b in pairwise(ordered):
        if (a.sku, a.basis) == (b.sku, b.basis) and (a.effective_to is None or a.effective_to > b.effective_from):
            since = datetime.fromtimestamp(b.effective_from, UTC).strftime("%Y-%m-%d")
            problems.append(
                f"effective_to: {a.sku} ({a.basis}) has two prices from {since} on; end the first one there, "
                "or give regions and contracts skus of their own"
            )
    return problems


def load_prices(path: Path | str) -> PriceSheet:
    """The sheet in that YAML file. Raises PriceError with every problem at once."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        reason = e.strerror if isinstance(e, OSError) else "it is not UTF-8 text"
        raise PriceError([f"{path}: cannot read the price sheet: {reason}"]) from e
    return parse_prices(text, source=str(path))


def parse_prices(text: str, source: str = "prices.yaml") -> PriceSheet:
    """The sheet in that YAML text: `version: 1` and a list `prices`. Raises PriceError with every problem at once."""
    try:
        # BaseLoader keeps every scalar as written: 2.95 stays "2.95" on its way to Decimal.
        sheet = yaml.load(text, Loader=yaml.BaseLoader)
    except yaml.YAMLError as e:
        mark = getattr(e, "problem_mark", None)
        where = f":{mark.line + 1}" if mark else ""
        raise PriceError([f"{source}{where}: not YAML: {getattr(e, 'problem', None) or 'cannot be parsed'}"]) from e
    if not isinstance(sheet, dict):
        raise PriceError([f"{source}: must be a mapping with `version` and `prices`"])
    problems = [f"{source}: {key}: unknown key" for key in sheet if key not in ("version", "prices")]
    if sheet.get("version") != "1":
        problems.append(f"{source}: version: must be 1")
    entries = sheet.get("prices", [])
    if not isinstance(entries, list):
        raise PriceError([*problems, f"{source}: prices: must be a list"])
    prices = []
    for i, entry in enumerate(entries):
        found = _entry_problems(entry)
        problems += [f"{source}: prices[{i}].{p}" for p in found]
        if not found:
            prices.append(_price(entry))
    try:
        valid = PriceSheet(tuple(prices))
    except PriceError as e:
        problems += [f"{source}: {p}" for p in e.problems]
    if problems:
        raise PriceError(problems)
    return valid


def _entry_problems(entry: Any) -> list[str]:
    if not isinstance(entry, dict):
        return [f"sku: must be a mapping with {', '.join(FIELDS)}"]
    if entry.get("effective_to") in ("null", "~"):
        entry = {**entry, "effective_to": ""}
    problems = [f"{key}: unknown key" for key in entry if key not in FIELDS]
    problems += [f"{key}: must be one value" for key in FIELDS if not isinstance(entry.get(key, ""), str)]
    if problems:
        return problems
    problems += [f"{key}: missing" for key in REQUIRED if not entry.get(key)]
    if entry.get("basis") and entry["basis"] not in BASES:
        problems.append(f"basis: {entry['basis']!r} is none of {', '.join(BASES)}")
    currency = entry.get("currency", "")
    if currency and not (len(currency) == 3 and currency.isalpha() and currency.isupper()):
        problems.append(f"currency: {currency!r} is not a three-letter code such as USD")
    if entry.get("per_hour"):
        problems += _per_hour_problems(entry["per_hour"])
    for key in ("as_of", "effective_from", "effective_to"):
        if entry.get(key) and _moment(entry[key]) is None:
            problems.append(f"{key}: {entry[key]!r} is not a date such as 2026-05-20 (or a UTC time)")
    begin, end = _moment(entry.get("effective_from") or ""), _moment(entry.get("effective_to") or "")
    if begin and end and end <= begin:
        problems.append("effective_to: must be after effective_from")
    return problems


def _per_hour_problems(text: str) -> list[str]:
    try:
        amount = Decimal(text)
    except InvalidOperation:
        return [f"per_hour: {text!r} is not a number"]
    if not amount.is_finite() or amount < 0 or amount >= 1_000_000:
        return [f"per_hour: {text} is not between 0 and 1000000"]
    if amount * NANO % 1:
        return [f"per_hour: {text} has more than nine decimals"]
    return []


def _moment(text: str) -> datetime | None:
    """A date (its first moment) or an ISO time, UTC unless it says otherwise; None when it is neither."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _price(entry: Mapping[str, str]) -> Price:
    """A Price from an entry without problems."""
    moment = {key: cast(datetime, _moment(entry[key])) for key in ("as_of", "effective_from")}
    end = _moment(entry.get("effective_to") or "")  # YAML's null is no moment either
    return Price(
        sku=entry["sku"],
        basis=cast(Basis, entry["basis"]),
        currency=entry["currency"],
        per_hour=Decimal(entry["per_hour"]),
        region=entry.get("region", ""),
        source=entry["source"],
        as_of=moment["as_of"].date(),
        effective_from=moment["effective_from"].timestamp(),
        effective_to=end.timestamp() if end else None,
    )
