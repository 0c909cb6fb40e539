"""What the ledger knows of budgets: the use before now, the alerts that stand, where each period stood, deliveries.

A budget's spending is never read from `budget_state`: it is a record for people. The truth is what the windows used.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, Session, mapped_column

from controlplane.alerts import BUDGET
from controlplane.finops.budget import UNKNOWN, BudgetStatus, subject
from controlplane.finops.forecast import HORIZON_HOURS, HOUR_S
from controlplane.finops.periods import Period
from controlplane.finops.spending import Cell
from controlplane.policy.model import NamedBudget
from controlplane.store.cost_models import CostHour
from controlplane.store.engine import writing
from controlplane.store.models import AlertEntry, Base, Window, WindowCohort
from controlplane.store.write import insert

CONTROLLER = "kadence"
"""Who clears an alert whose budget was reset or changed: after that, the threshold may be told of again."""


class BudgetStateEntry(Base):
    """Where a budget stood in a period when it was last looked at. Money in nano-dollars; times in unix seconds.

    unknown_why: what was missing to know it, "" where nothing was. fired: shares that were alerted to.
    """

    __tablename__ = "budget_state"

    name: Mapped[str] = mapped_column(primary_key=True)
    period_start: Mapped[float] = mapped_column(primary_key=True)
    period_end: Mapped[float]
    period: Mapped[str]
    timezone: Mapped[str]
    cohort: Mapped[str | None]
    tenant: Mapped[str | None]
    on_exceeded: Mapped[str]
    limit_nano: Mapped[int]
    spent_nano: Mapped[int]
    standing: Mapped[str]
    unknown_why: Mapped[str]
    fired: Mapped[list[Any]]
    updated_at: Mapped[float]


def save_states(engine: sa.Engine, statuses: Sequence[BudgetStatus]) -> None:
    """Put on record where budgets stand; an earlier look at the same period is replaced."""
    if not statuses:
        return
    rows = [_row(status) for status in statuses]
    with writing(engine).begin() as connection:
        statement = insert(connection, BudgetStateEntry)
        changing = {name: statement.excluded[name] for name in rows[0] if name not in ("name", "period_start")}
        key = ["name", "period_start"]
        connection.execute(statement.on_conflict_do_update(index_elements=key, set_=changing), rows)


def budget_history(engine: sa.Engine, name: str | None = None, limit: int = 200) -> list[BudgetStateEntry]:
    """The newest periods on record first, of one budget or of all."""
    order = (BudgetStateEntry.period_start.desc(), BudgetStateEntry.name)
    query = sa.select(BudgetStateEntry).order_by(*order).limit(limit)
    if name is not None:
        query = query.where(BudgetStateEntry.name == name)
    with Session(engine) as session:
        return list(session.scalars(query))


def past_of(engine: sa.Engine, named: NamedBudget, period: Period, shares: Iterable[float]) -> dict[str, Any]:
    """All that the ledger knows of a budget: the fields of budgets.book.Past. shares: thresholds of its alerts."""
    first = math.floor(period.start / HOUR_S)
    subjects = [subject(named.name, share, period) for share in shares]
    in_period = used_in(engine, named, period)
    with engine.connect() as connection:
        before = _use_of_hours(connection, named, first - HORIZON_HOURS, first)
        earliest = connection.scalar(sa.select(sa.func.min(CostHour.hour)))
        fired = frozenset(connection.scalars(_standing_alerts(subjects)))
    return {
        "in_period": in_period,
        "before": before,
        "since": None if earliest is None else float(earliest * HOUR_S),
        "fired": fired,
    }


def used_in(engine: sa.Engine, named: NamedBudget, period: Period) -> dict[Cell, int]:
    """Machine time (ns) by hour and sku of the budget's cohort and tenant, of windows that began in the period."""
    first = math.floor(period.start / HOUR_S)
    with engine.connect() as connection:
        found = _use_of_hours(connection, named, math.ceil(period.start / HOUR_S), None)
        if period.start % HOUR_S:
            # A period of a zone such as Asia/Kolkata begins within an hour of UTC: its rest is in the windows only.
            found |= _use_of_windows(connection, named, period.start, (first + 1) * HOUR_S)
    return found


def _use_of_hours(connection: sa.Connection, named: NamedBudget, first: int, end: int | None) -> dict[Cell, int]:
    """Machine time (ns) by hour and sku of the hours from `first` on, up to `end`."""
    query = (
        sa.select(CostHour.hour, CostHour.sku, sa.func.sum(CostHour.ns))
        .where(CostHour.hour >= first, CostHour.direction != "idle")
        .group_by(CostHour.hour, CostHour.sku)
    )
    if end is not None:
        query = query.where(CostHour.hour < end)
    if named.cohort is not None:
        query = query.where(CostHour.cohort == named.cohort)
    if named.tenant is not None:
        query = query.where(CostHour.tenant == named.tenant)
    return {(hour, sku): int(ns) for hour, sku, ns in connection.execute(query)}


def _use_of_windows(connection: sa.Connection, named: NamedBudget, start: float, end: float) -> dict[Cell, int]:
    """The same of the windows that began in [start, end); of those that are pruned nothing is known any more."""
    query = (
        sa.select(Window.hour, Window.device, WindowCohort.attributed_ns, WindowCohort.uses)
        .join_from(Window, WindowCohort)
        .where(Window.started_at >= start, Window.started_at < end)
    )
    if named.cohort is not None:
        query = query.where(WindowCohort.cohort == named.cohort)
    found: dict[Cell, int] = {}
    for hour, sku, attributed_ns, uses in connection.execute(query):
        of_tenants = uses if uses is not None else [[None, "output", attributed_ns]]
        ns = sum(each[2] for each in of_tenants if named.tenant in (None, each[0]))
        found[hour, sku] = found.get((hour, sku), 0) + ns
    return found


def _standing_alerts(subjects: Iterable[str]) -> sa.Select[Any]:
    """Subjects of those that were told and hold: active, or cleared by a person."""
    return sa.select(AlertEntry.subject).where(
        AlertEntry.kind == BUDGET,
        AlertEntry.subject.in_(list(subjects)),
        sa.or_(AlertEntry.state == "active", AlertEntry.cleared_by != CONTROLLER),
    )


def _row(status: BudgetStatus) -> dict[str, Any]:
    return {
        "name": status.name,
        "period_start": status.period.start,
        "period_end": status.period.end,
        "period": status.period.label,
        "timezone": status.period.timezone,
        "cohort": status.cohort,
        "tenant": status.tenant,
        "on_exceeded": status.on_exceeded,
        "limit_nano": status.limit_nano,
        "spent_nano": status.spent_nano,
        "standing": status.standing,
        "unknown_why": status.why,
        "fired": [share for share in status.fired if share != UNKNOWN],
        "updated_at": status.at,
    }
