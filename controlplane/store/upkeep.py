"""Checking the ledger and letting go of old rows."""

from __future__ import annotations

import time
from dataclasses import dataclass

import sqlalchemy as sa

from controlplane.store.engine import reading, writing
from controlplane.store.experiments import fill_windows
from controlplane.store.models import CanaryResult, Request, Tick, Window, WindowCohort
from controlplane.store.tables import TABLES

PRUNE_STEP_S = 3600.0
"""Old rows go an hour at a time, so that the journal never waits long for the write lock."""


@dataclass(frozen=True, slots=True)
class Verification:
    """Rows by table, and a line for each thing that is wrong (none: the ledger is sound)."""

    counts: dict[str, int]
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Pruned:
    """Rows deleted."""

    windows: int
    requests: int


def verify(engine: sa.Engine) -> Verification:
    """Count every table, ask SQLite for its own integrity checks, and add every window up again."""
    with reading(engine).connect() as connection:
        counts = {
            table.__tablename__: connection.scalar(sa.select(sa.func.count()).select_from(table)) or 0
            for table in TABLES
        }
        problems = []
        if connection.dialect.name == "sqlite":
            found = [row[0] for row in connection.exec_driver_sql("PRAGMA integrity_check")]
            problems += [f"SQLite: {line}" for line in found if line != "ok"]
            orphans = connection.exec_driver_sql("PRAGMA foreign_key_check").all()
            problems += [f"{len(orphans)} rows refer to a window that is not there"] if orphans else []
        problems += _unbalanced(connection)
    return Verification(counts, tuple(problems))


def _unbalanced(connection: sa.Connection) -> list[str]:
    """Windows whose cohorts and idle do not add up to the whole."""
    problems = []
    key = (Window.worker, Window.epoch, Window.sequence)
    for what, share, idle, whole in (
        ("machine time", WindowCohort.attributed_ns, Window.idle_ns, Window.seconds_ns),
        ("energy", WindowCohort.attributed_uj, Window.idle_uj, Window.energy_uj),
    ):
        sums = (
            sa.select(*key)
            .outerjoin_from(Window, WindowCohort)
            .where(whole.is_not(None))
            .group_by(*key)
            .having(sa.func.coalesce(sa.func.sum(share), 0) + sa.func.max(idle) != sa.func.max(whole))
        )
        wrong = connection.scalar(sa.select(sa.func.count()).select_from(sums.subquery()))
        if wrong:
            problems.append(f"{wrong} windows whose cohorts and idle do not add up to their {what}")
    return problems


def prune(engine: sa.Engine, before: float) -> Pruned:
    """Delete windows (with their cohorts), ticks and requests that ended before `before` (unix seconds).

    Decisions, plans, policies and alerts stay: they are few, and they explain what happened.
    """
    fill_windows(engine, time.time(), settled_too=True)  # an experiment's sums are made from what goes now
    engine = writing(engine)
    old_window, old_request = Window.ended_at < before, Request.finished_at < before
    windows = requests = 0
    while True:
        with engine.begin() as connection:
            oldest = [
                connection.scalar(sa.select(sa.func.min(Window.started_at)).where(old_window)),
                connection.scalar(sa.select(sa.func.min(Request.finished_at)).where(old_request)),
            ]
            known = [t for t in oldest if t is not None]
            if not known:
                connection.execute(sa.delete(Tick).where(Tick.at < before))
                connection.execute(sa.delete(CanaryResult).where(CanaryResult.at < before))
                return Pruned(windows, requests)
            end = min(known) + PRUNE_STEP_S
            windows += connection.execute(sa.delete(Window).where(Window.started_at < end, old_window)).rowcount
            connection.execute(sa.delete(Tick).where(Tick.at < min(end, before)))
            connection.execute(sa.delete(CanaryResult).where(CanaryResult.at < min(end, before)))
            requests += connection.execute(sa.delete(Request).where(Request.finished_at < end, old_request)).rowcount
