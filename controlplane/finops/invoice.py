"""A provider's invoice as a CSV file: a FOCUS one, or any with a period, a resource and a cost in each line.

Columns are found by name, and can be named by hand. Every problem is reported with its line, before anything is
compared.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from itertools import chain

CANDIDATES: Mapping[str, tuple[str, ...]] = {
    "start": ("chargeperiodstart", "start", "starttime", "startdate", "usagestartdate", "periodstart", "from", "hour",
              "day", "date"),
    "end": ("chargeperiodend", "end", "endtime", "enddate", "usageenddate", "periodend", "to", "until"),
    "resource": ("sku", "skuid", "resource", "resourcetype", "instancetype", "machinetype", "resourcename",
                 "resourceid", "product", "item"),
    "cost": ("billedcost", "cost", "amount", "unblendedcost", "total", "charge"),
    "currency": ("billingcurrency", "currency", "currencycode"),
    "quantity": ("hours", "quantityhours", "pricingquantity", "quantity", "usagequantity", "usage"),
    "unit": ("pricingunit", "unit", "usageunit"),
    "category": ("chargecategory", "category"),
}  # fmt: skip
"""What a column is for -> names it may have, in order of preference, without case, spaces, - and _."""

REQUIRED = ("start", "resource", "cost")

EARLIEST, LATEST = datetime(1970, 1, 1, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC)
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([Ee][+-]?\d{1,2})?", re.ASCII)
LARGEST, MOST_DECIMALS = Decimal(10) ** 18, 40
"""No cost and no quantity is as large or as fine; sums of what is less are exact (see reconcile.py)."""

DELIMITERS = ",;\t|"
"""The one that the header has most of parts the fields; the first where it has none."""

NOT_OF_MACHINES = frozenset(("gb", "gib", "mb", "mib", "tb", "tib", "pb", "pib", "vcpu", "cpu", "core", "iops"))
"""Hours of these are not hours of a machine."""

SECONDS_OF_UNIT = {"hour": 3600, "hr": 3600, "h": 3600, "minute": 60, "min": 60, "second": 1, "sec": 1, "s": 1}
USAGE = "Usage"
MAX_PROBLEMS = 10


class InvoiceError(ValueError):
    """An invoice that cannot be used; str() has one line for each problem."""


@dataclass(frozen=True, slots=True)
class InvoiceLine:
    """One charge. start, end: UTC, end exclusive. cost: in the invoice's currency; hours: None where it has none.

    category: as in FOCUS; all but Usage (taxes, credits, ...) have no machine time. line: in the file, from 1.
    """

    line: int
    start: datetime
    end: datetime
    resource: str
    cost: Decimal
    hours: Fraction | None = None
    category: str = USAGE


@dataclass(frozen=True, slots=True)
class Invoice:
    """All lines. currency None: the file names none. columns: what each was used for."""

    lines: tuple[InvoiceLine, ...]
    currency: str | None
    columns: Mapping[str, str]


def parse_invoice(text: Iterable[str], named: Mapping[str, str] | None = None, source: str = "invoice") -> Invoice:
    """Lines of a CSV file with a header. named: what a column is for (see CANDIDATES) -> its name in the file.

    Without an end, a line with a time of day is of an hour, one without is of a day. Times without a zone are UTC.
    Raises InvoiceError with the first problems, each with its line and field.
    """
    rows = _rows(text, source)
    _, header = next(rows, (0, []))
    if not any(name.strip() for name in header):
        raise InvoiceError(f"{source}: it is empty; it needs a header and a line for each charge")
    columns = _columns(header, named or {}, source)
    places = {use: header.index(name) for use, name in columns.items()}
    problems: list[str] = []
    lines = []
    written = set()
    for number, row in rows:
        values = {use: row[i].strip() if i < len(row) else "" for use, i in places.items()}
        if not any(values.values()):
            continue
        written.add(values.get("currency", "").upper())
        found = _line(number, values, problems)
        if found is not None:
            lines.append(found)
    currencies = sorted(written - {""})
    if len(currencies) > 1:
        problems.insert(0, f"currency: {' and '.join(currencies)} in one invoice; give each currency a file of its own")
    if problems:
        more = [f"{source}: ... and {len(problems) - MAX_PROBLEMS} more"] if len(problems) > MAX_PROBLEMS else []
        raise InvoiceError("\n".join([*(f"{source}: {p}" for p in problems[:MAX_PROBLEMS]), *more]))
    if not lines:
        raise InvoiceError(f"{source}: it has no line with a charge")
    return Invoice(tuple(lines), currencies[0] if currencies else None, columns)


def _rows(text: Iterable[str], source: str) -> Iterator[tuple[int, list[str]]]:
    """(line in the file, fields), one at a time since an invoice may be long; the header is the first one that is not
    blank, and tells what parts the fields.
    """
    lines, blank = iter(text), 0
    try:
        for line in lines:
            if line.strip():
                reader = csv.reader(chain([line], lines), delimiter=max(DELIMITERS, key=line.count))
                yield from ((blank + reader.line_num, row) for row in reader)
                return
            blank += 1
    except (csv.Error, UnicodeDecodeError) as e:
        raise InvoiceError(f"{source}: not a CSV file: {e}") from None


def _plain(name: str) -> str:
    return re.sub(r"[\s_\-]", "", name).lower()


def _columns(header: Sequence[str], named: Mapping[str, str], source: str) -> dict[str, str]:
    present = {_plain(name): name for name in reversed(header)}
    found = {}
    for use, candidates in CANDIDATES.items():
        name = named.get(use) or next((present[c] for c in candidates if c in present), None)
        if name is not None:
            found[use] = name
    has = f"it has {', '.join(header)}"
    for use, name in named.items():
        if use not in CANDIDATES:
            raise InvoiceError(f"--column {use}: is none of {', '.join(CANDIDATES)}")
        if name not in header:
            raise InvoiceError(f"{source}: no column {name!r} for {use}; {has}")
    if missing := [use for use in REQUIRED if use not in found]:
        fix = ", ".join(f"--column {use}=NAME" for use in missing)
        raise InvoiceError(f"{source}: no column for {', '.join(missing)}; {has}: add {fix}")
    return found


def _line(number: int, values: Mapping[str, str], problems: list[str]) -> InvoiceLine | None:
    before = len(problems)
    start = _moment(number, "start", values["start"], problems)
    end = _moment(number, "end", values["end"], problems) if values.get("end") else None
    if start is not None and end is None:
        end = start + (timedelta(hours=1) if len(values["start"]) > len("2026-11-29") else timedelta(days=1))
    if start is not None and end is not None and end <= start:
        problems.append(f"line {number}: end: {values['end']} is not after the start; an end is exclusive")
    cost = _number(number, "cost", values["cost"], problems)
    category = values.get("category") or USAGE
    hours = None
    if category == USAGE and values.get("quantity"):
        factor = seconds_of_unit(values.get("unit", "Hours") or "Hours")
        quantity = _number(number, "quantity", values["quantity"], problems)
        if factor is not None and quantity is not None:
            hours = Fraction(quantity) * factor / 3600
    if not values["resource"] and category == USAGE:
        problems.append(f"line {number}: resource: it is empty")
    if len(problems) > before or start is None or end is None or cost is None:
        return None
    return InvoiceLine(number, start, end, values["resource"], cost, hours, category)


def _moment(number: int, field: str, text: str, problems: list[str]) -> datetime | None:
    try:
        moment = datetime.fromisoformat(re.sub(r"\s*(UTC|GMT)$", "+00:00", text))
    except ValueError:
        problems.append(f"line {number}: {field}: {text[:40]!r} is not a time such as 2026-11-29T15:00:00Z")
        return None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    if not EARLIEST <= moment < LATEST:
        problems.append(f"line {number}: {field}: {text!r} is not between 1970 and 9998")
        return None
    return moment.astimezone(UTC)


def _number(number: int, field: str, text: str, problems: list[str]) -> Decimal | None:
    if not NUMBER.fullmatch(text):
        problems.append(f"line {number}: {field}: {text[:40]!r} is not a plain number such as 1234.56")
        return None
    amount = Decimal(text)
    if abs(amount) >= LARGEST or -int(amount.as_tuple().exponent) > MOST_DECIMALS:
        problems.append(f"line {number}: {field}: {text[:40]} has more than 18 digits, or {MOST_DECIMALS} decimals")
        return None
    return amount


def seconds_of_unit(unit: str) -> int | None:
    """Of `Hours`, `GPU-Hours`, `1000 Hours`, ...; None for a unit that is not time of a machine."""
    *words, last = re.split(r"[\s\-]+", unit.strip().lower())
    seconds = SECONDS_OF_UNIT.get(last) or SECONDS_OF_UNIT.get(last.removesuffix("s"))
    if seconds is None or NOT_OF_MACHINES.intersection(words):
        return None
    is_counted = bool(words) and words[0].isascii() and words[0].isdecimal()
    return seconds * (int(words[0]) if is_counted else 1)
