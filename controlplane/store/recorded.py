"""What a controller took in and when, read back from the ledger as the values it was, tick by tick."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa

from controlplane.store.models import ControlEvent, DecisionEntry, PolicyRevision, Request, Tick, Window, WindowCohort
from controlplane.store.queries import DecisionRow
from controlplane.store.time_range import TimeRange
from controlplane.telemetry import (
    CohortWindow,
    LatencyCell,
    LatencyHistogram,
    ProfileCell,
    RankCount,
    StepCell,
    StepCount,
    TenantUse,
    WindowId,
    WorkerWindow,
)

CHUNK = 600
"""Ticks read at once: ten minutes at one a second."""


@dataclass(frozen=True, slots=True)
class RecordedTick:
    """One publication of a controller: a tick with the windows it took in (by worker, epoch and sequence), or an order.

    at: unix seconds. policy_revision, kill_switch, plan_version: of the plan that was published.
    """

    epoch: int
    at: float
    plan_version: int
    policy_revision: str
    kill_switch: str
    windows: tuple[WorkerWindow, ...]


@dataclass(frozen=True, slots=True)
class AppliedPolicy:
    """A policy on record. at: unix seconds, the very number of the tick that put it in force."""

    revision: str
    at: float
    by: str
    why: str
    text: str


@dataclass(frozen=True, slots=True)
class RecordedEvent:
    """What else a controller was told (models.ControlEvent). windows: those that a `resume` names, in its order."""

    at: float
    kind: str
    value: Mapping[str, Any]
    windows: tuple[WorkerWindow, ...] = ()


@dataclass(frozen=True, slots=True)
class RequestGroup:
    """How many requests the ledger has of one cohort, key name, route and model."""

    cohort: str
    tenant: str | None
    route: str
    model: str
    requests: int


def epochs(engine: sa.Engine, range: TimeRange) -> list[tuple[int, float, float]]:
    """(epoch, first tick, last tick) of the controllers that ticked in the range, earliest first.

    The first tick is the epoch's own, also where it is before the range.
    """
    within = sa.select(Tick.epoch).where(Tick.at >= range.start, Tick.at < range.end).distinct()
    query = (
        sa.select(Tick.epoch, sa.func.min(Tick.at), sa.func.max(Tick.at))
        .where(Tick.epoch.in_(within))
        .group_by(Tick.epoch)
        .order_by(Tick.epoch)
    )
    with engine.connect() as connection:
        return [(epoch, first, last) for epoch, first, last in connection.execute(query)]


def ticks(engine: sa.Engine, epoch: int, range: TimeRange) -> Iterator[RecordedTick]:
    """The epoch's ticks in the range, in order, with their windows. Holds CHUNK of them at a time."""
    start, is_first = range.start, True
    while True:
        after = Tick.at >= start if is_first else Tick.at > start
        query = (
            sa.select(Tick.__table__)
            .where(Tick.epoch == epoch, after, Tick.at < range.end)
            .order_by(Tick.at)
            .limit(CHUNK)
        )
        with engine.connect() as connection:
            rows = list(connection.execute(query).mappings())
            within = (Window.tick_at >= rows[0]["at"], Window.tick_at <= rows[-1]["at"]) if rows else ()
            windows = _windows(connection, *within) if rows else {}
        for row in rows:
            yield RecordedTick(**row, windows=tuple(windows.get(row["at"], ())))
        if len(rows) < CHUNK:
            return
        start, is_first = rows[-1]["at"], False


def count_ticks(engine: sa.Engine, epoch: int, range: TimeRange) -> int:
    """How many ticks of the epoch are in the range."""
    where = (Tick.epoch == epoch, Tick.at >= range.start, Tick.at < range.end)
    with engine.connect() as connection:
        return connection.scalar(sa.select(sa.func.count()).select_from(Tick).where(*where)) or 0


def last_windows(engine: sa.Engine, seconds: float, at_most: int) -> list[WorkerWindow]:
    """Windows taken in within `seconds` before the last tick on record, the newest `at_most` or so, oldest first."""
    with engine.connect() as connection:
        last = connection.scalar(sa.select(sa.func.max(Tick.at)))
        if last is None:
            return []
        within = (Window.tick_at >= last - seconds, Window.tick_at <= last)
        newest = sa.select(Window.tick_at).where(*within).order_by(Window.tick_at.desc())
        first = connection.scalar(newest.offset(at_most).limit(1))
        begin = last - seconds if first is None else first
        found = _windows(connection, Window.tick_at >= begin, Window.tick_at <= last)
    return [window for at in sorted(found) for window in found[at]]


def events(engine: sa.Engine, epoch: int) -> list[RecordedEvent]:
    """What else the controller was told, in order."""
    query = sa.select(ControlEvent.at, ControlEvent.kind, ControlEvent.value).where(ControlEvent.epoch == epoch)
    with engine.connect() as connection:
        found = [RecordedEvent(*row) for row in connection.execute(query.order_by(ControlEvent.at, ControlEvent.id))]
        return [
            replace(event, windows=tuple(_named(connection, event.value["windows"])))
            if event.kind == "resume"
            else event
            for event in found
        ]


def applied_policies(engine: sa.Engine, until: float) -> list[AppliedPolicy]:
    """All that were put in force before `until`, earliest first."""
    table = PolicyRevision
    query = (
        sa.select(table.revision, table.applied_at, table.applied_by, table.why, table.text)
        .where(table.applied_at < until)
        .order_by(table.applied_at, table.id)
    )
    with engine.connect() as connection:
        return [AppliedPolicy(*row) for row in connection.execute(query)]


