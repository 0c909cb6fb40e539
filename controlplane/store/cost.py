"""The cost report: machine time and energy of a range, priced, by one dimension, with idle apart.

SQL sums exact integers per cell (cohort, model, hour, device, energy source); each device's bill in a stretch of one
price is then split over its cells and idle by largest remainder. A cell costs the same in every report, so the rows of
each dimension + idle = the bill, to the nano-unit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from itertools import pairwise
from typing import Any, NamedTuple

import sqlalchemy as sa

from controlplane.finops.attribution import cost_by_part, split
from controlplane.finops.pricing import PriceSheet
from controlplane.store.engine import reading
from controlplane.store.models import Request, Window, WindowCohort
from controlplane.store.time_range import TimeRange

DIMENSIONS = ("cohort", "model", "tenant", "hour")
NO_TENANT = "(none)"
UNFINISHED = "(unfinished)"
"""Cost of a cohort in the range of which no request finished in the range: no tenant can be named yet."""

STALE_PRICE_S = 180 * 86400.0


@dataclass(frozen=True, slots=True)
class CostRow:
    """One value of the dimension, the idle rest, or the total.

    cost_nano: integer nano-units, None = unpriced. energy_uj: microjoules of the windows that were measured, None =
    none was; measured_tokens: the tokens emitted in those. energy_source: the windows' sources, joined by "+" when
    there are several. wasted_*: spent on rejected draft positions. requests, input_tokens: of requests that finished
    in the range; emitted_tokens: of the windows (by tenant: of those requests).
    """

    key: str
    input_tokens: int = 0
    emitted_tokens: int = 0
    cost_nano: int | None = 0
    energy_uj: int | None = None
    energy_source: str = "none"
    wasted_cost_nano: int | None = 0
    wasted_uj: int | None = None
    requests: int = 0
    measured_tokens: int = 0

    @property
    def cost_per_million_tokens(self) -> Decimal | None:
        """Currency per million emitted tokens, to six decimals; None when unpriced or without tokens."""
        if self.cost_nano is None or not self.emitted_tokens:
            return None
        return (Decimal(self.cost_nano) / 1000 / self.emitted_tokens).quantize(Decimal("1e-6"))

    @property
    def j_per_token(self) -> float | None:
        """Joules per emitted token, over the measured windows only."""
        if self.energy_uj is None or not self.measured_tokens:
            return None
        return self.energy_uj / 1e6 / self.measured_tokens


@dataclass(frozen=True, slots=True)
class CostReport:
    """rows + idle = total, exactly. machine_s: seconds of all windows together, idle_s: of them
    without work. unpriced: a line per missing price.
    """

    rows: tuple[CostRow, ...]
    idle: CostRow
    total: CostRow
    currency: str | None
    basis: str
    machine_s: float
    unpriced: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    idle_s: float = 0.0


class Cell(NamedTuple):
    """Sums of one (cohort, model, hour); cohort None is idle. Unpriced and unmeasured are None."""

    cohort: str | None
    model: str
    hour: int
    cost: int | None
    wasted_cost: int | None
    energy: int | None
    wasted_energy: int | None
    source: str
    emitted_tokens: int = 0
    measured_tokens: int = 0


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
    idle = _row("idle", [c for c in cells if c.cohort is None])
    rows = _rows_by_tenant(work, requests) if by == "tenant" else _rows(work, requests, by)
    return CostReport(
        rows=tuple(sorted(rows, key=lambda r: r.key)),
        idle=idle,
        total=_total([*rows, idle]),
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


def hour_key(hour: int) -> str:
    """Hours since the epoch as 2026-11-29T15:00Z, the hour's start."""
    return datetime.fromtimestamp(hour * 3600, UTC).strftime("%Y-%m-%dT%H:00Z")


def _key(by: str, item: Mapping[str, Any]) -> str:
    return hour_key(item["hour"]) if by == "hour" else str(item[by])


