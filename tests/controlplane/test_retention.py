"""Old rows of a running system go beside its ticks, and a database that is away stops nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from controlplane.decision.plan import Plan
from controlplane.retention import follow, prune_once
from controlplane.store.engine import open_database
from controlplane.store.journal import SqlJournal
from controlplane.store.upkeep import verify
from controlplane.telemetry import Report

AT = 1_790_000_000.0


def test_a_running_system_prunes_what_is_old(sqlite_ledger_url: str, make_worker_window: Callable[..., Any]) -> None:
    engine = open_database(sqlite_ledger_url)
    journal = SqlJournal(engine)
    journal.record([Report(make_worker_window(1))], [], Plan(1, 1, AT, AT + 10, {}, {}, ""), AT)
    journal.close()
    turns = iter((True, False))
    asyncio.run(follow(engine, 1, lambda: next(turns), first_s=0.0, every_s=0.0))
    counts = verify(engine).counts
    assert (counts["window"], counts["cost_hour"], counts["pruned_window"]) == (0, 1, 1)
    engine.dispose()


def test_no_days_keeps_everything(tmp_path: Path) -> None:
    engine = open_database(f"sqlite:///{tmp_path}/never-opened.db")
    asyncio.run(follow(engine, 0, lambda: True, first_s=0.0, every_s=0.0))
    assert not (tmp_path / "never-opened.db").exists()


def test_a_database_that_is_away_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    engine = open_database(f"sqlite:///{tmp_path}/empty.db")
    with caplog.at_level(logging.WARNING):
        assert prune_once(engine, 1, AT) is None
    assert "old rows were not deleted" in caplog.text
    engine.dispose()
