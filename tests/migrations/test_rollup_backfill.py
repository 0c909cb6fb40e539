"""Revision 0004 rolls up what was recorded before it, to the nanosecond, microjoule and token."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from alembic import command

from controlplane.store.cost import cost_report
from controlplane.store.engine import open_database, writing
from controlplane.store.migrate import configuration
from controlplane.store.rows import WindowSeen, request_row, window_rows
from controlplane.store.time_range import TimeRange
from controlplane.store.upkeep import verify
from controlplane.telemetry import WorkerWindow
from tests.controlplane.store.random_traffic import MIDNIGHT, SHEET, bill, traffic

Make = Callable[..., Any]
ALL = TimeRange(MIDNIGHT, MIDNIGHT + 60 * 3600)


def to(engine: sa.Engine, way: Any, revision: str) -> None:
    with writing(engine).begin() as connection:
        way(configuration(connection), revision)


def insert(engine: sa.Engine, name: str, rows: list[dict[str, Any]]) -> None:
    """The rows with what that revision's table has of their columns."""
    table = sa.Table(name, sa.MetaData(), autoload_with=engine)
    with engine.begin() as connection:
        connection.execute(table.insert(), [{c.name: row[c.name] for c in table.columns} for row in rows])


@pytest.fixture
def recorded(empty_database_url: str, make_request_record: Make) -> tuple[sa.Engine, list[WorkerWindow]]:
    """A ledger of revision 0003 with windows, and requests of two tenants in the first hour of cohort chat's."""
    engine = open_database(empty_database_url)
    to(engine, command.upgrade, "0003")
    windows = traffic(11, 40)
    rows = [window_rows(WindowSeen(window, window.ended_at)) for window in windows]
    insert(engine, "window", [each.row for each in rows])
    insert(engine, "window_cohort", [row for each in rows for row in each.cohorts])
    first = next(w for w in windows if any(c.cohort == "chat" and c.positions for c in w.cohorts))
    requests = [
        make_request_record(
            f"r{i}", cohort="chat", tenant=tenant, model=first.model, finished_at=first.started_at,
            prompt_tokens=tokens, completion_tokens=tokens, prefill_positions=tokens, verify_positions=tokens,
        )
        for i, (tenant, tokens) in enumerate((("acme", 30), ("zeta", 10)))
    ]  # fmt: skip
    insert(engine, "request", [request_row(request) for request in requests])
    return engine, windows


def test_the_rollups_are_the_windows_that_were_there(recorded: tuple[sa.Engine, list[WorkerWindow]]) -> None:
    engine, windows = recorded
    for revision in ("head", "0003", "head"):
        to(engine, command.downgrade if revision == "0003" else command.upgrade, revision)
    assert verify(engine).problems == ()
    total = cost_report(engine, ALL, "day", SHEET).total
    assert (total.cost_nano, total.energy_uj) == (bill(windows), sum(window.energy_uj or 0 for window in windows))
    cohorts = [cohort for window in windows for cohort in window.cohorts]
    assert total.emitted_tokens == sum(cohort.emitted_tokens for cohort in cohorts)
    assert total.requests == sum(cohort.requests_finished + cohort.requests_failed for cohort in cohorts)
    engine.dispose()


def test_tenants_are_those_of_the_requests_of_the_hour(recorded: tuple[sa.Engine, list[WorkerWindow]]) -> None:
    engine, _ = recorded
    to(engine, command.upgrade, "head")
    rows = {row.key: row for row in cost_report(engine, ALL, "tenant", SHEET, where={"cohort": ["chat"]}).rows}
    assert set(rows) == {"(none)", "acme", "zeta"}
    assert (rows["acme"].input_tokens, rows["zeta"].input_tokens) == (30, 10)
    assert rows["zeta"].machine_ns > 0
    assert abs(rows["acme"].machine_ns - 3 * rows["zeta"].machine_ns) <= 8  # split by 30 and 10 positions
    engine.dispose()
