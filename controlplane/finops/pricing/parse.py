"""From YAML to a price sheet: every problem of a file at once, each with its line and what to do about it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Set
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import yaml

from controlplane.finops.pricing.owned import OwnedTerms
from controlplane.finops.pricing.price import BASES, HOUR_S, NANO, Basis, Price, PriceError
from controlplane.finops.pricing.sheet import STALE_AFTER_DAYS, PriceSheet, SheetProblem, part_hour, sheet_problems
from controlplane.policy.nodes import Fields, Problems, choice, integer, line_of, scalar

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
MAX_TEXT = 4_000_000
NULL = "tag:yaml.org,2002:null"
NUMBER = re.compile(r"-?(\d+(\.\d*)?|\.\d+)", re.ASCII)
MOST_PER_HOUR = 1_000_000
EARLIEST, LATEST = datetime(1900, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, tzinfo=UTC)
"""Between these a price may begin and end."""
TERMS: Mapping[str, tuple[str, str]] = {
    "capex": ("0", "1000000000000"),
    "amortise_months": ("1", "1200"),
    "utilisation": ("0.01", "1"),
    "power_w": ("0", "1000000"),
    "pue": ("1", "10"),
    "electricity_per_kwh": ("0", "1000000"),
}
"""Field of OwnedTerms -> the least and the most that it may be."""
OPTIONAL = ("utilisation",)
ELECTRICITY = ("power_w", "pue", "electricity_per_kwh")
WHY_NOT_RENTED = "is for basis owned only: a rented hour has its electricity in it, adding it would bill it twice"


def load_prices(path: Path | str) -> PriceSheet:
    """The sheet in that YAML file. Raises PriceError with every problem at once."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as e:
        reason = e.strerror if isinstance(e, OSError) else "it is not UTF-8 text"
        raise PriceError([f"{path}: cannot read the price sheet: {reason}"]) from e
    return parse_prices(text, source=str(path))


def parse_prices(text: str, source: str = "prices.yaml") -> PriceSheet:
    """The sheet in that YAML text: `version: 1`, maybe `stale_after_days`, and a list `prices`.

    Raises PriceError with every problem at once; `source` names the file in them.
    """
    root, problems = _compose(text, source), Problems()
    top = Fields(root, "", problems)
    top.take("version", integer(1, 1), required=True)
    stale_after_days = top.take("stale_after_days", integer(1, 36500))
    listed = top.child("prices", required=True)
    top.finish()
    if listed is not None and not isinstance(listed, yaml.SequenceNode):
        problems.add(listed, "prices", "must be a list; start each price with `- sku:`")
    found = [SheetProblem(p.line, p.field, p.message) for p in problems.found]
    prices = []
    for i, node in enumerate(listed.value if isinstance(listed, yaml.SequenceNode) else ()):
        price, wrong = _price(node, f"prices[{i}]")
        found += wrong
        prices += [price] if price is not None else []
    found += sheet_problems(prices)
    if found:
        raise PriceError(problem_line(source, p) for p in sorted(found, key=lambda p: p.line or 0))
    return PriceSheet(tuple(prices), stale_after_days or STALE_AFTER_DAYS, text)


def problem_line(source: str, problem: SheetProblem) -> str:
    """A problem as one line: `prices.yaml:12: prices[1].basis: what is wrong`."""
    place = source if problem.line is None else f"{source}:{problem.line}"
    return ": ".join(part for part in (place, problem.field, problem.message) if part)


def _compose(text: str, source: str) -> yaml.Node:
    def fail(message: str, line: int | None = None) -> PriceError:
        return PriceError([problem_line(source, SheetProblem(line, "", message))])

    if len(text) > MAX_TEXT:
        raise fail(f"longer than {MAX_TEXT} characters")
    try:
        root = yaml.compose(text, Loader=LOADER)
    except yaml.MarkedYAMLError as e:
        mark = e.problem_mark or e.context_mark
        raise fail(f"not YAML: {e.problem or e.context}", mark.line + 1 if mark else None) from e
    except (yaml.YAMLError, ValueError, RecursionError) as e:
        raise fail(f"not YAML: {' '.join(str(e).split())[:200]}") from e
    if not isinstance(root, yaml.MappingNode):
        raise fail("must be a mapping with `version` and `prices`", line_of(root))
    return root


