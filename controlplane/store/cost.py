"""The cost report: machine time and energy of a range, priced, by one dimension, with idle apart.

SQL sums exact integers per cell (cohort, model, hour, device, energy source); each device's bill in a stretch of one
price is then split over its cells and idle by largest remainder. A cell costs the same in every report, so the rows of
each dimension + idle = the bill, to the nano-unit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from itertools import pairwise
from typing import Any

import sqlalchemy as sa

from controlplane.finops.attribution import cost_by_part, split
from controlplane.finops.pricing import PriceSheet
from controlplane.store.cost_rows import DIMENSIONS, Cell, CostReport, row_of, rows_by, rows_by_tenant, total_of
from controlplane.store.engine import reading
from controlplane.store.models import Request, Window, WindowCohort
from controlplane.store.time_range import TimeRange

STALE_PRICE_S = 180 * 86400.0


def cost_report(
    engine: sa.Engine, range: TimeRange, by: str, sheet: PriceSheet, basis: str | None = None
) -> CostReport:
    """What the range cost, by cohort, model, tenant or hour, at the sheet's prices of that basis.

    basis None: the sheet's default. Raises ValueError for another dimension.
    """
    if by not in DIMENSIONS:
        raise ValueError(f"by: {by!r} is none of {', '.join(DIMENSIONS)}")
    basis = basis or sheet.default_basis
    cells: list[Cell] = []
    unpriced: dict[str, None] = {}
    warnings: dict[str, None] = {}
    machine_ns = idle_ns = 0
    with reading(engine).connect() as connection:
        # A stretch between two change points never spans two prices.
        for start, end in pairwise(sheet.change_points(range.start, range.end)):
            for device, parts in _read_parts(connection, start, end).items():
                price = sheet.price_at(device, basis, start)
                if price is None:
                    unpriced[sheet.why_unpriced(device, basis, start)] = None
                elif range.end - datetime.combine(price.as_of, datetime.min.time(), UTC).timestamp() > STALE_PRICE_S:
                    warnings[f"the {basis} price of {device} was read on {price.as_of}, over 180 days ago"] = None
                cells += _priced(parts, None if price is None else price.per_hour_nano)
                machine_ns += sum(p["ns"] for p in parts)
                idle_ns += sum(p["ns"] for p in parts if p["cohort"] is None)
        requests = [_integers(row) for row in connection.execute(_requests(range)).mappings()]
    work = [c for c in cells if c.cohort is not None]
    idle = row_of("idle", [c for c in cells if c.cohort is None])
    rows = rows_by_tenant(work, requests) if by == "tenant" else rows_by(work, requests, by)
    return CostReport(
        rows=tuple(sorted(rows, key=lambda r: r.key)),
        idle=idle,
        total=total_of([*rows, idle]),
        currency=sheet.currency,
        basis=basis,
        machine_s=machine_ns / 1e9,
        unpriced=tuple(unpriced),
        warnings=tuple(warnings),
        idle_s=idle_ns / 1e9,
    )


def _read_parts(connection: sa.Connection, start: float, end: float) -> dict[str, list[Mapping[str, Any]]]:
    """Machine time and energy by device: a part for each cohort, model, hour and energy source, and for idle."""
    in_range = (Window.started_at >= start, Window.started_at < end)
    key = (Window.device, Window.model, Window.hour, Window.energy_source)

    def total(column: Any) -> Any:
        return sa.func.sum(column).label(column.key)

    measured = sa.case((WindowCohort.attributed_uj.is_not(None), WindowCohort.emitted_tokens), else_=0)
    busy = (
        sa.select(
            *key,
            WindowCohort.cohort,
            sa.func.sum(WindowCohort.attributed_ns).label("ns"),
            total(WindowCohort.wasted_ns),
            sa.func.sum(WindowCohort.attributed_uj).label("uj"),
            total(WindowCohort.wasted_uj),
            total(WindowCohort.emitted_tokens),
            sa.func.sum(measured).label("measured_tokens"),
        )
        .join_from(Window, WindowCohort)
        .where(*in_range)
        .group_by(*key, WindowCohort.cohort)
        .order_by(*key, WindowCohort.cohort)
    )
    idle = (
        sa.select(*key, sa.func.sum(Window.idle_ns).label("ns"), sa.func.sum(Window.idle_uj).label("uj"))
        .where(*in_range)
        .group_by(*key)
        .order_by(*key)
    )
    parts: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for row in connection.execute(busy).mappings():
        parts[row["device"]].append(_integers(row))
    for row in connection.execute(idle).mappings():
        parts[row["device"]].append({"cohort": None, **_integers(row)})
    return parts


def _integers(row: sa.RowMapping) -> dict[str, Any]:
    """PostgreSQL sums bigint to numeric; every sum here is an integer or null."""
    return {name: int(value) if isinstance(value, Decimal) else value for name, value in row.items()}


def _priced(parts: Sequence[Mapping[str, Any]], per_hour_nano: int | None) -> list[Cell]:
    """One device's parts under one price, as cells that together cost exactly its bill."""
    costs: Sequence[int | None]
    costs = [None] * len(parts) if per_hour_nano is None else cost_by_part([p["ns"] for p in parts], per_hour_nano)
    cells = []
    for part, cost in zip(parts, costs, strict=True):
        wasted_ns = part.get("wasted_ns", 0)
        wasted = cost if not cost else split(cost, (wasted_ns, part["ns"] - wasted_ns))[0]
        cells.append(
            Cell(
                part["cohort"],
                part["model"],
                part["hour"],
                cost,
                wasted,
                part["uj"],
                part.get("wasted_uj"),
                part["energy_source"],
                part.get("emitted_tokens", 0),
                part.get("measured_tokens", 0),
            )
        )
    return cells


def _requests(range: TimeRange) -> sa.Executable:
    key = (Request.cohort, Request.model, Request.hour, Request.tenant)
    positions = Request.prefill_positions + Request.verify_positions + Request.draft_positions
    return (
        sa.select(
            *key,
            sa.func.count().label("requests"),
            sa.func.sum(Request.prompt_tokens).label("input_tokens"),
            sa.func.sum(Request.completion_tokens).label("completion_tokens"),
            sa.func.sum(positions).label("positions"),
        )
        .where(Request.finished_at >= range.start, Request.finished_at < range.end)
        .group_by(*key)
        .order_by(*key)
    )
