"""What a cost report can be read by and filtered by, and how each value is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, NamedTuple, TypeAlias

from controlplane.store.rollup import HOURS_PER_DAY, IDLE

Dimension = Literal["cohort", "tenant", "model", "sku", "direction", "hour", "day"]

DIMENSIONS = ("cohort", "tenant", "model", "sku", "direction", "hour", "day")

OF_MACHINES = ("model", "sku", "hour", "day")
"""Dimensions that idle time has a value of, too: the machine that was idle is of a model, and idle in an hour."""

DIRECTIONS = ("input", "output")

NO_TENANT = "(none)"

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Where: TypeAlias = Mapping[str, Sequence[str]]
"""Dimension -> values; a part of the bill is in when each dimension has one of its values."""


class Cell(NamedTuple):
    """The key of a part of the bill, as it is stored ('' = none)."""

    hour: int
    sku: str
    model: str
    cohort: str
    tenant: str
    direction: str
    energy_source: str

    @property
    def day(self) -> int:
        return self.hour // HOURS_PER_DAY


class Filter(NamedTuple):
    """A `where` with its values as they are stored."""

    values: Mapping[str, tuple[Any, ...]]

    def __bool__(self) -> bool:
        return bool(self.values)

    @property
    def of_machines(self) -> Mapping[str, tuple[Any, ...]]:
        """The part of it that idle time is asked by."""
        return {name: wanted for name, wanted in self.values.items() if name in OF_MACHINES}

    def takes(self, cell: Cell) -> bool:
        asked = self.of_machines if cell.direction == IDLE else self.values
        return all(getattr(cell, name) in wanted for name, wanted in asked.items())


def check_dimension(by: str) -> None:
    """Raises ValueError for another dimension."""
    if by not in DIMENSIONS:
        raise ValueError(f"by: {by!r} is none of {', '.join(DIMENSIONS)}")


def parse_where(where: Where) -> Filter:
    """Raises ValueError naming the dimension or the value that cannot be."""
    values = {}
    for name, wanted in where.items():
        if name not in DIMENSIONS:
            raise ValueError(f"where: {name!r} is none of {', '.join(DIMENSIONS)}")
        if isinstance(wanted, str) or not wanted:
            raise ValueError(f"where: {name}: wants a list of one value or more")
        values[name] = tuple(_stored(name, value) for value in wanted)
    return Filter(values)


def _stored(name: str, value: str) -> str | int:
    match name:
        case "hour" | "day":
            try:
                moment = datetime.fromisoformat(value.strip())
            except ValueError:
                example = "2026-11-29T15:00Z" if name == "hour" else "2026-11-29"
                raise ValueError(f"where: {name}: {value!r} is not written as {example}") from None
            hour = (moment.replace(tzinfo=moment.tzinfo or UTC) - EPOCH) // timedelta(hours=1)
            return hour if name == "hour" else hour // HOURS_PER_DAY
        case "direction" if value not in DIRECTIONS:
            raise ValueError(f"where: direction: {value!r} is neither input nor output; idle is a row of its own")
        case "tenant" if value == NO_TENANT:
            return ""
        case _:
            return value


def key_text(by: str, value: Any) -> str:
    """A stored value as a row's key."""
    match by:
        case "hour":
            return hour_key(int(value))
        case "day":
            return day_key(int(value))
        case "tenant":
            return value or NO_TENANT
        case _:
            return str(value)


def hour_key(hour: int) -> str:
    """Hours since the epoch as 2026-11-29T15:00Z, the hour's start."""
    return f"{EPOCH + timedelta(hours=hour):%Y-%m-%dT%H:00Z}"


def day_key(day: int) -> str:
    """Days since the epoch as 2026-11-29."""
    return f"{EPOCH + timedelta(days=day):%Y-%m-%d}"
