"""The cost report, and the cells of the bill: usage of a range at the prices of its hours.

Months and days are read where they are whole, hours where they are, single windows at the edges (cost_pieces). SQL sums
exact integers (cost_usage), the bill is split over them in integers (cost_bill): rows + rest + idle = the bill, to the
nano-unit, by any dimension, with any filter.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, cast

import sqlalchemy as sa

from controlplane.finops.attribution import cost_of_time, split
from controlplane.finops.pricing import BASES, Prices
from controlplane.store.cost_bill import Asked, report_of
from controlplane.store.cost_dimensions import Cell, Where, check_dimension, parse_where
from controlplane.store.cost_pieces import HOUR_S, Source, find_pieces
from controlplane.store.cost_rows import CostCell, CostReport, IdleRule
from controlplane.store.cost_usage import cells, groups
from controlplane.store.engine import reading
from controlplane.store.rollup import Amounts
from controlplane.store.time_range import TimeRange

NOTHING: Where = {}


def cost_report(
    engine: sa.Engine,
    range: TimeRange,
    by: str,
    sheet: Prices,
    basis: str | None = None,
    *,
    where: Where = NOTHING,
    idle: IdleRule = "none",
) -> CostReport:
    """What the range cost by one of DIMENSIONS, at the prices of that basis (None: the sheet's default).

    where: dimension -> values; the rows are then of the parts that have one of the values in each, `rest` of all
    others. idle: its own row; "weighted" spreads it over the rows and the rest by their machine time (by model, sku,
    hour and day: over those whose idle it is), "even" in even parts. Raises ValueError for another dimension, value or
    rule.
    """
    basis = basis or sheet.default_basis
    return cost_reports(engine, range, by, sheet, (basis,), where=where, idle=idle)[basis]


def cost_reports(
    engine: sa.Engine,
    range: TimeRange,
    by: str,
    sheet: Prices,
    bases: Sequence[str] = (),
    *,
    where: Where = NOTHING,
    idle: IdleRule = "none",
) -> dict[str, CostReport]:
    """One usage under several bases, each as in cost_report. No bases: those that price any of it, else the default."""
    check_dimension(by)
    wanted = parse_where(where)
    if idle not in ("none", "weighted", "even"):
        raise ValueError(f"idle: {idle!r} is none of none, weighted, even")
    with reading(engine).connect() as connection:
        found = find_pieces(connection, range, sheet, bases or BASES, _coarsest({by, *where}))
        used = list(groups(connection, found.pieces, by, wanted))
    asked = Asked(range.end, by, idle, bool(wanted))
    if not bases:
        at = {(found.pieces[i].hour * HOUR_S, sku) for i, sku in found.machine_ns}
        priced = [each for each in BASES if any(sheet.price_at(sku, each, when) is not None for when, sku in at)]
        bases = priced or [sheet.default_basis]
    return {basis: report_of(found, used, sheet, basis, asked) for basis in bases}


def _coarsest(dimensions: set[str]) -> Source:
    return "hour" if "hour" in dimensions else "day" if "day" in dimensions else "month"


def cost_cells(
    engine: sa.Engine, range: TimeRange, sheet: Prices, basis: str | None = None, *, where: Where = NOTHING
) -> Iterator[CostCell]:
    """Every cell of the bill by hour and sku, those that the filter takes; the cells of an (hour, sku) are its bill.

    Hours at the edges are cut as in cost_report. Holds one hour of one sku at a time. Raises ValueError as
    cost_report does.
    """
    wanted = parse_where(where)
    basis = basis or sheet.default_basis
    with reading(engine).connect() as connection:
        found = find_pieces(connection, range, sheet, (basis,), "hour")
        for piece in sorted(found.pieces, key=lambda piece: piece.start):
            for (hour, sku), group in groupby(cells(connection, piece), key=lambda item: item[0][:2]):
                price = sheet.price_at(sku, basis, hour * HOUR_S)
                for cell, billed in _billed(list(group), None if price is None else price.per_hour_nano):
                    if wanted.takes(cell):
                        yield billed


def _billed(parts: list[tuple[Cell, Amounts]], per_hour_nano: int | None) -> Iterator[tuple[Cell, CostCell]]:
    """The cells of one hour of one sku, which together cost exactly its bill."""
    machine_ns = [amounts.ns for _, amounts in parts]
    costs: list[int] | list[None] = [None] * len(parts)
    if per_hour_nano is not None:
        costs = split(cost_of_time(sum(machine_ns), per_hour_nano), machine_ns)
    for (cell, amounts), cost in zip(parts, costs, strict=True):
        wasted = cost
        if cost:
            wasted = split(cost, (amounts.wasted_ns, amounts.ns - amounts.wasted_ns))[0]
        yield (
            cell,
            CostCell(
                hour=cell.hour,
                sku=cell.sku,
                model=cell.model,
                cohort=cell.cohort or None,
                tenant=cell.tenant or None,
                direction=cast(Any, cell.direction),
                ns=amounts.ns,
                wasted_ns=amounts.wasted_ns,
                cost_nano=cost,
                wasted_cost_nano=wasted,
                uj=amounts.uj,
                wasted_uj=amounts.wasted_uj,
                energy_source=cell.energy_source,
                tokens=amounts.tokens,
                steps=amounts.steps,
                planned_k_steps=amounts.planned_k_steps,
                draft_tokens=amounts.draft_tokens,
                accepted_tokens=amounts.accepted_tokens,
                requests=amounts.requests,
                measured_tokens=amounts.measured_tokens,
                spec_steps=amounts.spec_steps,
            ),
        )
