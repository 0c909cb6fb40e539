"""Rows of the cost report, rolled up from priced cells; sums in which the unknown stays unknown."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Literal, NamedTuple

from controlplane.finops.attribution import split

DIMENSIONS = ("cohort", "model", "tenant", "hour")
NO_TENANT = "(none)"
UNFINISHED = "(unfinished)"
"""Cost of a cohort in the range of which no request finished in the range: no tenant can be named yet."""


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
    """rows + rest + idle = total, exactly. machine_s: seconds of all windows together, idle_s: of them
    without work. unpriced: a line per missing price. rest: what a filter left out; None without a filter.
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
    rest: CostRow | None = None


class CostCell(NamedTuple):
    """What one tenant's part of a cohort cost on one sku in one hour, in one direction; or the idle rest of that hour.

    hour: since the unix epoch, UTC. sku: the worker's device. cohort, tenant: None where there is none (idle has
    neither). direction: input (prefill), output (drafting and verification) or idle. ns: machine time; wasted_*: on
    rejected draft positions. cost_nano: integer nano-units, None = unpriced; the cells of an (hour, sku) cost together
    exactly its bill. uj: microjoules, None = not measured. tokens: prompt tokens for input, emitted ones for output;
    measured_tokens: of them in windows with energy. steps, planned_k_steps, draft_tokens, accepted_tokens: of output.
    requests: ended ones, counted in output.
    """

    hour: int
    sku: str
    model: str
    cohort: str | None
    tenant: str | None
    direction: Literal["input", "output", "idle"]
    ns: int
    wasted_ns: int
    cost_nano: int | None
    wasted_cost_nano: int | None
    uj: int | None
    wasted_uj: int | None
    energy_source: str
    tokens: int
    steps: int
    planned_k_steps: int
    draft_tokens: int
    accepted_tokens: int
    requests: int
    measured_tokens: int = 0


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


def hour_key(hour: int) -> str:
    """Hours since the epoch as 2026-11-29T15:00Z, the hour's start."""
    return datetime.fromtimestamp(hour * 3600, UTC).strftime("%Y-%m-%dT%H:00Z")


def _key(by: str, item: Mapping[str, Any]) -> str:
    return hour_key(item["hour"]) if by == "hour" else str(item[by])


def rows_by(cells: Iterable[Cell], requests: Sequence[Mapping[str, Any]], by: str) -> list[CostRow]:
    grouped: dict[str, list[Cell]] = defaultdict(list)
    for cell in cells:
        grouped[_key(by, cell._asdict())].append(cell)
    rows = {key: row_of(key, group) for key, group in grouped.items()}
    for r in requests:
        key = _key(by, r)
        row = rows.get(key, CostRow(key))
        rows[key] = replace(
            row, input_tokens=row.input_tokens + r["input_tokens"], requests=row.requests + r["requests"]
        )
    return list(rows.values())


def rows_by_tenant(cells: Iterable[Cell], requests: Sequence[Mapping[str, Any]]) -> list[CostRow]:
    """A (cohort, model)'s cost and energy over its requests that finished in the range, by their positions."""
    work: dict[tuple[str | None, str], list[Cell]] = defaultdict(list)
    for cell in cells:
        work[cell.cohort, cell.model].append(cell)
    asked: dict[tuple[str | None, str], list[Mapping[str, Any]]] = defaultdict(list)
    for r in requests:
        asked[r["cohort"], r["model"]].append(r)
    pieces: dict[str, list[CostRow]] = defaultdict(list)
    for pair in [*work, *(p for p in asked if p not in work)]:
        whole = row_of(UNFINISHED, work.get(pair, []))
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
    return [replace(total_of(group), key=tenant) for tenant, group in pieces.items()]


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


def row_of(key: str, cells: Sequence[Cell]) -> CostRow:
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


def total_of(rows: Sequence[CostRow]) -> CostRow:
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
