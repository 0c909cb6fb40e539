"""Revision 0009 tells steps with a draft apart in the hours of which every window is kept, and in no other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa
from alembic import command

from controlplane.store.cost import cost_report
from controlplane.store.engine import open_database, writing
from controlplane.store.migrate import configuration, upgrade
from controlplane.store.rows import WindowSeen
from controlplane.store.time_range import TimeRange
from controlplane.store.upkeep import prune, verify
from controlplane.store.write import write_items
from controlplane.telemetry import WorkerWindow
from tests.controlplane.store.random_traffic import MIDNIGHT, SHEET, traffic

HOUR_S = 3600
ALL = TimeRange(MIDNIGHT, MIDNIGHT + 60 * HOUR_S)
BY_COHORT = """SELECT {unit}, sku, model, cohort, energy_source, SUM(spec_steps) AS told, COUNT(*) - COUNT(spec_steps)
FROM cost_{unit} GROUP BY {unit}, sku, model, cohort, energy_source ORDER BY 1, 2, 3, 4, 5"""


def to(engine: sa.Engine, way: Any, revision: str) -> None:
    with writing(engine).begin() as connection:
        way(configuration(connection), revision)


def told(engine: sa.Engine, unit: str) -> list[tuple[Any, ...]]:
    """Steps with a draft by cohort, and how many rows do not know them."""
    with engine.connect() as connection:
        return [tuple(row) for row in connection.execute(sa.text(BY_COHORT.format(unit=unit)))]


@pytest.fixture
def recorded(empty_database_url: str) -> Iterator[tuple[sa.Engine, list[WorkerWindow]]]:
    upgrade(empty_database_url)
    engine = open_database(empty_database_url)
    windows = traffic(11, 40)
    with writing(engine).begin() as connection:
        write_items(connection, [WindowSeen(window, window.ended_at) for window in windows])
    yield engine, windows
    engine.dispose()


def test_what_is_told_afterwards_is_what_was_told_at_once(recorded: tuple[sa.Engine, list[WorkerWindow]]) -> None:
    engine, windows = recorded
    before = {unit: told(engine, unit) for unit in ("hour", "day", "month")}
    to(engine, command.downgrade, "0008")
    to(engine, command.upgrade, "head")
    assert {unit: told(engine, unit) for unit in before} == before
    spec_steps = sum(cohort.spec_steps for window in windows for cohort in window.cohorts)
    assert cost_report(engine, ALL, "cohort", SHEET).total.spec_steps == spec_steps > 0
    assert verify(engine).problems == ()


def test_of_hours_whose_windows_are_gone_it_is_not_known(recorded: tuple[sa.Engine, list[WorkerWindow]]) -> None:
    engine, windows = recorded
    middle = sorted(window.ended_at for window in windows)[len(windows) // 2] // HOUR_S * HOUR_S
    prune(engine, middle)
    to(engine, command.downgrade, "0008")
    to(engine, command.upgrade, "head")
    kept = [window for window in windows if window.started_at >= middle]
    report = cost_report(engine, TimeRange(middle, ALL.end), "cohort", SHEET)
    assert report.total.spec_steps == sum(cohort.spec_steps for window in kept for cohort in window.cohorts)
    assert cost_report(engine, ALL, "cohort", SHEET).total.spec_steps is None
    assert verify(engine).problems == ()


def test_what_comes_to_an_hour_that_is_not_known_leaves_it_so(recorded: tuple[sa.Engine, list[WorkerWindow]]) -> None:
    engine, _ = recorded
    prune(engine, ALL.end)
    to(engine, command.downgrade, "0008")
    to(engine, command.upgrade, "head")
    late = [window for window in traffic(12, 40) if window.cohorts]
    again = [replace(window, id=window.id._replace(epoch=99)) for window in late]
    with writing(engine).begin() as connection:
        write_items(connection, [WindowSeen(window, window.ended_at) for window in again])
    assert cost_report(engine, ALL, "cohort", SHEET).total.spec_steps is None
    assert verify(engine).problems == ()
