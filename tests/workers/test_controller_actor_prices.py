"""The controller follows the price sheet's file: cost objectives weigh by the one in force, and it stays on record."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from controlplane import price_watch
from controlplane.settings import load_settings
from controlplane.store.engine import open_database
from controlplane.store.models import ControlEvent
from controlplane.store.price_book import sheets_in_force
from controlplane.telemetry import Report
from workers import controller_actor
from workers.controller_actor import ControllerActor

POLICY = (
    "version: 1\ncohorts:\n  - name: default\n    match: {}\n"
    "    speculation: {tuner: fixed, ladder: [0, 2, 4], start: 2, fallback: 0}\n"
)
SHEET = """version: 1
prices:
  - {sku: cpu-2core, basis: on_demand, currency: USD, per_hour: %s, source: x, as_of: 2026-01-01,
     effective_from: 2026-01-01}
"""


def test_a_changed_sheet_is_weighed_by_at_the_next_tick_and_goes_on_record(
    sqlite_ledger_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_worker_window: Any
) -> None:
    monkeypatch.setattr(controller_actor, "_was_restarted", lambda: False)
    monkeypatch.setattr(price_watch, "POLL_S", 0.01)
    prices = tmp_path / "prices.yaml"
    prices.write_text(SHEET % "3.6")
    settings = load_settings(home=tmp_path, database_url=sqlite_ledger_url, tick_s=0.02, prices=prices)
    engine = open_database(sqlite_ledger_url)

    def is_on_record() -> bool:
        with engine.connect() as connection:
            rates = connection.scalars(sa.select(ControlEvent.value).where(ControlEvent.kind == "rates"))
            weighed = [value["per_second"] for value in rates]
        return 0.002 in weighed and any("7.2" in entry.text for entry in sheets_in_force(engine))

    async def life() -> None:
        actor = ControllerActor(settings, POLICY)
        await actor.report([Report(make_worker_window())])
        prices.write_text(SHEET % "7.2")
        until = time.monotonic() + 20.0
        while not await asyncio.to_thread(is_on_record):
            assert time.monotonic() < until
            await asyncio.sleep(0.02)
        await actor.close()

    asyncio.run(life())
    engine.dispose()
