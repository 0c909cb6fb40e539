"""What a window adds to the rollups, in integers, and the upsert that adds it.

The upsert runs in the transaction that stores the window and only for a window that is new, so that a repetition adds
nothing and a late window re-opens its hour. A rollup is the sum of what its windows added: nothing is recomputed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import date, timedelta
from functools import cache
from operator import add
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from controlplane.finops.attribution import WindowUse, split
from controlplane.store.cost_models import CostDay, CostHour, CostMonth, MachineHour
from controlplane.store.models import Base
from controlplane.telemetry import WorkerWindow

HOURS_PER_DAY = 24
EPOCH = date(1970, 1, 1)

IDLE = "idle"

KEY = ("sku", "model", "cohort", "tenant", "direction", "energy_source")

SPEC_STEPS = "spec_steps"


class Amounts(NamedTuple):
    """The columns that are summed (cost_models._Usage). uj, wasted_uj: None where nothing was measured. spec_steps:
    None where a part of them is not known.
    """

    ns: int = 0
    wasted_ns: int = 0
    uj: int | None = None
    wasted_uj: int | None = None
    tokens: int = 0
    measured_tokens: int = 0
    steps: int = 0
    planned_k_steps: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    requests: int = 0
    spec_steps: int | None = 0

    def plus(self, other: Amounts) -> Amounts:
        ns, wasted_ns, uj, wasted_uj, *counts, spec_steps = self
        ns_more, wasted_more, uj_more, wasted_uj_more, *more, spec_more = other
        if uj is None:
            uj, wasted_uj = uj_more, wasted_uj_more
        elif uj_more is not None:
            uj, wasted_uj = uj + uj_more, (wasted_uj or 0) + (wasted_uj_more or 0)
        spec = None if spec_steps is None or spec_more is None else spec_steps + spec_more
        return Amounts._make((ns + ns_more, wasted_ns + wasted_more, uj, wasted_uj, *map(add, counts, more), spec))


class Part(NamedTuple):
    """One tenant's part of a cohort in one direction, or the window's idle rest (cohort '', direction idle)."""

    cohort: str
    tenant: str | None
    direction: str
    amounts: Amounts


def parts(window: WorkerWindow, use: WindowUse) -> list[Part]:
    """The window taken apart: the parts' ns together are use.total_ns, and likewise microjoules and tokens."""
    used = {(each.cohort, each.tenant, each.direction): each for each in use.uses}
    nothing = None if use.total_uj is None else 0
    found = []
    for cohort in window.cohorts:
        tenants = cohort.by_tenant
        planned = split(sum(cell.k * cell.steps for cell in cohort.cells), [tenant.steps for tenant in tenants])
        drafting = spec_steps_of(cohort.spec_steps, [(tenant.steps, tenant.draft_tokens) for tenant in tenants])
        for tenant, planned_k_steps, spec_steps in zip(tenants, planned, drafting, strict=True):
            if (taken := used.get((cohort.cohort, tenant.tenant, "input"))) is not None:
                measured = 0 if taken.uj is None else taken.tokens
                amounts = Amounts(taken.ns, taken.wasted_ns, taken.uj, taken.wasted_uj, taken.tokens, measured)
                found.append(Part(cohort.cohort, tenant.tenant, "input", amounts))
            given = used.get((cohort.cohort, tenant.tenant, "output"))
            if given is None and not tenant.requests:
                continue
            # A request that ended without a step has no use of its own, and is counted all the same.
            given_amounts = (0, 0, nothing, nothing, 0) if given is None else given[3:]
            amounts = Amounts(
                *given_amounts,
                measured_tokens=0 if given is None or given.uj is None else given.tokens,
                steps=tenant.steps,
                planned_k_steps=planned_k_steps,
                draft_tokens=tenant.draft_tokens,
                accepted_tokens=tenant.accepted_tokens,
                requests=tenant.requests,
                spec_steps=spec_steps,
            )
            found.append(Part(cohort.cohort, tenant.tenant, "output", amounts))
    found.append(Part("", None, IDLE, Amounts(use.idle_ns, 0, use.idle_uj, nothing)))
    return found


