"""Hours of cohorts out of the rollup: idle and its energy shared by busy time, prices of the hour."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from controlplane.alerts import Alert
from controlplane.finops.anomaly import HourUse
from controlplane.finops.pricing import parse_prices
from controlplane.store.anomalies import cleared_anomalies, hour_uses
from controlplane.store.cost_models import CostHour
from controlplane.store.write import write_items

HOUR = 497_222
NS = 3600 * 10**9
SHEET = parse_prices(
    """
version: 1
prices:
  - {sku: gpu, basis: on_demand, currency: USD, per_hour: 3, source: x, as_of: 2026-11-01, effective_from: 2026-01-01}
"""
)


def put(engine: sa.Engine, *rows: dict[str, Any]) -> None:
    zero = dict.fromkeys(
        ("ns", "wasted_ns", "tokens", "measured_tokens", "steps", "planned_k_steps", "draft_tokens", "accepted_tokens",
         "requests"), 0,
    )  # fmt: skip
    key = {"hour": HOUR, "sku": "gpu", "model": "m", "cohort": "", "tenant": "", "energy_source": "counter"}
    with engine.begin() as connection:
        connection.execute(sa.insert(CostHour), [{**zero, **key, "uj": None, "wasted_uj": None, **row} for row in rows])


def uses(engine: sa.Engine, *hours: int) -> dict[str, HourUse]:
    return {use.cohort: use for use in hour_uses(engine, hours or (HOUR,), SHEET)}


def test_idle_and_its_energy_go_to_cohorts_by_busy_time(ledger: sa.Engine) -> None:
    put(
        ledger,
        {"cohort": "chat", "tenant": "a", "direction": "output", "ns": NS // 8, "uj": 10, "tokens": 5, "steps": 2,
         "measured_tokens": 5, "draft_tokens": 4, "accepted_tokens": 3},
        {"cohort": "chat", "tenant": "b", "direction": "output", "ns": NS // 8, "uj": 20, "tokens": 5, "steps": 2,
         "measured_tokens": 5, "draft_tokens": 4, "accepted_tokens": 3},
        {"cohort": "chat", "direction": "input", "ns": NS // 8, "uj": 30, "tokens": 100},
        {"cohort": "code", "direction": "output", "ns": NS // 8, "uj": 40, "tokens": 7, "steps": 7},
        {"direction": "idle", "ns": NS // 2, "uj": 400},
    )  # fmt: skip
    assert uses(ledger)["chat"] == HourUse(
        "chat", HOUR, input_ns=NS // 8, output_ns=NS // 4, idle_ns=3 * NS // 8, cost_nano=2_250_000_000, uj=360,
        tokens=10, measured_tokens=10, steps=4, draft_tokens=8, accepted_tokens=6,
    )  # fmt: skip


def test_a_cohort_on_a_machine_without_a_price_is_unpriced(ledger: sa.Engine) -> None:
    output = {"cohort": "chat", "direction": "output", "ns": NS, "tokens": 5, "steps": 2}
    put(ledger, output, {**output, "sku": "other"})
    assert uses(ledger)["chat"].cost_nano is None
    assert uses(ledger)["chat"].tokens == 10


def test_energy_that_nobody_measured_is_none(ledger: sa.Engine) -> None:
    put(ledger, {"cohort": "chat", "direction": "output", "ns": NS, "tokens": 5, "steps": 2})
    assert uses(ledger)["chat"].uj is None


def test_hours_outside_are_not_read(ledger: sa.Engine) -> None:
    put(ledger, {"cohort": "chat", "direction": "output", "ns": NS})
    assert uses(ledger, HOUR - 1, HOUR + 1) == {}


def test_many_hours_are_read_with_those_between(ledger: sa.Engine) -> None:
    put(ledger, {"cohort": "chat", "direction": "output", "ns": NS})
    assert list(uses(ledger, *range(HOUR - 5000, HOUR + 5000, 3))) == ["chat"]


def test_only_anomalies_that_were_cleared_are_known_as_such(ledger: sa.Engine) -> None:
    active = Alert("anomaly", "chat/x", "warning", 10.0, 20.0, 1, "")
    cleared = Alert("anomaly", "code/x", "warning", 10.0, 20.0, 1, "", "cleared", 30.0, "me", "known")
    budget = Alert("budget", "code/x", "warning", 10.0, 20.0, 1, "", "cleared", 30.0, "me", "known")
    with ledger.begin() as connection:
        write_items(connection, [active, cleared, budget])
    assert cleared_anomalies(ledger, since=20.0) == [cleared]
    assert cleared_anomalies(ledger, since=21.0) == []
