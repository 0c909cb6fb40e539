"""Reads of the kill switch: when it was pulled and let go, from the plans that were published under it."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from controlplane.store.engine import reading
from controlplane.store.models import PlanEntry
from controlplane.store.time_range import TimeRange


@dataclass(frozen=True, slots=True)
class SwitchChange:
    """A plan under another setting of the kill switch than the plan before it. at: unix seconds, of its first issue."""

    at: float
    plan_version: int
    before: str
    after: str


def kill_switch_log(engine: sa.Engine, range: TimeRange, limit: int = 200) -> list[SwitchChange]:
    """The newest `limit` changes in the range, newest first. The first plan on record counts as one where it is on."""
    plan = PlanEntry
    before = sa.func.lag(plan.kill_switch, 1, "off").over(order_by=(plan.version, plan.epoch)).label("before")
    all_plans = sa.select(plan.issued_at, plan.version, before, plan.kill_switch.label("after")).subquery()
    found = all_plans.c
    query = (
        sa.select(found.issued_at, found.version, found.before, found.after)
        .where(found.before != found.after, found.issued_at >= range.start, found.issued_at < range.end)
        .order_by(found.version.desc())
        .limit(limit)
    )
    with reading(engine).connect() as connection:
        return [SwitchChange(*row) for row in connection.execute(query)]
