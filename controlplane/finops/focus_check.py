"""Whether this is FOCUS, column by column: presence, type, format, nullability, allowed
values; then the rules between columns.

Rows come as columns (name -> values), either typed (Decimal, aware datetime, str, None), as an export is about to write
them, or as the text that a reader of a CSV file has (empty = null: `from_text`). Column order does not matter. What
only a person can judge (is this name the invoice issuer's?) is not checked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from decimal import Decimal

from controlplane.finops.focus_columns import CUSTOM_PREFIX, MANDATORY, FocusColumn, columns
from controlplane.finops.focus_rules import Columns, rule_problems
from controlplane.finops.focus_values import Value, type_problem, value_problem

CUSTOM = re.compile(r"x_[A-Z][A-Za-z0-9]*")


def problems(found: Columns, version: str = "1.2") -> list[str]:
    """One line for each rule that does not hold, with the first row (from 0) in which it does not. Empty = conforms."""
    return list(_problems(found, version))


def from_text(rows: Sequence[Mapping[str, str]]) -> dict[str, list[Value]]:
    """Rows of a CSV file (csv.DictReader) as columns: an empty field is null."""
    names = rows[0] if rows else ()
    return {name: [row[name] or None for row in rows] for name in names}


def _problems(found: Columns, version: str) -> Iterator[str]:
    known = {column.name: column for column in columns(version)}
    for column in known.values():
        if column.level == MANDATORY and column.name not in found:
            yield f"{column.name}: missing; it is mandatory in FOCUS {version}"
    if len({len(values) for values in found.values()}) > 1:
        yield "columns: they differ in length"
        return
    for name, values in found.items():
        if name in known:
            yield from _column_problems(known[name], values)
        elif not CUSTOM.fullmatch(name):
            yield f"{name}: no column of FOCUS {version}; a column of one's own is named {CUSTOM_PREFIX}PascalCase"
        else:
            yield from _own_problems(name, values)
    yield from rule_problems(found, version)


def _column_problems(column: FocusColumn, values: Sequence[Value]) -> Iterator[str]:
    # Most columns hold few distinct values: each is looked at once.
    for value in dict.fromkeys(values):
        if problem := value_problem(column, value):
            yield f"{column.name}: row {values.index(value)}: {problem}"


def _own_problems(name: str, values: Sequence[Value]) -> Iterator[str]:
    for value in dict.fromkeys(values):
        kind = "datetime" if isinstance(value, datetime) else "decimal" if isinstance(value, Decimal) else "string"
        if value is not None and (problem := type_problem(kind, value)):
            yield f"{name}: row {values.index(value)}: {problem}"
