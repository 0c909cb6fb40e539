"""Whether the rollups are what their windows add up to: for `kadence db verify`."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import sqlalchemy as sa

from controlplane.store.cost_dimensions import Filter, hour_key
from controlplane.store.cost_models import CostDay, CostHour, CostMonth, MachineHour
from controlplane.store.cost_pieces import HOUR_S, Piece
from controlplane.store.cost_usage import groups
from controlplane.store.models import Window, WindowCohort
from controlplane.store.rollup import EPOCH, HOURS_PER_DAY, KEY, SPEC_STEPS, Amounts, first_day, month_of, summed

SHOWN = 3
"""Hours that a problem names; of the others it says how many they are."""


def rollup_problems(connection: sa.Connection) -> list[str]:
    """A line for each kind of disagreement: hours and windows, days and hours, bills and hours."""
    problems = _against_windows(connection)
    days = _differences(connection, CostDay, CostDay.day, KEY, Amounts._fields)
    if days:
        problems.append(f"{days} rows of cost_day are not the sums of their hours in cost_hour")
    problems += _months(connection)
    machines = _differences(connection, MachineHour, MachineHour.hour, ("sku",), ("ns",))
    if machines:
        problems.append(f"{machines} rows of machine_hour are not the machine time of cost_hour")
    return problems


def _against_windows(connection: sa.Connection) -> list[str]:
    """Hours of which every window is kept, each added up again; hours with more windows than were counted."""
    kept = dict(connection.execute(sa.select(Window.hour, sa.func.count()).group_by(Window.hour)).all())
    counted = connection.execute(sa.select(MachineHour.hour, sa.func.sum(MachineHour.windows)).group_by("hour"))
    of_bill = {hour: int(windows) for hour, windows in counted}
    more = sorted(hour for hour, windows in kept.items() if windows > of_bill.get(hour, 0))
    wrong = [h for h in sorted(kept) if kept[h] == of_bill.get(h) and not _is_sum_of_windows(connection, h)]
    problems = []
    if more:
        problems.append(f"{_named(more)}: more windows than the bill has counted")
    if wrong:
        problems.append(f"{_named(wrong)}: cost_hour is not what the windows add up to")
    return problems


def _named(hours: list[int]) -> str:
    text = ", ".join(map(hour_key, hours[:SHOWN]))
    return text + (f" and {len(hours) - SHOWN} more hours" if len(hours) > SHOWN else "")


def _is_sum_of_windows(connection: sa.Connection, hour: int) -> bool:
    """By cohort, model, sku, direction and energy source; tenants together: windows of before 0004 know none. Where the
    hour does not know the steps with a draft, which is no error, they are left out on both sides.
    """
    span = (float(hour * HOUR_S), float((hour + 1) * HOUR_S))
    older = sa.select(sa.func.count()).select_from(WindowCohort).join(Window)
    names_no_prompts = connection.scalar(older.where(Window.hour == hour, WindowCohort.uses.is_(None)))
    sums = []
    for piece in (Piece("hour", *span), Piece("window", *span)):
        found = {}
        for by in ("cohort", "model"):
            for group in groups(connection, (piece,), by, Filter({})):
                amounts = group.amounts
                if group.direction == "input" and names_no_prompts:
                    amounts = amounts._replace(tokens=0, measured_tokens=0)
                if any(amounts):
                    found[by, group.key, group.sku, group.direction, group.energy_source] = amounts
        sums.append(found)
    for key, amounts in sums[0].items():
        if amounts.spec_steps is None and key in sums[1]:
            sums[1][key] = sums[1][key]._replace(spec_steps=None)
    return sums[0] == sums[1]


def _months(connection: sa.Connection) -> list[str]:
    """Calendar months, which SQL cannot tell from days in the same way everywhere: each added up here."""
    first, last = connection.execute(sa.select(sa.func.min(CostDay.day), sa.func.max(CostDay.day))).one()
    known = list(connection.scalars(sa.select(CostMonth.month).distinct()))
    months = {*known, *(range(month_of(first), month_of(last) + 1) if first is not None else ())}
    wrong = []
    for month in sorted(months):
        begin, end = first_day(month), first_day(month + 1)
        of_days = _sums(connection, CostDay, CostDay.day >= begin, CostDay.day < end)
        if of_days != _sums(connection, CostMonth, CostMonth.month == month):
            wrong.append(f"{EPOCH + timedelta(days=begin):%Y-%m}")
    return [f"{', '.join(wrong)}: cost_month is not the sum of its days in cost_day"] if wrong else []


def _sums(connection: sa.Connection, table: Any, *within: Any) -> dict[tuple[Any, ...], list[int | None]]:
    key = [getattr(table, name) for name in KEY]
    query = sa.select(*key, *(summed(getattr(table, name)) for name in Amounts._fields)).where(*within)
    return {
        tuple(row[: len(key)]): [None if each is None else int(each) for each in row[len(key) :]]
        for row in connection.execute(query.group_by(*key))
    }


def _differences(connection: sa.Connection, table: Any, unit: Any, key: tuple[str, ...], names: tuple[str, ...]) -> int:
    """Keys at which the table is not the sum of cost_hour. Steps with a draft that an hour does not know are not known
    of its day either.
    """
    hours = CostHour.__table__.c
    span = hours.hour if unit.key == "hour" else hours.hour // HOURS_PER_DAY
    mine = [*(getattr(table, name) for name in names), sa.literal_column("0").label("lack")]
    theirs = [(-hours[name]).label(name) for name in names] + [sa.literal_column("0").label("lack")]
    if SPEC_STEPS in names:
        mine[-1] = sa.case((getattr(table, SPEC_STEPS).is_(None), 1), else_=0).label("lack")
        theirs[-1] = sa.case((hours[SPEC_STEPS].is_(None), -1), else_=0).label("lack")
    both = sa.union_all(
        sa.select(unit.label("unit"), *(getattr(table, name) for name in key), *mine),
        sa.select(span.label("unit"), *(hours[name] for name in key), *theirs),
    ).subquery("both")
    lacks = both.c.lack
    unequal = [sa.func.coalesce(sa.func.sum(both.c[name]), 0) != 0 for name in names if name != SPEC_STEPS]
    # One side knows the steps with a draft and the other does not, or both do and say another number.
    unequal.append(sa.func.max(lacks) != -sa.func.min(lacks))
    if SPEC_STEPS in names:
        both_know = sa.func.max(lacks) == 0
        unequal.append(sa.and_(both_know, sa.func.coalesce(sa.func.sum(both.c[SPEC_STEPS]), 0) != 0))
    different = sa.or_(*unequal)
    at = (both.c.unit, *(both.c[name] for name in key))
    found = sa.select(*at).group_by(*at).having(different).subquery()
    return connection.scalar(sa.select(sa.func.count()).select_from(found)) or 0
