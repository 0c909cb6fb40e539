"""What an export is made of: billed cells in, rows of named and typed fields out; and what could not be billed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from decimal import Context, Decimal
from functools import reduce
from itertools import groupby
from typing import Literal, NamedTuple, Protocol

Row = tuple[str | Decimal | datetime | None, ...]
Kind = Literal["text", "integer", "decimal", "moment"]

HOUR_S = 3600
_WIDE = Context(prec=100)
"""More digits than any sum here has: shifting the decimal point never rounds."""


class Field(NamedTuple):
    """One column of a file. scale: decimal places that a decimal may have."""

    name: str
    kind: Kind
    scale: int = 0


class BilledCell(Protocol):
    """One cell of the bill (controlplane.store.cost_rows.CostCell says what each is)."""

    @property
    def hour(self) -> int: ...
    @property
    def sku(self) -> str: ...
    @property
    def model(self) -> str: ...
    @property
    def cohort(self) -> str | None: ...
    @property
    def tenant(self) -> str | None: ...
    @property
    def direction(self) -> Literal["input", "output", "idle"]: ...
    @property
    def ns(self) -> int: ...
    @property
    def wasted_ns(self) -> int: ...
    @property
    def cost_nano(self) -> int | None: ...
    @property
    def wasted_cost_nano(self) -> int | None: ...
    @property
    def uj(self) -> int | None: ...
    @property
    def wasted_uj(self) -> int | None: ...
    @property
    def energy_source(self) -> str: ...
    @property
    def tokens(self) -> int: ...
    @property
    def steps(self) -> int: ...
    @property
    def planned_k_steps(self) -> int: ...
    @property
    def draft_tokens(self) -> int: ...
    @property
    def accepted_tokens(self) -> int: ...
    @property
    def requests(self) -> int: ...


def scaled(units: int, places: int) -> Decimal:
    """`units` x 10^-places, exactly."""
    return Decimal(units).scaleb(-places, _WIDE)


def exact_sum(amounts: Iterable[Decimal]) -> Decimal:
    """Their sum, never rounded: the usual 28 digits are too few for large amounts with many decimals."""
    return reduce(_WIDE.add, amounts, Decimal(0))


def known(units: int | None, places: int) -> Decimal | None:
    """Like `scaled`; what is not known stays None."""
    return None if units is None else scaled(units, places)


def ratio(part: int, whole: int, places: int) -> Decimal | None:
    """Part / whole to that many places, rounded half up; None of nothing."""
    return scaled((2 * part * 10**places + whole) // (2 * whole), places) if whole else None


def hour_start(hour: int) -> datetime:
    """The first moment of that hour since the unix epoch, UTC."""
    return datetime.fromtimestamp(hour * HOUR_S, UTC)


def machine_hours(cells: Iterable[BilledCell]) -> Iterator[list[BilledCell]]:
    """Cells by (hour, sku), in which order they must come: what one price was applied to at once."""
    for _, group in groupby(cells, key=lambda cell: (cell.hour, cell.sku)):
        yield list(group)


class UnpricedUse(NamedTuple):
    """Use of a sku that has no price in consecutive hours [first, last], since the unix epoch. ns: machine time."""

    sku: str
    first: int
    last: int
    cells: int
    ns: int
    input_tokens: int
    emitted_tokens: int

    def line(self, why: str) -> str:
        """For a person: from when to when, how much, and what is missing."""
        start, end = hour_start(self.first), hour_start(self.last + 1)
        return (
            f"unpriced: {self.sku}, {start:%Y-%m-%dT%H:00Z} to {end:%Y-%m-%dT%H:00Z}: {self.ns / 3.6e12:.3f} machine "
            f"hours, {self.input_tokens:,} input and {self.emitted_tokens:,} emitted tokens; {why}"
        )


class UnpricedUses:
    """Collects machine hours without a price, as few stretches of consecutive hours by sku."""

    def __init__(self) -> None:
        self._by_sku: dict[str, list[UnpricedUse]] = {}

    def add(self, group: Sequence[BilledCell]) -> None:
        """One machine hour (all of one sku and hour, hours ascending)."""
        hour, sku = group[0].hour, group[0].sku
        found = UnpricedUse(
            sku,
            hour,
            hour,
            len(group),
            sum(cell.ns for cell in group),
            sum(cell.tokens for cell in group if cell.direction == "input"),
            sum(cell.tokens for cell in group if cell.direction == "output"),
        )
        stretches = self._by_sku.setdefault(sku, [])
        if stretches and stretches[-1].last >= hour - 1:
            before = stretches.pop()
            sums = (a + b for a, b in zip(before[3:], found[3:], strict=True))
            found = UnpricedUse(sku, before.first, hour, *sums)
        stretches.append(found)

    def __iter__(self) -> Iterator[UnpricedUse]:
        return (use for sku in sorted(self._by_sku) for use in self._by_sku[sku])

    def __bool__(self) -> bool:
        return bool(self._by_sku)


CELL_FIELDS = (
    Field("hour", "moment"),
    Field("sku", "text"),
    Field("model", "text"),
    Field("cohort", "text"),
    Field("tenant", "text"),
    Field("direction", "text"),
    Field("machine_s", "decimal", 9),
    Field("wasted_s", "decimal", 9),
    Field("cost", "decimal", 9),
    Field("wasted_cost", "decimal", 9),
    Field("currency", "text"),
    Field("basis", "text"),
    Field("energy_j", "decimal", 6),
    Field("wasted_j", "decimal", 6),
    Field("energy_source", "text"),
    Field("carbon_g", "decimal", 9),
    Field("tokens", "integer"),
    Field("steps", "integer"),
    Field("mean_k", "decimal", 6),
    Field("draft_tokens", "integer"),
    Field("accepted_tokens", "integer"),
    Field("requests", "integer"),
)

Carbon = Callable[[int | None, float], Decimal | None]
"""Grams of (microjoules, unix seconds); None where it is not known."""


def cell_row(cell: BilledCell, currency: str | None, basis: str, carbon: Carbon) -> Row:
    """One cell as a row of CELL_FIELDS; money, seconds, joules and grams in full, unpriced and unmeasured None.

    mean_k: of the K that the plan had for the cell's steps.
    """
    return (
        hour_start(cell.hour),
        cell.sku,
        cell.model,
        cell.cohort,
        cell.tenant,
        cell.direction,
        scaled(cell.ns, 9),
        scaled(cell.wasted_ns, 9),
        known(cell.cost_nano, 9),
        known(cell.wasted_cost_nano, 9),
        currency,
        basis,
        known(cell.uj, 6),
        known(cell.wasted_uj, 6),
        cell.energy_source,
        carbon(cell.uj, cell.hour * HOUR_S),
        Decimal(cell.tokens),
        Decimal(cell.steps),
        ratio(cell.planned_k_steps, cell.steps, 6),
        Decimal(cell.draft_tokens),
        Decimal(cell.accepted_tokens),
        Decimal(cell.requests),
    )
