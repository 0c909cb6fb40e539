"""One value of a FOCUS file: whether it is of its column's type, format and set of allowed values."""

from __future__ import annotations

import json
import re
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from controlplane.finops.focus_columns import FocusColumn

Value = str | Decimal | datetime | None

MOMENT = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}Z")
NUMBER = re.compile(r"-?(\d+(\.\d*)?|\.\d+)([Ee]-?\d+)?")
UNIT = re.compile(r"([1-9]\d* )?[A-Z][A-Za-z]*(-[A-Z][A-Za-z]*)*(/([1-9]\d* )?[A-Z][a-z]+)?")
CURRENCY = re.compile(r"[A-Z]{3}")


def value_problem(column: FocusColumn, value: Value) -> str | None:
    """What is wrong with a value of that column; None when nothing is."""
    if value is None:
        return None if column.is_nullable else "null, which it may not be"
    if problem := type_problem(column.type, value):
        return problem
    if column.allowed and value not in column.allowed:
        return f"{value!r} is none of {', '.join(column.allowed)}"
    if column.format == "unit" and not UNIT.fullmatch(str(value)):
        return f"{value!r} is not a unit such as Tokens, Hours or 1000000 Tokens"
    if column.format == "currency" and not CURRENCY.fullmatch(str(value)):
        return f"{value!r} is not a three-letter currency code"
    if column.format == "non_negative" and Decimal(str(value)) < 0:
        return f"{value} is negative"
    if column.format == "key_value":
        return _key_value_problem(str(value))
    return None


def type_problem(type: str, value: Value) -> str | None:
    """What keeps a value, typed or as text, from being a string, decimal, datetime or json; None when nothing does."""
    if type == "datetime":
        if isinstance(value, datetime):
            is_utc = value.utcoffset() == timedelta(0) and not value.microsecond
            return None if is_utc else f"{value} is not a whole second in UTC"
        return None if is_moment(value) else f"{value!r} is not a UTC time such as 2026-11-29T15:00:00Z"
    if type == "decimal":
        if isinstance(value, Decimal):
            return None if value.is_finite() else f"{value} is not a number"
        is_number = isinstance(value, str) and NUMBER.fullmatch(value)
        return None if is_number else f"{value!r} is not a plain decimal number"
    if not isinstance(value, str):
        return f"{value!r} is not text"
    if not value:
        return "empty text; what is not known is null"
    if type == "json":
        return _object_problem(value)
    return None


def is_moment(value: Value) -> bool:
    """Whether it is text such as 2026-11-29T15:00:00Z."""
    if not isinstance(value, str) or not MOMENT.fullmatch(value):
        return False
    try:
        datetime.fromisoformat(value)
    except ValueError:
        return False
    return True


def pairs(text: str) -> list[tuple[str, Any]] | None:
    """Pairs of a JSON object as written, keys possibly repeated; None when the text is not one."""
    try:
        found = json.loads(text, object_pairs_hook=list)
    except ValueError:
        return None
    is_object = text.lstrip().startswith("{")
    return found if is_object else None


def _object_problem(text: str) -> str | None:
    return None if pairs(text) is not None else f"{text!r} is not a JSON object"


def _key_value_problem(text: str) -> str | None:
    found = pairs(text) or []
    if len({key for key, _ in found}) < len(found):
        return f"{text!r} has a key twice"
    if any(isinstance(value, list) for _, value in found):
        return f"{text!r} has an object or a list as a value"
    return None