def decisions(engine: sa.Engine, range: TimeRange) -> list[DecisionRow]:
    """The decisions of the range, in the order in which they were made."""
    query = (
        sa.select(*(getattr(DecisionEntry, name) for name in DecisionRow.__dataclass_fields__))
        .where(DecisionEntry.at >= range.start, DecisionEntry.at < range.end)
        .order_by(DecisionEntry.at, DecisionEntry.id)
    )
    with engine.connect() as connection:
        rows = [dict(row) for row in connection.execute(query).mappings()]
    return [DecisionRow(**{**row, "accept_at": tuple(row["accept_at"])}) for row in rows]


def request_groups(engine: sa.Engine, range: TimeRange) -> list[RequestGroup]:
    """How many requests of each kind ended in the range, by cohort, key, route and model."""
    kind = (Request.cohort, Request.tenant, Request.route, Request.model)
    query = (
        sa.select(*kind, sa.func.count())
        .where(Request.finished_at >= range.start, Request.finished_at < range.end)
        .group_by(*kind)
        .order_by(*kind)
    )
    with engine.connect() as connection:
        return [RequestGroup(*row) for row in connection.execute(query)]


def _named(connection: sa.Connection, identities: Iterable[Sequence[Any]]) -> Iterator[WorkerWindow]:
    """The windows of these identities that are still on record, in this order."""
    for worker, epoch, sequence in identities:
        where = (Window.worker == worker, Window.epoch == epoch, Window.sequence == sequence)
        for found in _windows(connection, *where).values():
            yield from found


def _windows(connection: sa.Connection, *within: sa.ColumnElement[bool]) -> dict[float, list[WorkerWindow]]:
    key = (Window.worker, Window.epoch, Window.sequence)
    cohorts: dict[tuple[Any, ...], list[CohortWindow]] = {}
    child = sa.select(WindowCohort.__table__).join_from(WindowCohort, Window).where(*within)
    for row in connection.execute(child.order_by(WindowCohort.cohort)).mappings():
        cohorts.setdefault((row["worker"], row["epoch"], row["sequence"]), []).append(_cohort(row))
    found: dict[float, list[WorkerWindow]] = {}
    for row in connection.execute(sa.select(Window.__table__).where(*within).order_by(*key)).mappings():
        of = cohorts.get((row["worker"], row["epoch"], row["sequence"]), ())
        found.setdefault(row["tick_at"], []).append(stored_window(row, tuple(of)))
    return found


_SAME = ("model", "drafter", "device", "started_at", "ended_at", "energy_uj", "energy_source", "idle_energy_uj",
         "plan_version", "plan_expired", "plan_age_s", "running", "waiting", "kv_used", "kv_total")  # fmt: skip
WINDOW = ("worker", "epoch", "sequence", "busy_ns", "busy_s", "latency", "profile", *_SAME)
"""The columns of models.Window that stored_window reads."""


def stored_window(row: Mapping[Any, Any], cohorts: tuple[CohortWindow, ...]) -> WorkerWindow:
    """A window as the ledger has it (models.Window), with its cohorts."""
    return WorkerWindow(
        id=WindowId(row["worker"], row["epoch"], row["sequence"]),
        busy_s=row["busy_ns"] / 1e9 if row["busy_s"] is None else row["busy_s"],
        cohorts=cohorts,
        latency=tuple(LatencyCell(*cell) for cell in row["latency"]),
        profile=stored_profile(row["profile"] or ()),
        **{name: row[name] for name in _SAME},
    )


def _cohort(row: Mapping[Any, Any]) -> CohortWindow:
    same = ("cohort", "prefill_positions", "draft_positions", "first_tokens", "requests_started", "requests_finished",
            "requests_failed")  # fmt: skip
    return CohortWindow(
        cells=tuple(map(stored_cell, row["cells"])),
        ttft=_histogram(row["ttft"]),
        tpot=_histogram(row["tpot"]),
        shadow=tuple(map(stored_cell, row["shadow"] or ())),
        tenants=tuple(TenantUse(*tenant) for tenant in row["tenants"] or ()),
        **{name: row[name] for name in same},
    )


def stored_cell(stored: list[Any]) -> StepCell:
    """A cell as the ledger has it (models.WindowCohort)."""
    bucket, k, counts, seconds, *more = stored
    drafts = tuple(StepCount(drafted, accepted, bool(ended), steps) for drafted, accepted, ended, steps in counts)
    overlap, steps = more[:2] or ((), ())  # of before revision 0002
    tree, ranks = more[2:] or ((), ())
    return StepCell(
        bucket, k, drafts, seconds, tuple(overlap), tuple(steps),
        tree=tuple(tree), ranks=tuple(RankCount(*count) for count in ranks),
    )  # fmt: skip


def stored_profile(stored: Iterable[Sequence[Any]]) -> tuple[ProfileCell, ...]:
    """Step times of a worker's start as the ledger has them (models.Window)."""
    return tuple(ProfileCell(*cell[:5], *(tuple(tree) for tree in cell[5:])) for cell in stored)


def _histogram(stored: Mapping[str, Any]) -> LatencyHistogram:
    return LatencyHistogram(tuple(stored["counts"]), stored["sum_s"])
