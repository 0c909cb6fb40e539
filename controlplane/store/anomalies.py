"""What each cohort used in each hour, with its part of idle, for whoever looks for unusual hours."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import groupby
from typing import Any, NamedTuple

import sqlalchemy as sa

from controlplane.alerts import ANOMALY, Alert
from controlplane.finops.anomaly import HourUse
from controlplane.finops.attribution import cost_of_time, split
from controlplane.finops.pricing import Prices
from controlplane.store.alerts import ALERT_FIELDS
from controlplane.store.cost_models import CostHour
from controlplane.store.models import AlertEntry
from controlplane.store.rollup import IDLE

HOUR_S = 3600
MOST_NAMED = 1000
"""Hours that are named one by one in a query."""

SUMMED = ("ns", "uj", "tokens", "measured_tokens", "steps", "draft_tokens", "accepted_tokens")


class _Sum(NamedTuple):
    """Of one direction of a cohort ('' for idle) on one sku in one hour."""

    cohort: str
    direction: str
    ns: int
    uj: int | None
    tokens: int
    measured_tokens: int
    steps: int
    draft_tokens: int
    accepted_tokens: int


def hour_uses(engine: sa.Engine, hours: Collection[int], sheet: Prices, basis: str | None = None) -> list[HourUse]:
    """These hours (since the unix epoch, UTC) of every cohort, from the hourly rollup; many hours: those between, too.

    Idle time and energy of a sku in an hour go to its cohorts by their busy time, as in a report with idle=weighted.
    basis: None = the sheet's default.
    """
    basis = basis or sheet.default_basis
    column: Any = CostHour.__table__.c
    if not hours:
        return []
    among = (
        column["hour"].in_(sorted(hours))
        if len(hours) <= MOST_NAMED
        else column["hour"].between(min(hours), max(hours))
    )
    key = [column[name] for name in ("hour", "sku", "cohort", "direction")]
    query = (
        sa.select(*key, *(sa.func.sum(column[name]) for name in SUMMED))
        .where(among)
        .group_by(*key)
        .order_by(*key)
        .execution_options(yield_per=2000)
    )
    uses: dict[tuple[str, int], HourUse] = {}
    with engine.connect() as connection:
        rows = connection.execute(query)
        for (hour, sku), group in groupby(rows, key=lambda row: (row[0], row[1])):
            # PostgreSQL sums bigint to numeric; every sum here is an integer or null.
            sums = [_Sum(row[2], row[3], *(None if n is None else int(n) for n in row[4:])) for row in group]  # type: ignore[arg-type]
            price = sheet.price_at(sku, basis, hour * HOUR_S)
            for use in _with_idle(hour, sums, None if price is None else price.per_hour_nano):
                known = uses.get((use.cohort, hour))
                uses[use.cohort, hour] = use if known is None else _plus(known, use)
    return list(uses.values())


def _with_idle(hour: int, sums: Iterable[_Sum], per_hour_nano: int | None) -> Iterator[HourUse]:
    """The cohorts of one sku in one hour."""
    idle_ns, idle_uj = 0, None
    cohorts: dict[str, dict[str, _Sum]] = {}
    for each in sums:
        if each.direction == IDLE:
            idle_ns, idle_uj = each.ns, each.uj
        else:
            cohorts.setdefault(each.cohort, {})[each.direction] = each
    if not cohorts:
        return
    nothing = _Sum("", "", 0, None, 0, 0, 0, 0, 0)
    both = [(name, by.get("input", nothing), by.get("output", nothing)) for name, by in cohorts.items()]
    busy = [asked.ns + given.ns for _, asked, given in both]
    idle = split(idle_ns, busy)
    energy = split(idle_uj or 0, busy)
    for i, (name, asked, given) in enumerate(both):
        measured = [uj for uj in (asked.uj, given.uj) if uj is not None]
        yield HourUse(
            cohort=name,
            hour=hour,
            input_ns=asked.ns,
            output_ns=given.ns,
            idle_ns=idle[i],
            cost_nano=None if per_hour_nano is None else cost_of_time(busy[i] + idle[i], per_hour_nano),
            uj=sum(measured) + energy[i] if measured else None,
            tokens=given.tokens,
            measured_tokens=given.measured_tokens,
            steps=given.steps,
            draft_tokens=given.draft_tokens,
            accepted_tokens=given.accepted_tokens,
        )


def _plus(one: HourUse, other: HourUse) -> HourUse:
    """The same cohort's hour on two skus; with an unpriced part the cost is unpriced."""
    cost = None if one.cost_nano is None or other.cost_nano is None else one.cost_nano + other.cost_nano
    measured = [uj for uj in (one.uj, other.uj) if uj is not None]
    sums: Any = {
        name: getattr(one, name) + getattr(other, name)
        for name in HourUse._fields
        if name not in ("cohort", "hour", "cost_nano", "uj")
    }
    return one._replace(cost_nano=cost, uj=sum(measured) if measured else None, **sums)


def cleared_anomalies(engine: sa.Engine, since: float) -> list[Alert]:
    """Alerts of unusual hours that an operator cleared and that lasted until `since` (unix seconds) or longer."""
    query = sa.select(*(getattr(AlertEntry, name) for name in ALERT_FIELDS)).where(
        AlertEntry.kind == ANOMALY, AlertEntry.state == "cleared", AlertEntry.last_seen >= since
    )
    with engine.connect() as connection:
        return [Alert(**row) for row in connection.execute(query).mappings()]
