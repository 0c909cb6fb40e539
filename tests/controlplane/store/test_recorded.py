"""What was journalled reads back as the values it was, in the ticks in which it was taken in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa

from controlplane.decision.plan import Plan
from controlplane.store import recorded
from controlplane.store.journal import SqlJournal
from controlplane.store.recorded import RequestGroup, epochs, request_groups, ticks
from controlplane.store.time_range import TimeRange
from controlplane.telemetry import (
    LatencyCell,
    LatencyHistogram,
    ProfileCell,
    RankCount,
    Report,
    StepCell,
    StepCount,
    TenantUse,
    WindowId,
    WorkerWindow,
)

Make = Callable[..., Any]
AT = 1_790_000_000.0
EVER = TimeRange(0, 2 * AT)


@pytest.fixture
def window(make_worker_window: Make, make_cohort_window: Make) -> WorkerWindow:
    """One with something in every field."""
    cell = StepCell(2, 4, (StepCount(4, 1, False, 3), StepCount(4, 4, True, 1)), 0.1 + 0.2, (2.5, 1 / 3), (4, 1))
    cohort = make_cohort_window(
        "json", prefill_positions=7, draft_positions=3, first_tokens=1, requests_started=2, requests_finished=1,
        requests_failed=1, tenants=(TenantUse(None, 7), TenantUse("ide", 0, 20, 3, 16, 7, 9, 11, 2)),
        ttft=LatencyHistogram().observe(0.3), tpot=LatencyHistogram().observe(0.02),
    )  # fmt: skip
    other = make_cohort_window("code", (StepCount(2, 1, False, 5),), 2)
    tree = StepCell(2, 8, (StepCount(4, 2, False, 1),), 0.05, tree=(-1, -1, 0, 1), ranks=(RankCount(0, 1, 1, 1),))
    window = make_worker_window(
        3,
        (other, replace(cohort, cells=(cell, tree), shadow=(replace(cell, k=2),))),
        started_at=AT + 0.1,
        latency=(LatencyCell(3, 15, 4, 0.1 + 0.7, 900, 0.01),),
        profile=(ProfileCell(4, 2, 128, 1 / 3, 0.05), ProfileCell(4, 4, 128, 0.4, 0.05, (-1, -1, 0, 1))),
        energy_uj=123,
        energy_source="counter",
        idle_energy_uj=60,
    )
    return window  # type: ignore[no-any-return]


def plan(version: int, epoch: int = 1) -> Plan:
    return Plan(epoch, version, AT, AT + 10, {}, {}, f"revision-{version}", "fallback")


@pytest.fixture
def write(ledger: sa.Engine) -> Callable[..., None]:
    def record(*arguments: Any) -> None:
        journal = SqlJournal(ledger)
        journal.record(*arguments)
        journal.close()

    return record


def test_a_window_reads_back_equal(ledger: sa.Engine, write: Callable[..., None], window: WorkerWindow) -> None:
    write([Report(window)], [], plan(7), AT + 2.25)
    (tick,) = ticks(ledger, 1, EVER)
    assert tick.windows == (window,)
    assert (tick.at, tick.plan_version, tick.policy_revision, tick.kill_switch) == (
        AT + 2.25, 7, "revision-7", "fallback",
    )  # fmt: skip


def test_ticks_come_in_order_each_with_its_own_windows(
    ledger: sa.Engine, write: Callable[..., None], window: WorkerWindow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorded, "CHUNK", 2)
    for at in (3, 1, 5, 2, 4):
        write([Report(replace(window, id=WindowId("w", 1, at)))] if at != 2 else [], [], plan(at), AT + at)
    found = list(ticks(ledger, 1, TimeRange(AT + 1, AT + 5)))
    assert [tick.at - AT for tick in found] == [1, 2, 3, 4]
    assert [[w.id.sequence for w in tick.windows] for tick in found] == [[1], [], [3], [4]]


def test_the_windows_of_a_tick_are_sorted_by_their_identity(
    ledger: sa.Engine, write: Callable[..., None], window: WorkerWindow
) -> None:
    reports = [Report(replace(window, id=WindowId(w, 1, s))) for w, s in (("b", 1), ("a", 2), ("a", 1))]
    write(reports, [], plan(1), AT)
    (tick,) = ticks(ledger, 1, EVER)
    assert [w.id for w in tick.windows] == [("a", 1, 1), ("a", 1, 2), ("b", 1, 1)]


def test_controllers_are_told_apart_by_their_epoch(ledger: sa.Engine, write: Callable[..., None]) -> None:
    for epoch, at in ((1, 0), (1, 4), (2, 5), (2, 9), (3, 20)):
        write([], [], plan(epoch, epoch), AT + at)
    assert epochs(ledger, TimeRange(AT + 4, AT + 10)) == [(1, AT, AT + 4), (2, AT + 5, AT + 9)]


def test_requests_are_counted_by_what_they_can_be_matched_by(
    ledger: sa.Engine, write: Callable[..., None], window: WorkerWindow, make_request_record: Make
) -> None:
    kinds = (("a", "json", "ide"), ("b", "json", None), ("c", "json", "ide"))
    requests = tuple(
        make_request_record(i, cohort=cohort, tenant=tenant, finished_at=AT) for i, cohort, tenant in kinds
    )
    write([Report(window, requests)], [], plan(1), AT)
    found = request_groups(ledger, EVER)
    assert {(g.tenant, g.requests) for g in found} == {("ide", 2), (None, 1)}
    assert isinstance(found[0], RequestGroup)


def test_a_window_of_before_the_second_revision_has_what_it_had(
    ledger: sa.Engine, write: Callable[..., None], window: WorkerWindow
) -> None:
    write([Report(window)], [], plan(1), AT)
    with ledger.begin() as connection:
        old_cells = [[0, 4, [[4, 1, False, 3]], 0.5]]
        connection.execute(sa.update(recorded.WindowCohort).values(shadow=None, cells=old_cells))
        connection.execute(sa.update(recorded.Window).values(profile=None, latency=[[1, 5, 2, 0.4]]))
    ((read,),) = (tick.windows for tick in ticks(ledger, 1, EVER))
    assert (read.profile, read.latency) == ((), (LatencyCell(1, 5, 2, 0.4),))
    assert read.cohorts[0].cells == (StepCell(0, 4, (StepCount(4, 1, False, 3),), 0.5),)
