"""Reading what was used in a range: sums by one dimension, or cell by cell. No prices here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from controlplane.store.cost_dimensions import DIRECTIONS, OF_MACHINES, Cell, Filter, key_text
from controlplane.store.cost_models import CostDay, CostHour, CostMonth
from controlplane.store.cost_pieces import HOUR_S, Piece
from controlplane.store.models import Window, WindowCohort
from controlplane.store.rollup import HOURS_PER_DAY, IDLE, Amounts, month_of, spec_steps_of, summed

NAMES = ("sku", "model", "cohort", "tenant", "direction", "energy_source")


class Group(NamedTuple):
    """Sums of one value of the dimension, inside or outside of the filter, on one sku in one piece of the range."""

    piece: int
    key: str
    is_taken: bool
    sku: str
    direction: str
    energy_source: str
    amounts: Amounts


def groups(connection: sa.Connection, pieces: Iterable[Piece], by: str, where: Filter) -> Iterator[Group]:
    """The pieces' usage by that dimension. Idle time has the dimension's value where it has one, else ''."""
    asks_tenants = by == "tenant" or "tenant" in where.values
    for i, piece in enumerate(pieces):
        if piece.source == "window" and asks_tenants:
            yield from _grouped(i, cells(connection, piece), by, where)
            continue
        source = _source(piece)
        query = _group_query(source, by, where)
        for key, is_taken, sku, direction, energy_source, *sums in connection.execute(query):
            # PostgreSQL sums bigint to numeric; every sum here is an integer or null.
            amounts = Amounts._make(None if each is None else int(each) for each in sums)
            is_idle = direction == IDLE and by not in OF_MACHINES
            yield Group(i, "" if is_idle else key_text(by, key), bool(is_taken), sku, direction, energy_source, amounts)


def cells(connection: sa.Connection, piece: Piece) -> Iterator[tuple[Cell, Amounts]]:
    """Every cell of a piece of hours or windows, by hour and sku."""
    if piece.source == "window":
        yield from _raw_cells(connection, piece)
        return
    table = CostHour.__table__.c
    query = (
        sa.select(*(table[name] for name in ("hour", *NAMES, *Amounts._fields)))
        .where(*_within(table["hour"], piece))
        .order_by(*(table[name] for name in ("hour", *NAMES)))
        .execution_options(yield_per=2000)
    )
    width = len(Cell._fields)
    for row in connection.execute(query):
        yield Cell._make(row[:width]), Amounts._make(row[width:])


def _grouped(i: int, found: Iterable[tuple[Cell, Amounts]], by: str, where: Filter) -> Iterator[Group]:
    sums: dict[tuple[str, bool, str, str, str], Amounts] = {}
    for cell, amounts in found:
        is_idle = cell.direction == IDLE and by not in OF_MACHINES
        key = "" if is_idle else key_text(by, getattr(cell, by))
        group = (key, where.takes(cell), cell.sku, cell.direction, cell.energy_source)
        before = sums.get(group)
        sums[group] = amounts if before is None else before.plus(amounts)
    for group, amounts in sums.items():
        yield Group(i, *group, amounts)


def _group_query(source: Any, by: str, where: Filter) -> sa.Select[Any]:
    column = source["hour"] // HOURS_PER_DAY if by == "day" and "day" not in source else source[by]
    key = (column, _taken(source, where), source["sku"], source["direction"], source["energy_source"])
    labelled = [each.label(f"key_{i}") for i, each in enumerate(key)]
    by_position: list[sa.ColumnElement[Any]] = [
        sa.literal_column(f"key_{i}") for i in range(len(key)) if i != 1 or where
    ]
    return (
        sa.select(*labelled, *(summed(source[name]) for name in Amounts._fields))
        .where(*source["within"])
        .group_by(*by_position)
    )


def _taken(source: Any, where: Filter) -> sa.ColumnElement[int]:
    if not where:
        return sa.literal_column("1")
    idle = _among(source, where.of_machines)
    return sa.case((source["direction"] == IDLE, idle), else_=_among(source, where.values))


def _among(source: Any, values: Any) -> sa.ColumnElement[int]:
    conditions = []
    for name, wanted in values.items():
        column = source["hour"] // HOURS_PER_DAY if name == "day" and "day" not in source else source[name]
        conditions.append(column.in_(wanted))
    return sa.case((sa.and_(*conditions), 1), else_=0) if conditions else sa.literal_column("1")


def _source(piece: Piece) -> dict[str, Any]:
    """The columns to sum, by name, and under "within" the conditions for the piece."""
    if piece.source == "window":
        raw = _raw_columns(piece).subquery("raw")
        return {**dict(raw.c.items()), "within": ()}
    table = {"month": CostMonth, "day": CostDay, "hour": CostHour}[piece.source]
    columns = dict(table.__table__.c.items())
    return {**columns, "within": _within(columns[piece.source], piece)}


def _within(column: Any, piece: Piece) -> tuple[Any, ...]:
    first, last = int(piece.start // HOUR_S), int(piece.end // HOUR_S)
    if piece.source != "hour":
        first, last = first // HOURS_PER_DAY, last // HOURS_PER_DAY
    if piece.source == "month":
        first, last = month_of(first), month_of(last)
    return column >= first, column < last


def _raw_columns(piece: Piece) -> sa.CompoundSelect[Any]:
    """The windows of the piece as rows like cost_hour's, without tenants."""
    begin = (Window.started_at >= piece.start, Window.started_at < piece.end)
    of_window = (Window.hour, Window.device.label("sku"), Window.model)
    zero: sa.ColumnElement[int] = sa.literal_column("0")
    none: sa.ColumnElement[str] = sa.literal_column("''")
    c = WindowCohort
    measured = sa.case((c.attributed_uj.is_not(None), 1), else_=0)

    def text(value: str) -> sa.ColumnElement[str]:
        return sa.literal_column(f"'{value}'")

    def named(cohort: Any, direction: str, *amounts: Any) -> list[Any]:
        fields = zip(Amounts._fields, amounts, strict=True)
        return [
            *of_window, cohort.label("cohort"), none.label("tenant"), text(direction).label("direction"),
            Window.energy_source, *(amount.label(name) for name, amount in fields),
        ]  # fmt: skip

    given = c.emitted_tokens
    no_wasted_uj = sa.case((c.input_uj.is_not(None), 0))
    prefill = named(
        c.cohort, DIRECTIONS[0], c.input_ns, zero, c.input_uj, no_wasted_uj, c.input_tokens,
        c.input_tokens * measured, zero, zero, zero, zero, zero, zero,
    )  # fmt: skip
    decode = named(
        c.cohort, DIRECTIONS[1], c.attributed_ns - c.input_ns, c.wasted_ns, c.attributed_uj - c.input_uj, c.wasted_uj,
        given, given * measured, c.spec_steps + c.plain_steps, c.planned_k_steps, c.draft_tokens, c.accepted_tokens,
        c.requests_finished + c.requests_failed, c.spec_steps,
    )  # fmt: skip
    idle_wasted = sa.case((Window.idle_uj.is_not(None), 0))
    idle = named(none, IDLE, Window.idle_ns, zero, Window.idle_uj, idle_wasted, *(zero for _ in range(8)))
    return sa.union_all(
        sa.select(*prefill).join_from(Window, WindowCohort).where(*begin),
        sa.select(*decode).join_from(Window, WindowCohort).where(*begin),
        sa.select(*idle).where(*begin),
    )


