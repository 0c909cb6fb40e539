"""What is on record, in a line or two each: whether anything ran, of whom, and whether anything has changed since."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from controlplane.store.cost_models import CostMonth, MachineHour
from controlplane.store.engine import Database
from controlplane.store.models import DecisionEntry, PlanEntry, Window
from controlplane.store.time_range import TimeRange

HOUR_S = 3600


def data_version(database: Database) -> tuple[Any, ...]:
    """Another one after every stored window, decision, plan or renewal of a plan."""
    with database.connect() as connection:
        windows = connection.execute(sa.select(sa.func.sum(MachineHour.windows))).scalar()
        decision = connection.execute(sa.select(sa.func.max(DecisionEntry.id))).scalar()
        plan = connection.execute(
            sa.select(PlanEntry.version, PlanEntry.epoch, PlanEntry.expires_at)
            .order_by(PlanEntry.version.desc(), PlanEntry.epoch.desc())
            .limit(1)
        ).first()
    return (int(windows or 0), decision, *(plan or ()))


def windows_before(database: Database, before: float) -> int:
    """How many windows the bill has of the hours before `before` (unix seconds, a whole hour): another number after
    every late window, so a version of what the bill says of them.
    """
    counted = sa.select(sa.func.sum(MachineHour.windows)).where(MachineHour.hour < before // HOUR_S)
    with database.connect() as connection:
        return int(connection.execute(counted).scalar() or 0)


def has_usage(database: Database, range: TimeRange) -> bool:
    """Whether anything ran in the range: a window began in it, or an hour of the bill is in it."""
    window = sa.select(Window.worker).where(Window.started_at >= range.start, Window.started_at < range.end)
    hour = sa.select(MachineHour.hour).where(
        MachineHour.hour >= range.start / HOUR_S, MachineHour.hour + 1 <= range.end / HOUR_S
    )
    with database.connect() as connection:
        return any(connection.execute(query.limit(1)).first() is not None for query in (window, hour))


def cohorts_and_models(database: Database) -> tuple[set[str], set[str]]:
    """Of all time, as the bill names them."""
    with database.connect() as connection:
        found = connection.execute(sa.select(CostMonth.cohort, CostMonth.model).distinct()).all()
    return {cohort for cohort, _ in found if cohort}, {model for _, model in found}
