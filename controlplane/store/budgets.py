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
from controlplane.store.engine import reading, writing
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


class PastReader:
    """All that the ledger knows of budgets at the moment at which this is made, which takes a millisecond; reading it
    takes longer, and may be done on another thread. Raises what the database raises.
    """

    def __init__(self, engine: sa.Engine) -> None:
        self._connection = reading(engine).connect()
        try:
            self._earliest = self._connection.scalar(sa.select(sa.func.min(CostHour.hour)))
        except Exception:
            self._connection.close()
            raise

    def read(self, wanted: Sequence[tuple[NamedBudget, Period, Iterable[float]]]) -> list[dict[str, Any]]:
        """For each budget, in its period and with the thresholds of its alerts, the fields of account.Past. Once."""
        with self._connection as connection:
            uses = _uses_of_hours(connection, [(named, period) for named, period, _ in wanted])
            told, stand = _alerts(connection)
            starts = sorted({period.start for _, period, _ in wanted})
            kept = sa.select(BudgetStateEntry.name, BudgetStateEntry.period_start)
            rows = connection.execute(kept.where(BudgetStateEntry.period_start.in_(starts)))
            on_record = {(row.name, row.period_start) for row in rows}
            pasts = []
            for (named, period, shares), (before, in_period) in zip(wanted, uses, strict=True):
                _add_parts_of_hours(connection, named, period, in_period)
                past = {
                    "in_period": in_period,
                    "before": before,
                    "since": None if self._earliest is None else float(self._earliest * HOUR_S),
                    "fired": stand & {subject(named.name, share, period) for share in shares},
                    "is_on_record": (named.name, period.start) in on_record,
                    "told": told & {subject(named.name, share, period) for share in shares},
                }
                pasts.append(past)
        return pasts


def used_in(engine: sa.Engine, named: NamedBudget, period: Period) -> dict[Cell, int]:
    """Machine time (ns) by hour and sku of the budget's cohort and tenant, of windows that began in the period."""
    with reading(engine).connect() as connection:
        ((_, found),) = _uses_of_hours(connection, [(named, period)], before_hours=0)
        _add_parts_of_hours(connection, named, period, found)
    return found


def _uses_of_hours(
    connection: sa.Connection, wanted: Sequence[tuple[NamedBudget, Period]], before_hours: int = HORIZON_HOURS
) -> list[tuple[dict[Cell, int], dict[Cell, int]]]:
    """For each budget, machine time (ns) by hour and sku of the `before_hours` before its period, and of the whole
    hours in it. One look at the ledger for all of them, for the hours of a month are many.
    """
    found: list[tuple[dict[Cell, int], dict[Cell, int]]] = [({}, {}) for _ in wanted]
    by_scope: dict[tuple[str | None, str | None], list[int]] = {}
    for i, (named, _) in enumerate(wanted):
        by_scope.setdefault((named.cohort, named.tenant), []).append(i)
    if not wanted:
        return found
    begins = [
        (math.floor(period.start / HOUR_S), math.ceil(period.start / HOUR_S), math.floor(period.end / HOUR_S))
        for _, period in wanted
    ]
    key = (CostHour.hour, CostHour.sku, CostHour.cohort, CostHour.tenant)
    counted = sa.or_(
        CostHour.cohort.in_(sorted({cohort for cohort, _ in by_scope if cohort is not None})),
        CostHour.tenant.in_(sorted({tenant for cohort, tenant in by_scope if cohort is None and tenant is not None})),
    )
    query = (
        sa.select(*key, sa.func.sum(CostHour.ns))
        .where(CostHour.hour >= min(first for first, _, _ in begins) - before_hours)
        .where(CostHour.direction != "idle", counted)
        .group_by(*key)
    )
    for hour, sku, cohort, tenant, ns in connection.execute(query):
        for scope in ((cohort, None), (None, tenant), (cohort, tenant)):
            for i in by_scope.get(scope, ()):
                first, whole, end = begins[i]
                before, in_period = found[i]
                if whole <= hour < end:
                    in_period[hour, sku] = in_period.get((hour, sku), 0) + int(ns)
                elif first - before_hours <= hour < first:
                    before[hour, sku] = before.get((hour, sku), 0) + int(ns)
    return found


def _add_parts_of_hours(connection: sa.Connection, named: NamedBudget, period: Period, found: dict[Cell, int]) -> None:
    """A period of a zone such as Asia/Kolkata begins and ends within an hour of UTC: those are in the windows only."""
    if period.start % HOUR_S:
        end = math.ceil(period.start / HOUR_S) * HOUR_S
        found |= _use_of_windows(connection, named, period.start, end)
    if period.end % HOUR_S:
        found |= _use_of_windows(connection, named, math.floor(period.end / HOUR_S) * HOUR_S, period.end)


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


def _alerts(connection: sa.Connection) -> tuple[frozenset[str], frozenset[str]]:
    """Subjects of all that were ever told; of those that hold: active, or cleared by a person."""
    query = sa.select(AlertEntry.subject, AlertEntry.state, AlertEntry.cleared_by).where(AlertEntry.kind == BUDGET)
    rows = connection.execute(query).all()
    stand = frozenset(row.subject for row in rows if row.state == "active" or row.cleared_by != CONTROLLER)
    return frozenset(row.subject for row in rows), stand


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