def _raw_cells(connection: sa.Connection, piece: Piece) -> Iterator[tuple[Cell, Amounts]]:
    """Cells of single windows, summed; those of before revision 0004 name no tenant."""
    sums: dict[Cell, Amounts] = {}
    begin = (Window.started_at >= piece.start, Window.started_at < piece.end)

    def add(cell: Cell, amounts: Amounts) -> None:
        before = sums.get(cell)
        sums[cell] = amounts if before is None else before.plus(amounts)

    untold = _raw_columns(piece).subquery("raw")
    for row in connection.execute(sa.select(untold).where(untold.c.direction == IDLE)):
        add(Cell._make(row[: len(Cell._fields)]), Amounts._make(row[len(Cell._fields) :]))
    of_window = (Window.hour, Window.device, Window.model, WindowCohort.cohort, Window.energy_source)
    query = (
        sa.select(*of_window, WindowCohort.uses, WindowCohort.spec_steps, *_LEGACY)
        .join_from(Window, WindowCohort)
        .where(*begin)
    )
    for hour, sku, model, cohort, energy_source, uses, spec_steps, *columns in connection.execute(query):
        for tenant, direction, amounts in told_uses(_legacy_uses(*columns) if uses is None else uses, spec_steps):
            add(Cell(hour, sku, model, cohort, tenant or "", direction, energy_source), amounts)
    yield from sorted(sums.items())


def told_uses(uses: Sequence[Sequence[Any]], spec_steps: int) -> list[tuple[str | None, str, Amounts]]:
    """A cohort's uses in a window, as models.WindowCohort has them; in those of before revision 0009 its spec_steps
    are put where they were spent.
    """
    found = [
        (tenant, direction, Amounts._make([*told, 0][: len(Amounts._fields)])) for tenant, direction, *told in uses
    ]
    if all(len(use) == 2 + len(Amounts._fields) for use in uses):
        return found
    drafting = spec_steps_of(spec_steps, [(amounts.steps, amounts.draft_tokens) for _, _, amounts in found])
    return [
        (tenant, direction, amounts._replace(spec_steps=steps))
        for (tenant, direction, amounts), steps in zip(found, drafting, strict=True)
    ]


_LEGACY = (
    WindowCohort.input_ns, WindowCohort.input_uj, WindowCohort.attributed_ns, WindowCohort.wasted_ns,
    WindowCohort.attributed_uj, WindowCohort.wasted_uj, WindowCohort.emitted_tokens, WindowCohort.spec_steps,
    WindowCohort.plain_steps, WindowCohort.planned_k_steps, WindowCohort.draft_tokens, WindowCohort.accepted_tokens,
    WindowCohort.requests_finished, WindowCohort.requests_failed,
)  # fmt: skip


def _legacy_uses(
    input_ns: int, input_uj: int | None, ns: int, wasted_ns: int, uj: int | None, wasted_uj: int | None, emitted: int,
    spec: int, plain: int, planned: int, drafted: int, accepted: int, finished: int, failed: int,
) -> list[list[Any]]:  # fmt: skip
    """The uses of a row that was written before there were any, from its columns."""
    is_measured = uj is not None and input_uj is not None
    output_uj = uj - input_uj if uj is not None and input_uj is not None else None
    return [
        [None, "input", input_ns, 0, input_uj, 0 if is_measured else None, 0, 0, 0, 0, 0, 0, 0],
        [None, "output", ns - input_ns, wasted_ns, output_uj, wasted_uj, emitted, emitted if is_measured else 0,
         spec + plain, planned, drafted, accepted, finished + failed],
    ]  # fmt: skip