def spec_steps_of(spec_steps: int, parts: Sequence[tuple[int, int]]) -> list[int]:
    """A cohort's steps with a draft over its parts, each (steps, draft tokens): by the steps of those that drafted.

    Windows count them by cohort; a part has none where it drafted nothing, and never more than it has steps.
    """
    return split(spec_steps, [steps if drafted else 0 for steps, drafted in parts])


def summed(column: Any) -> sa.ColumnElement[Any]:
    """The sum of a column of the rollups over a group of rows. Of spec_steps null where any of the rows has null:
    a part that is not known leaves the whole unknown. Of energy the sum of what was measured.
    """
    total = sa.func.sum(column)
    return sa.case((sa.func.count() == sa.func.count(column), total)) if column.key == SPEC_STEPS else total


def hour_of(at: float) -> int:
    """Hours since the unix epoch, UTC."""
    return int(at // 3600)


def month_of(day: int) -> int:
    """Months since January 1970 of a day since the epoch, UTC."""
    at = EPOCH + timedelta(days=day)
    return (at.year - EPOCH.year) * 12 + at.month - 1


def first_day(month: int) -> int:
    """The day on which a month (since January 1970) begins."""
    return (date(EPOCH.year + month // 12, month % 12 + 1, 1) - EPOCH).days


def add_to_rollups(connection: sa.Connection, windows: Iterable[tuple[WorkerWindow, Sequence[Part]]]) -> None:
    """Add new windows to cost_hour, cost_day, cost_month and machine_hour, in one statement a table.

    Rows are written in the order of their keys: processes that write at the same time wait for one another, and never
    in a circle.
    """
    hours: dict[tuple[Any, ...], Amounts] = {}
    days: dict[tuple[Any, ...], Amounts] = {}
    months: dict[tuple[Any, ...], Amounts] = {}
    machines: dict[tuple[int, str], list[int]] = {}
    for window, found in windows:
        hour = hour_of(window.started_at)
        day = hour // HOURS_PER_DAY
        units = ((hours, hour), (days, day), (months, month_of(day)))
        machine = machines.setdefault((hour, window.device), [0, 0])
        machine[0] += sum(part.amounts.ns for part in found)
        machine[1] += 1
        for cohort, tenant, direction, amounts in found:
            key = (window.device, window.model, cohort, tenant or "", direction, window.energy_source)
            for sums, of in units:
                before = sums.get((of, *key))
                sums[of, *key] = amounts if before is None else before.plus(amounts)
    for table, unit, sums in ((CostHour, "hour", hours), (CostDay, "day", days), (CostMonth, "month", months)):
        names = (unit, *KEY)
        rows = [{**dict(zip(names, key, strict=True)), **sums[key]._asdict()} for key in sorted(sums)]
        _upsert(connection, table, names, Amounts._fields, rows)
    totals = [{"hour": h, "sku": sku, "ns": ns, "windows": n} for (h, sku), (ns, n) in sorted(machines.items())]
    _upsert(connection, MachineHour, ("hour", "sku"), ("ns", "windows"), totals)


def _upsert(
    connection: sa.Connection, table: type[Base], key: Sequence[str], summed: Sequence[str], rows: list[dict[str, Any]]
) -> None:
    if not rows:
        return
    connection.execute(_statement(connection.dialect.name, table, tuple(key), tuple(summed)), rows)


@cache
def _statement(dialect: str, table: type[Base], key: tuple[str, ...], summed: tuple[str, ...]) -> Any:
    """Made once: to make it takes longer than to run it, and a controller runs it every second."""
    statement: Any = (postgresql if dialect == "postgresql" else sqlite).insert(table)
    columns: Any = table.__table__.c
    more = {name: _sum(columns[name], statement.excluded[name]) for name in summed}
    return statement.on_conflict_do_update(index_elements=list(key), set_=more)


def _sum(before: Any, added: Any) -> Any:
    """The sum; of energy, the sum of what was measured. Of spec_steps null, as in `summed`, where either is."""
    may_lack = before.nullable and before.key != SPEC_STEPS
    return sa.func.coalesce(before + added, before, added) if may_lack else before + added
