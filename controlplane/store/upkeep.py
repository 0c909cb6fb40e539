"""Checking the ledger and letting go of old rows."""

from __future__ import annotations

import time
from dataclasses import dataclass

import sqlalchemy as sa

from controlplane.store.engine import reading, writing
from controlplane.store.experiments import fill_windows, unfinished_since
from controlplane.store.models import CanaryResult, Request, Tick, Window, WindowCohort
from controlplane.store.pruned import remember_pruned
from controlplane.store.rollup_check import rollup_problems
from controlplane.store.tables import TABLES

DAY_S = 86400.0
PRUNE_LOCK = 0x6B61647072756E65
"""Key of the PostgreSQL lock that one pruning process holds ("kadprune" in ASCII)."""

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
    """Count every table, ask SQLite for its own integrity checks, add every window up again, and the rollups too."""
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
        problems += _unbalanced(connection) + rollup_problems(connection)
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


def retention_ends(now: float, days: float) -> float:
    """Unix seconds: what ended before this is older than `days`. On a whole hour, so that no hour is kept in part."""
    return (now - days * DAY_S) // PRUNE_STEP_S * PRUNE_STEP_S


def prune(engine: sa.Engine, before: float) -> Pruned:
    """Delete windows (with their cohorts), ticks and requests that ended before `before` (unix seconds).

    The bill stays as it is: cost_hour and cost_day have all of it, and which windows went is on record, so that one
    that arrives again is not counted twice. Decisions, plans, policies and alerts stay: they are few, and they explain
    what happened. What a savings experiment's window needs that is not over stays until it is.
    """
    now = time.time()
    fill_windows(engine, now, settled_too=True)  # an experiment's sums are made from what goes now
    needed = unfinished_since(engine, now)
    before = before if needed is None else min(before, needed)
    engine = writing(engine)
    old_window, old_request = Window.ended_at < before, Request.finished_at < before
    windows = requests = 0
    while True:
        with engine.begin() as connection:
            if connection.dialect.name == "postgresql":  # one at a time; SQLite has its write lock
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(PRUNE_LOCK)))
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
            gone = sa.delete(Window).where(Window.started_at < end, old_window)
            key = (Window.worker, Window.epoch, Window.sequence)
            deleted = [(worker, epoch, n) for worker, epoch, n in connection.execute(gone.returning(*key))]
            remember_pruned(connection, deleted)
            windows += len(deleted)
            connection.execute(sa.delete(Tick).where(Tick.at < min(end, before)))
            connection.execute(sa.delete(CanaryResult).where(CanaryResult.at < min(end, before)))
            requests += connection.execute(sa.delete(Request).where(Request.finished_at < end, old_request)).rowcount
