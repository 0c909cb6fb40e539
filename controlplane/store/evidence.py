"""The newest windows of a range, with what the control loop would believe by and what they took of the machine.

Only the newest: evidence fades, so older windows would hardly move an estimate, and a year of them would take minutes.
Only the columns that are needed: no latencies of requests, no tenants.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import sqlalchemy as sa

from controlplane.experiment import is_holdout
from controlplane.store.engine import Database, reading
from controlplane.store.models import Window, WindowCohort
from controlplane.store.recorded import WINDOW, stored_cell, stored_profile, stored_window
from controlplane.store.time_range import TimeRange
from controlplane.telemetry import CohortWindow, ProfileCell, WorkerWindow

WINDOWS, COHORT_ROWS = 240, 2_500
"""How many windows are read at most, and how many cohorts' parts of them."""

PROFILE_WINDOWS = 600
"""How far before the newest windows a profile is looked for, in windows; workers repeat theirs every minute."""


@dataclass(frozen=True, slots=True)
class SeenWindow:
    """A window as the controller would take it in, at `at` (unix seconds), and its part of the ledger.

    output_ns: machine time of drafting and verification by cohort; input_ns: of prefill, all cohorts together. idle_uj:
    None = not measured.
    """

    at: float
    window: WorkerWindow
    output_ns: Mapping[str, int]
    input_ns: int
    idle_ns: int
    idle_uj: int | None


@dataclass(frozen=True, slots=True)
class RecentWindows:
    """Windows of one model, earliest first. profile: step times from before them, empty where they have their own.

    is_cut: older windows of the range were left out. other_models: of which there were windows, too.
    """

    windows: tuple[SeenWindow, ...]
    profile: tuple[ProfileCell, ...] = ()
    model: str = ""
    is_cut: bool = False
    other_models: tuple[str, ...] = ()

    @property
    def ticks(self) -> Iterator[tuple[float, list[WorkerWindow]]]:
        """As the controller took them in; a window that no tick is known of counts at its end."""
        for at, together in groupby(self.windows, key=lambda seen: seen.at):
            yield at, [seen.window for seen in together]

    @property
    def cohorts(self) -> frozenset[str]:
        return frozenset(c.cohort for seen in self.windows for c in seen.window.cohorts)


def recent_windows(
    engine: sa.Engine,
    range: TimeRange,
    *,
    model: str | None = None,
    windows: int = WINDOWS,
    cohort_rows: int = COHORT_ROWS,
) -> RecentWindows:
    """The newest windows that began in the range, of `model` or of the one with most of them; holdouts are left out."""
    within = (Window.started_at >= range.start, Window.started_at < range.end)
    columns = [getattr(Window, name) for name in (*WINDOW, "idle_ns", "idle_uj", "tick_at")]
    newest = sa.select(*columns).where(*within).order_by(Window.started_at.desc()).limit(windows + 1)
    if model is not None:
        newest = newest.where(Window.model == model)
    with reading(engine).connect() as connection:
        rows = list(connection.execute(newest).mappings())
        is_cut = len(rows) > windows
        rows = [row for row in rows[:windows] if not is_holdout(row["worker"])]
        if not rows:
            return RecentWindows(())
        models = sorted({row["model"] for row in rows}, key=lambda m: (-sum(r["model"] == m for r in rows), m))
        rows = [row for row in rows if row["model"] == models[0]]
        oldest = rows[-1]["started_at"]
        parts, is_short = _parts(connection, (*within, Window.started_at >= oldest), models[0], cohort_rows)
        if is_short:  # of the oldest window that has parts, some may be missing
            seen = [row for row in rows if _key(row) in parts]
            rows = [row for row in seen if row["started_at"] > seen[-1]["started_at"]] or seen[:1]
        first = rows[-1]["started_at"]
        has_profile = any(row["profile"] for row in rows)
        profile = () if has_profile else _profile(connection, models[0], first)
    found = [_seen(row, parts.get(_key(row), [])) for row in rows]
    found.sort(key=lambda seen: (seen.at, seen.window.id))
    return RecentWindows(tuple(found), profile, models[0], is_cut or is_short, tuple(models[1:]))


def newest_start(
    engine: Database, range: TimeRange, *, model: str | None = None, windows: int = WINDOWS
) -> float | None:
    """When the newest window began that `recent_windows` leaves out of the range (unix seconds); None where it leaves
    none out. All ranges with the same end and the same one have the same recent windows.
    """
    within = (Window.started_at >= range.start, Window.started_at < range.end)
    newest = sa.select(Window.started_at).where(*within).order_by(Window.started_at.desc()).offset(windows).limit(1)
    if model is not None:
        newest = newest.where(Window.model == model)
    with engine.connect() as connection:
        return connection.scalar(newest)


_PART = ("worker", "epoch", "sequence", "cohort", "attributed_ns", "input_ns", "prefill_positions", "draft_positions",
         "first_tokens", "cells")  # fmt: skip

_NO_SHADOW = (None, "null", "[]")

_Key = tuple[str, int, int]


def _key(row: Mapping[Any, Any]) -> _Key:
    return row["worker"], row["epoch"], row["sequence"]


def _parts(
    connection: sa.Connection, within: tuple[sa.ColumnElement[bool], ...], model: str, at_most: int
) -> tuple[dict[_Key, list[Mapping[Any, Any]]], bool]:
    """The cohorts' parts by window, newest first, and whether there are more of them than `at_most`."""
    query = (
        # Hardly a row has a shadow: as text, most need not be decoded.
        sa.select(
            *(getattr(WindowCohort, name) for name in _PART), sa.cast(WindowCohort.shadow, sa.Text).label("shadow")
        )
        .join_from(Window, WindowCohort)
        .where(*within, Window.model == model)
        .order_by(Window.started_at.desc(), Window.worker, Window.epoch, Window.sequence)
        .limit(at_most + 1)
    )
    parts: dict[_Key, list[Mapping[Any, Any]]] = {}
    rows = list(connection.execute(query).mappings())
    for row in rows[:at_most]:
        parts.setdefault(_key(row), []).append(row)
    return parts, len(rows) > at_most


def _profile(connection: sa.Connection, model: str, before: float) -> tuple[ProfileCell, ...]:
    """The last step times that a worker of the model told before a moment, among the PROFILE_WINDOWS before it."""
    query = (
        sa.select(Window.profile)
        .where(Window.started_at < before, Window.model == model)
        .order_by(Window.started_at.desc())
        .limit(PROFILE_WINDOWS)
    )
    told: list[Any] = next((cells for (cells,) in connection.execute(query) if cells), [])
    return stored_profile(told)


def _seen(row: Mapping[Any, Any], parts: list[Mapping[Any, Any]]) -> SeenWindow:
    cohorts = tuple(
        CohortWindow(
            part["cohort"],
            tuple(map(stored_cell, part["cells"])),
            part["prefill_positions"],
            part["draft_positions"],
            part["first_tokens"],
            shadow=() if part["shadow"] in _NO_SHADOW else tuple(map(stored_cell, json.loads(part["shadow"]))),
        )
        for part in sorted(parts, key=lambda part: str(part["cohort"]))
    )
    return SeenWindow(
        at=row["ended_at"] if row["tick_at"] is None else row["tick_at"],
        window=stored_window(row, cohorts),
        output_ns={part["cohort"]: part["attributed_ns"] - part["input_ns"] for part in parts},
        input_ns=sum(part["input_ns"] for part in parts),
        idle_ns=row["idle_ns"],
        idle_uj=row["idle_uj"],
    )
