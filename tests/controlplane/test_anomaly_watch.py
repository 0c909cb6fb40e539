"""The hourly look at unusual hours: one alert for each stretch, and what an operator cleared stays cleared."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa

from controlplane import anomaly_watch
from controlplane.alerts import Alert, AlertBook
from controlplane.anomaly_watch import due, follow, until_next
from controlplane.finops.pricing import parse_prices
from controlplane.store.cost_models import CostHour
from controlplane.store.engine import open_database
from controlplane.store.tables import Base
from controlplane.store.write import write_items

HOUR = 497_222
NS = 3600 * 10**9
NOW = (HOUR + 1) * 3600.0 + 300.0
SHEET = parse_prices(
    """
version: 1
prices:
  - {sku: gpu, basis: on_demand, currency: USD, per_hour: 3, source: x, as_of: 2026-11-01, effective_from: 2026-01-01}
"""
)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[sa.Engine]:
    """Two days of chat, then one hour with half the tokens for each step; a file, because threads look at it."""
    engine = open_database(f"sqlite:///{tmp_path}/ledger.db")
    Base.metadata.create_all(engine)
    rows = [
        {
            "hour": hour, "sku": "gpu", "model": "m", "cohort": "chat", "tenant": "", "direction": "output",
            "energy_source": "none", "ns": NS, "wasted_ns": 0, "uj": None, "wasted_uj": None,
            "tokens": 30_000 if hour == HOUR else 60_000, "measured_tokens": 0, "steps": 30_000, "planned_k_steps": 0,
            "draft_tokens": 0, "accepted_tokens": 0, "requests": 1,
        }
        for hour in range(HOUR - 48, HOUR + 1)
    ]  # fmt: skip
    with engine.begin() as connection:
        connection.execute(sa.insert(CostHour), rows)
    yield engine
    engine.dispose()


class Controller:
    """Keeps alerts as the real one does."""

    def __init__(self) -> None:
        self.alerts = AlertBook()
        self.raised: list[Alert] = []

    def raise_alert(self, alert: Alert) -> None:
        self.alerts = self.alerts.with_alert(alert)
        self.raised.append(alert)


def test_an_unusual_hour_is_due_when_it_has_ended(engine: sa.Engine) -> None:
    (alert,) = due(engine, SHEET, (), NOW)
    assert alert.name == "anomaly:chat/2026-09-21T14:00Z"
    assert "likely cause acceptance" in alert.detail


def test_an_hour_that_has_not_ended_is_not_judged(engine: sa.Engine) -> None:
    assert due(engine, SHEET, (), NOW - 3600.0) == []


def test_it_is_due_once(engine: sa.Engine) -> None:
    assert due(engine, SHEET, due(engine, SHEET, (), NOW), NOW + 3600.0) == []


def test_a_cleared_one_is_not_due_again(engine: sa.Engine) -> None:
    (alert,) = due(engine, SHEET, (), NOW)
    with engine.begin() as connection:
        write_items(connection, [replace(alert, state="cleared", cleared_at=NOW, cleared_by="me", why="known")])
    assert due(engine, SHEET, (), NOW) == []


def test_the_controller_is_told_and_a_second_look_tells_it_nothing_new(engine: sa.Engine, monkeypatch) -> None:
    monkeypatch.setattr(anomaly_watch.time, "time", lambda: NOW)
    monkeypatch.setattr(anomaly_watch, "until_next", lambda now: 0.0)
    controller, asked = Controller(), iter([True, True, True, True, False])
    asyncio.run(follow(engine, controller, lambda: SHEET, lambda: next(asked), first_s=0.0))
    assert [alert.kind for alert in controller.raised] == ["anomaly"]


def test_a_database_that_is_away_ends_nothing(tmp_path: Path, monkeypatch, caplog) -> None:
    monkeypatch.setattr(anomaly_watch, "until_next", lambda now: 0.0)
    asked = iter([True, True, True, True, False])
    engine = open_database(f"sqlite:///{tmp_path}/empty.db")
    asyncio.run(follow(engine, Controller(), lambda: SHEET, lambda: next(asked), first_s=0.0))
    engine.dispose()
    assert "unusual hours are not looked for" in caplog.text


@pytest.mark.parametrize(("now", "seconds"), [(0.0, 300.0), (300.0, 3600.0), (3599.0, 301.0)])
def test_the_next_look_is_five_minutes_past_the_hour(now: float, seconds: float) -> None:
    assert until_next(now) == seconds
