"""The report of an experiment from the ledger, priced by a sheet, with the last month to project to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import sqlalchemy as sa

from controlplane.experiment import Run
from controlplane.finops.attribution import cost_of_time
from controlplane.finops.pricing import Prices
from controlplane.finops.savings_projection import LoadHour
from controlplane.finops.savings_report import Arm, Report, build
from controlplane.store.cost_models import CostHour, MachineHour
from controlplane.store.experiments import Measured, measured
from controlplane.store.time_range import TimeRange

MONTH_S = 30 * 86_400.0
HOUR_S = 3600


def experiment_report(engine: sa.Engine, run: Run, sheet: Prices, now: float, basis: str | None = None) -> Report:
    """What `run` says by now. basis: which prices; default: the first that the sheet has."""
    chosen = basis or sheet.default_basis
    return report_of_arms(engine, run, priced_arms(engine, run, sheet, chosen), sheet, now, chosen)


def priced_arms(engine: sa.Engine, run: Run, sheet: Prices, basis: str) -> list[Arm]:
    """Its windows with what was measured in them, by pair and arm, billed at the prices of that basis."""
    found = measured(engine, run.id)
    began: dict[int, float] = {}
    for each in found:
        began[each.window.pair] = min(each.window.started_at, began.get(each.window.pair, each.window.started_at))
    # Both arms of a pair by one price: one that changes between them is nothing that speculation did.
    return [_priced(each, sheet, basis, began[each.window.pair]) for each in found]


def report_of_arms(engine: sa.Engine, run: Run, arms: Sequence[Arm], sheet: Prices, now: float, basis: str) -> Report:
    """The report of windows that were read before (priced_arms), with the last month to project to."""
    month = load_hours(engine, TimeRange(now - MONTH_S, now), sheet, basis)
    return build(run, arms, month, sheet.currency)


def load_hours(engine: sa.Engine, range: TimeRange, sheet: Prices, basis: str) -> Iterator[LoadHour]:
    """The hours that began in the range and had work: load, busy time, and what that cost."""
    first, end = (int(-(-at // HOUR_S)) for at in (range.start, range.end))
    hour, machine = CostHour, MachineHour
    used = (
        sa.select(hour.hour, hour.sku, sa.func.sum(hour.ns), sa.func.sum(hour.requests))
        .where(hour.hour >= first, hour.hour < end, hour.direction != "idle")
        .group_by(hour.hour, hour.sku)
        .order_by(hour.hour)
    )
    whole = (
        sa.select(machine.hour, sa.func.sum(machine.ns))
        .where(machine.hour >= first, machine.hour < end)
        .group_by(machine.hour)
    )
    with engine.connect() as connection:
        ns_of = {at: int(ns) for at, ns in connection.execute(whole)}
        by_hour: dict[int, list[tuple[str, int, int]]] = {}
        for at, sku, ns, requests in connection.execute(used):
            by_hour.setdefault(at, []).append((sku, int(ns), int(requests)))
    for at, parts in by_hour.items():
        seconds = ns_of.get(at, 0) / 1e9
        if seconds:
            costs = _cost({sku: ns for sku, ns, _ in parts}, sheet, basis, at * HOUR_S)
            yield LoadHour(sum(n for *_, n in parts) / seconds, sum(ns for _, ns, _ in parts), costs)


def _priced(found: Measured, sheet: Prices, basis: str, when: float) -> Arm:
    billed = _cost(found.machine_ns, sheet, basis, when)
    return Arm(found.window, replace(found.sums, billed_nano=billed), found.energy_sources)


def _cost(machine_ns: Mapping[str, int], sheet: Prices, basis: str, when: float) -> int | None:
    """Nano-units of currency; None where a sku has no price then, or there is nothing."""
    total = 0
    for sku, ns in machine_ns.items():
        price = sheet.price_at(sku, basis, when)
        if price is None:
            return None
        total += cost_of_time(ns, price.per_hour_nano)
    return total if machine_ns else None