def _rows(cells: Iterable[Cell], requests: Sequence[Mapping[str, Any]], by: str) -> list[CostRow]:
    grouped: dict[str, list[Cell]] = defaultdict(list)
    for cell in cells:
        grouped[_key(by, cell._asdict())].append(cell)
    rows = {key: _row(key, group) for key, group in grouped.items()}
    for r in requests:
        key = _key(by, r)
        row = rows.get(key, CostRow(key))
        rows[key] = replace(
            row, input_tokens=row.input_tokens + r["input_tokens"], requests=row.requests + r["requests"]
        )
    return list(rows.values())


def _rows_by_tenant(cells: Iterable[Cell], requests: Sequence[Mapping[str, Any]]) -> list[CostRow]:
    """A (cohort, model)'s cost and energy over its requests that finished in the range, by their positions."""
    work: dict[tuple[str | None, str], list[Cell]] = defaultdict(list)
    for cell in cells:
        work[cell.cohort, cell.model].append(cell)
    asked: dict[tuple[str | None, str], list[Mapping[str, Any]]] = defaultdict(list)
    for r in requests:
        asked[r["cohort"], r["model"]].append(r)
    pieces: dict[str, list[CostRow]] = defaultdict(list)
    for pair in [*work, *(p for p in asked if p not in work)]:
        whole = _row(UNFINISHED, work.get(pair, []))
        if not asked.get(pair):
            pieces[UNFINISHED].append(replace(whole, emitted_tokens=0, measured_tokens=0))
            continue
        tenants = [NO_TENANT if r["tenant"] is None else r["tenant"] for r in asked[pair]]
        weights = [r["positions"] for r in asked[pair]]
        shared = {
            name: [None] * len(weights) if amount is None else split(amount, weights)
            for name in ("cost_nano", "energy_uj", "wasted_cost_nano", "wasted_uj")
            for amount in (getattr(whole, name),)
        }
        for i, (tenant, r) in enumerate(zip(tenants, asked[pair], strict=True)):
            emitted = r["completion_tokens"]
            measured = emitted * whole.measured_tokens // whole.emitted_tokens if whole.emitted_tokens else 0
            pieces[tenant].append(
                CostRow(
                    tenant,
                    r["input_tokens"],
                    emitted,
                    energy_source=whole.energy_source,
                    requests=r["requests"],
                    measured_tokens=measured,
                    **{name: amounts[i] for name, amounts in shared.items()},
                )
            )
    return [replace(_total(group), key=tenant) for tenant, group in pieces.items()]


def _sum_priced(amounts: Iterable[int | None]) -> int | None:
    """A sum with an unpriced part is unpriced: a partial bill would look like a low one."""
    total = 0
    for amount in amounts:
        if amount is None:
            return None
        total += amount
    return total


def _sum_measured(amounts: Iterable[int | None]) -> int | None:
    """Sum of what was measured; None when nothing was."""
    known = [a for a in amounts if a is not None]
    return sum(known) if known else None


def _sources(names: Iterable[str]) -> str:
    return "+".join(sorted({part for name in names for part in name.split("+")})) or "none"


def _row(key: str, cells: Sequence[Cell]) -> CostRow:
    return CostRow(
        key,
        emitted_tokens=sum(c.emitted_tokens for c in cells),
        cost_nano=_sum_priced(c.cost for c in cells),
        energy_uj=_sum_measured(c.energy for c in cells),
        energy_source=_sources(c.source for c in cells),
        wasted_cost_nano=_sum_priced(c.wasted_cost for c in cells),
        wasted_uj=_sum_measured(c.wasted_energy for c in cells),
        measured_tokens=sum(c.measured_tokens for c in cells),
    )


def _total(rows: Sequence[CostRow]) -> CostRow:
    # Rows without windows (say, a request whose windows lie outside the range) have no energy source to add.
    sources = [r.energy_source for r in rows if r.energy_source != "none" or r.energy_uj is not None or r.cost_nano]
    return CostRow(
        "total",
        sum(r.input_tokens for r in rows),
        sum(r.emitted_tokens for r in rows),
        _sum_priced(r.cost_nano for r in rows),
        _sum_measured(r.energy_uj for r in rows),
        _sources(sources),
        _sum_priced(r.wasted_cost_nano for r in rows),
        _sum_measured(r.wasted_uj for r in rows),
        sum(r.requests for r in rows),
        sum(r.measured_tokens for r in rows),
    )