def _price(node: yaml.Node, path: str) -> tuple[Price | None, list[SheetProblem]]:
    """One line of the sheet; None when something is wrong with it."""
    problems = Problems()
    entry = Fields(node, path, problems)
    given = frozenset(str(key.value) for key, _ in node.value) if entry.is_mapping else frozenset()
    sku = entry.take("sku", _name, required=True)
    basis = cast("Basis | None", entry.take("basis", choice(BASES), required=True))
    currency = entry.take("currency", _currency, required=True)
    source = entry.take("source", _note, required=True)
    as_of = entry.take("as_of", _day, required=True)
    begin = entry.take("effective_from", _hour, required=True)
    end = entry.take("effective_to", _or_null(_hour))
    region = entry.take("region", _or_null(_note))
    per_hour = entry.take("per_hour", amount(0, MOST_PER_HOUR))
    listed = entry.take("list_per_hour", amount(0, MOST_PER_HOUR))
    terms = _terms(entry, basis, given)
    if entry.is_mapping and not given & {"per_hour", *TERMS}:
        entry.problem("per_hour", "is missing" + (" (or capex, and what goes with it)" if basis == "owned" else ""))
    if begin is not None and end is not None and end <= begin:
        entry.problem("effective_to", "must be after effective_from")
    entry.finish()
    if problems.found:
        return None, [SheetProblem(p.line, p.field, p.message) for p in problems.found]
    if terms is not None:
        per_hour = Decimal(terms.per_hour_nano) / NANO
    price = Price(
        sku=cast(str, sku),
        basis=cast(Basis, basis),
        currency=cast(str, currency),
        per_hour=cast(Decimal, per_hour),
        region=region or "",
        source=cast(str, source),
        as_of=cast(date, as_of),
        effective_from=cast(float, begin),
        effective_to=end,
        list_per_hour=listed,
        owned=terms,
        line=line_of(node),
    )
    return price, []


def _terms(entry: Fields, basis: str | None, given: Set[str]) -> OwnedTerms | None:
    """What an owned hour is built from; None where none of it is given, or it is wrong, which is then noted."""
    values = {name: entry.take(name, amount(*between)) for name, between in TERMS.items()}
    named = [name for name in TERMS if name in given]
    if not named or basis is None:
        return None
    if basis != "owned":
        for name in named:
            entry.problem(name, WHY_NOT_RENTED if name in ELECTRICITY else "is for basis owned only; give per_hour")
        return None
    if "per_hour" in given:
        entry.problem("per_hour", f"stands beside {named[0]}; give the price, or what it is built from, not both")
        return None
    missing = [name for name in TERMS if name not in given and name not in OPTIONAL]
    for name in missing:
        entry.problem(name, f"is missing; an hour built from {named[0]} needs it (0 where nothing is paid)")
    known = {name: value for name, value in values.items() if value is not None}
    if missing or len(known) < len(named):
        return None
    terms = OwnedTerms(**known)
    if terms.per_hour_nano >= MOST_PER_HOUR * NANO:
        entry.problem("capex", f"comes to {terms.per_hour_nano / NANO:.2f} an hour; {MOST_PER_HOUR} is the most")
        return None
    return terms


def amount(least: str | int, most: str | int) -> Callable[[yaml.Node], Decimal]:
    """Parser of a plain decimal number within [least, most], with nine decimals at most."""

    def parse(node: yaml.Node) -> Decimal:
        text = scalar(node)
        if not NUMBER.fullmatch(text):
            raise ValueError(f"{text[:40]!r} is not a plain number such as 2.95")
        value = Decimal(text)
        if not Decimal(least) <= value <= Decimal(most):
            raise ValueError(f"{text[:40]} is not between {least} and {most}")
        if value * NANO % 1:
            raise ValueError(f"{text} has more than nine decimals")
        return value

    return parse


def _or_null(parse: Callable[[yaml.Node], Any]) -> Callable[[yaml.Node], Any]:
    """Null, or nothing after the colon, as if the field were not there."""
    return lambda node: None if node.tag == NULL else parse(node)


def _name(node: yaml.Node) -> str:
    """What a worker can report: no line break in it, no space around it."""
    text = scalar(node)
    if not text.isprintable() or text != text.strip():
        raise ValueError(f"{text[:40]!r} is no name: a space around it, or a character that cannot be printed")
    return text


def _note(node: yaml.Node) -> str:
    text = scalar(node)
    if "\0" in text:
        raise ValueError("has a NUL in it, which no database keeps")
    return text


def _currency(node: yaml.Node) -> str:
    text = scalar(node)
    if not re.fullmatch(r"[A-Z]{3}", text):
        raise ValueError(f"{text!r} is not a three-letter code such as USD")
    return text


def _moment(node: yaml.Node) -> datetime:
    """A date (its first moment) or an ISO time, UTC unless it says otherwise."""
    text = scalar(node)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a date such as 2026-05-20 (or a UTC time)") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _day(node: yaml.Node) -> date:
    return _moment(node).date()


def _hour(node: yaml.Node) -> float:
    """Unix seconds of a whole hour."""
    moment = _moment(node)
    if not EARLIEST <= moment <= LATEST:
        raise ValueError(f"{scalar(node)!r} is not between 1900-01-01 and 9999-12-31T23:00")
    when = moment.timestamp()
    if when % HOUR_S:
        raise ValueError(part_hour(when))
    return when
