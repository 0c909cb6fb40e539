"""Writing into the ledger. Every insert is idempotent: what is there already stays as it is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, Union

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from controlplane.alerts import Alert, CanaryCheck
from controlplane.decision.plan import Plan
from controlplane.experiment import Run
from controlplane.experiment import Window as ExperimentWindow
from controlplane.rollout import Rollout
from controlplane.store.alerts import alert_row, check_row
from controlplane.store.experiments import write_run
from controlplane.store.experiments import write_windows as write_experiment_windows
from controlplane.store.models import (
    AlertEntry,
    Base,
    CanaryResult,
    ControlEvent,
    DecisionEntry,
    PlanEntry,
    PolicyRevision,
    PolicyRollout,
    Request,
    Tick,
    Window,
    WindowCohort,
)
from controlplane.store.pruned import Identity, forget_repetitions
from controlplane.store.rollup import add_to_rollups
from controlplane.store.rows import (
    ControlTold,
    PolicyApplied,
    Row,
    Ticked,
    WindowSeen,
    decision_row,
    event_row,
    plan_row,
    policy_row,
    request_row,
    rollout_row,
    tick_row,
    window_rows,
)
from controlplane.telemetry import RequestRecord

if TYPE_CHECKING:
    from controlplane.decision.decide import Decision

Item: TypeAlias = Union[
    WindowSeen,
    RequestRecord,
    Plan,
    Ticked,
    PolicyApplied,
    Rollout,
    ControlTold,
    CanaryCheck,
    Alert,
    Run,
    ExperimentWindow,
    "Decision",
]
"""What the journal stores; one item is one row, but a window also has one per cohort."""


def insert(connection: sa.Connection, table: type[Base]) -> Any:
    """An INSERT of the connection's dialect: both have ON CONFLICT, each in a class of its own."""
    return (postgresql if connection.dialect.name == "postgresql" else sqlite).insert(table)


def write_items(connection: sa.Connection, items: Iterable[Item]) -> None:
    """Store the items inside the connection's transaction, in one statement a table."""
    windows: list[WindowSeen] = []
    ticks: list[Row] = []
    requests: list[Row] = []
    decisions: list[Row] = []
    plans: list[Row] = []
    policies: list[Row] = []
    rollouts: list[Row] = []
    events: list[Row] = []
    checks: list[Row] = []
    alerts: list[Row] = []
    experiments: list[Run | ExperimentWindow] = []
    for item in items:
        match item:
            case WindowSeen():
                windows.append(item)
            case ControlTold():
                events.append(event_row(item))
            case Ticked():
                ticks.append(tick_row(item))
            case RequestRecord():
                requests.append(request_row(item))
            case Plan():
                plans.append(plan_row(item))
            case PolicyApplied():
                policies.append(policy_row(item))
            case CanaryCheck():
                checks.append(check_row(item))
            case Rollout():
                rollouts.append(rollout_row(item))
            case Run() | ExperimentWindow():
                experiments.append(item)
            case Alert():
                alerts.append(alert_row(item))
            case _:
                decisions.append(decision_row(item))
    if windows:
        _write_windows(connection, windows)
    for table, rows in (
        (Request, requests),
        (DecisionEntry, decisions),
        (PolicyRevision, policies),
        (Tick, ticks),
        (ControlEvent, events),
        (CanaryResult, checks),
    ):
        if rows:
            connection.execute(insert(connection, table).on_conflict_do_nothing(), rows)
    for row in plans:
        _write_plan(connection, row)
    for row in alerts:
        _write_alert(connection, row)
    for item in experiments:
        if isinstance(item, Run):
            write_run(connection, item)
        else:
            write_experiment_windows(connection, [item])
    for row in rollouts:
        _write_rollout(connection, row)


def _write_windows(connection: sa.Connection, seen: Sequence[WindowSeen]) -> None:
    """Windows that are new, with their cohorts, and what they add to the rollups: all of it or nothing."""
    # In the order of their keys, so that two writers with the same windows do not wait for each other in a circle.
    found = sorted((window_rows(each) for each in seen), key=lambda rows: rows.window.id)
    key = (Window.worker, Window.epoch, Window.sequence)
    statement = insert(connection, Window).on_conflict_do_nothing().returning(*key)
    inserted: set[Identity] = {tuple(row) for row in connection.execute(statement, [each.row for each in found])}
    stored = forget_repetitions(connection, inserted)
    # A window that was there already keeps its cohorts, even if the repetition says otherwise.
    new = {tuple(each.window.id): each for each in reversed(found) if tuple(each.window.id) in stored}
    cohorts = [row for each in new.values() for row in each.cohorts]
    if cohorts:
        connection.execute(insert(connection, WindowCohort), cohorts)
    add_to_rollups(connection, [(each.window, each.parts) for each in new.values()])


def _write_plan(connection: sa.Connection, row: Row) -> None:
    """A version is written once; later issues of it only move its expiry."""
    statement = insert(connection, PlanEntry)
    later = statement.excluded.expires_at
    connection.execute(
        statement.on_conflict_do_update(
            index_elements=["version", "epoch"], set_={"expires_at": later}, where=PlanEntry.expires_at < later
        ),
        [row],
    )


def _write_rollout(connection: sa.Connection, row: Row) -> None:
    """A rollout is one row; once it has ended it stays as it is."""
    statement = insert(connection, PolicyRollout)
    changing = ("members", "stage", "ended_at", "sentence")
    connection.execute(
        statement.on_conflict_do_update(
            index_elements=["started_at", "revision"],
            set_={name: getattr(statement.excluded, name) for name in changing},
            where=PolicyRollout.ended_at.is_(None),
        ),
        [row],
    )


def _write_alert(connection: sa.Connection, row: Row) -> None:
    """An alert is one row while it lasts; what was cleared stays so, whatever arrives late."""
    statement = insert(connection, AlertEntry)
    changing = ("severity", "state", "last_seen", "count", "detail", "cleared_at", "cleared_by", "why")
    connection.execute(
        statement.on_conflict_do_update(
            index_elements=["kind", "subject", "first_seen"],
            set_={name: getattr(statement.excluded, name) for name in changing},
            where=AlertEntry.state == "active",
        ),
        [row],
    )
