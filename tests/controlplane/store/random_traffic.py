"""Windows of made-up traffic whose cohorts, tenants and totals agree, for tests of sums that must hold for any."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from decimal import Decimal
from random import Random

import sqlalchemy as sa

from controlplane.finops.attribution import cost_of_time, nanoseconds
from controlplane.finops.pricing import Price, PriceSheet
from controlplane.store.engine import open_database
from controlplane.store.rows import WindowSeen
from controlplane.store.tables import Base
from controlplane.store.write import write_items
from controlplane.telemetry import (
    CohortWindow,
    LatencyCell,
    StepCell,
    StepCount,
    TenantUse,
    WindowId,
    WorkerWindow,
    merge_cohorts,
)

MIDNIGHT = 1_789_948_800.0
"""2026-09-21T00:00:00Z"""
SKUS = ("gpu-0", "gpu-1", "gpu-2")


def cohort_window(rng: Random, name: str, tenants: list[str | None]) -> CohortWindow:
    """A cohort of which every count is its tenants' together."""
    parts = []
    for tenant in tenants:
        counts = []
        for _ in range(rng.randrange(3)):
            drafted = rng.randrange(5)
            accepted = rng.randint(0, drafted)
            counts.append(StepCount(drafted, accepted, False, rng.randint(1, 9)))
        merged = {c[:3]: c for c in counts}
        cell = StepCell(0, 4, tuple(sorted(merged.values())), 0.25)
        alone = CohortWindow(
            name,
            (cell,) if merged else (),
            prefill_positions=rng.choice((0, 0, 7, 130)),
            draft_positions=rng.choice((0, 11)),
            first_tokens=rng.randrange(3),
            requests_finished=rng.randrange(3),
            requests_failed=rng.randrange(2),
        )
        use = alone.by_tenant[0]._replace(tenant=tenant, input_tokens=rng.choice((0, 9, 200)))
        parts.append(replace(alone, tenants=(use,) if any(use[1:]) else ()))
    known = [part for part in parts if part.tenants]
    if not known:
        return CohortWindow(name, prefill_positions=1, tenants=(TenantUse(None, 1),))
    return merge_cohorts(known)[name]


def traffic(seed: int, windows: int, hours: float = 50.0) -> list[WorkerWindow]:
    """Windows of three skus from MIDNIGHT on, in the order in which they began."""
    rng = Random(seed)
    made = []
    for sequence in range(windows):
        begin = MIDNIGHT + rng.random() * hours * 3600
        seconds = rng.choice((1.0, 0.7, 1 / 3))
        names = rng.sample(("chat", "code", "json"), rng.randrange(4))
        cohorts = tuple(
            cohort_window(rng, name, rng.sample((None, "acme", "zeta"), rng.randint(1, 3))) for name in names
        )
        busy = seconds * rng.choice((0.0, 0.3, 1.0)) if cohorts else 0.0
        energy = rng.choice((None, 0, 1_000_003, 77))
        latency = (LatencyCell(1, 5, 3, busy * 0.6, 100, busy * 0.1),) if busy and rng.random() < 0.5 else ()
        made.append(
            WorkerWindow(
                id=WindowId(f"worker-{sequence % 3}", 1, sequence // 3),
                model=f"model-{sequence % 2}",
                drafter="ngram",
                device=SKUS[sequence % 3],
                started_at=begin,
                ended_at=begin + seconds,
                busy_s=busy,
                energy_uj=energy,
                energy_source="none" if energy is None else "counter",
                plan_version=1,
                plan_expired=False,
                plan_age_s=0.0,
                running=0,
                waiting=0,
                kv_used=0,
                kv_total=1,
                cohorts=tuple(sorted(cohorts, key=lambda c: c.cohort)),
                latency=latency,
                idle_energy_uj=None if energy is None or rng.random() < 0.5 else energy // 3,
            )
        )
    return sorted(made, key=lambda window: window.started_at)


def prices(per_hour: dict[str, list[str]]) -> PriceSheet:
    """Each sku's prices one after the other, every 17 hours from MIDNIGHT on."""
    lines = []
    for sku, amounts in per_hour.items():
        for i, amount in enumerate(amounts):
            begin = MIDNIGHT + i * 17 * 3600 if i else 0.0
            end = MIDNIGHT + (i + 1) * 17 * 3600 if i + 1 < len(amounts) else None
            lines.append(
                Price(
                    sku=sku, basis="on_demand", currency="EUR", per_hour=Decimal(amount), region="", source="test",
                    as_of=date(2026, 9, 1), effective_from=begin, effective_to=end,
                )
            )  # fmt: skip
    return PriceSheet(tuple(lines))


SHEET = prices(
    {"gpu-0": ["2.950000007", "1.700000001", "3.3"], "gpu-1": ["0.333333333"], "gpu-2": ["7.77", "7.770000001"]}
)


def bill(windows: list[WorkerWindow], sheet: PriceSheet = SHEET) -> int:
    """Nano-units of the windows, straight from the definition: each hour and sku priced and rounded once."""
    time: dict[tuple[int, str], int] = {}
    for window in windows:
        key = (int(window.started_at // 3600), window.device)
        time[key] = time.get(key, 0) + nanoseconds(window.seconds)
    total = 0
    for (hour, sku), ns in time.items():
        price = sheet.price_at(sku, "on_demand", hour * 3600)
        assert price is not None
        total += cost_of_time(ns, price.per_hour_nano)
    return total


def empty_ledger() -> sa.Engine:
    """A ledger in memory."""
    engine = open_database("sqlite:///:memory:")
    Base.metadata.create_all(engine)
    return engine


def write(engine: sa.Engine, windows: list[WorkerWindow]) -> None:
    """In one transaction, as the journal does."""
    with engine.begin() as connection:
        write_items(connection, [WindowSeen(window, window.ended_at) for window in windows])
