"""Savings experiments in the ledger: orders and windows on their way in, and reads with what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from controlplane.experiment import Run, RunState, Spec, Unit, Window
from controlplane.finops.savings import Sums
from controlplane.store.engine import writing
from controlplane.store.experiment_models import ExperimentEntry, ExperimentWindow
from controlplane.store.experiment_sums import LONGEST_REQUEST_S, NO_SUMS, newer
from controlplane.store.models import Window as WorkerWindow
from controlplane.telemetry import LatencyHistogram

SETTLED_S = 2 * LONGEST_REQUEST_S
"""After so long the sums of a window are not made again by themselves; a report does."""
AGAIN_S = 300.0


@dataclass(frozen=True, slots=True)
class Measured:
    """A window of an experiment and what is on record of it. windows: worker windows; machine_ns: by sku, billed."""

    window: Window
    sums: Sums
    windows: int
    machine_ns: dict[str, int]
    energy_sources: tuple[str, ...]


def write_run(connection: sa.Connection, run: Run) -> None:
    """Store an order, or what became of it; one that has ended stays as it is."""
    statement = _insert(connection, ExperimentEntry)
    changing = {name: getattr(statement.excluded, name) for name in ("state", "ended_at", "sentence")}
    where = ExperimentEntry.state == "running"
    connection.execute(
        statement.on_conflict_do_update(index_elements=["experiment"], set_=changing, where=where), [_run_row(run)]
    )


def write_windows(connection: sa.Connection, windows: Sequence[Window]) -> None:
    """Store windows as they begin and as their pair is done or aborted; the sums are left alone."""
    statement = _insert(connection, ExperimentWindow)
    changing = {name: getattr(statement.excluded, name) for name in ("state", "reason")}
    key = ["experiment", "pair", "arm"]
    where = ExperimentWindow.state == "running"
    rows = [{**{n: getattr(w, n) for n in Window.__dataclass_fields__}, **NO_SUMS} for w in windows]
    for row in rows:
        row["reason"] = row["reason"].replace("\0", "")
        connection.execute(statement.on_conflict_do_update(index_elements=key, set_=changing, where=where), [row])


def close_pairs(engine: sa.Engine, reason: str) -> int:
    """Give up the pairs that a controller left behind when it ended; how many windows that were."""
    left = sa.update(ExperimentWindow).where(ExperimentWindow.state == "running")
    with writing(engine).begin() as connection:
        return connection.execute(left.values(state="aborted", reason=reason)).rowcount


def experiments(engine: sa.Engine, limit: int = 20) -> list[Run]:
    """The newest ones, newest first."""
    query = sa.select(ExperimentEntry.__table__).order_by(ExperimentEntry.started_at.desc()).limit(limit)
    with engine.connect() as connection:
        return [_run(row) for row in connection.execute(query).mappings()]


def find_experiment(engine: sa.Engine, name: str | None) -> Run | None:
    """The one whose name begins so, if it is one only; without a name the newest."""
    if name is None:
        newest = experiments(engine, limit=1)
        return newest[0] if newest else None
    begins = ExperimentEntry.experiment.startswith(name, autoescape=True)
    with engine.connect() as connection:
        rows = connection.execute(sa.select(ExperimentEntry.__table__).where(begins).limit(2)).mappings().all()
    return _run(rows[0]) if len(rows) == 1 else None


def open_experiment(engine: sa.Engine) -> tuple[Run, int] | None:
    """The newest one where it is running, and how many of its pairs are complete."""
    newest = experiments(engine, limit=1)
    if not newest or newest[0].state != "running":
        return None
    table = ExperimentWindow
    done = sa.select(sa.func.count(table.pair.distinct())).where(
        table.experiment == newest[0].id, table.state == "done"
    )
    with engine.connect() as connection:
        return newest[0], connection.scalar(done) or 0


def last_pair(engine: sa.Engine, experiment: str) -> int:
    """The number of the last pair that was begun, whatever became of it; -1 where none was."""
    newest = sa.select(sa.func.max(ExperimentWindow.pair)).where(ExperimentWindow.experiment == experiment)
    with engine.connect() as connection:
        found = connection.scalar(newest)
    return -1 if found is None else found


def measured(engine: sa.Engine, experiment: str) -> list[Measured]:
    """Its windows by pair and arm, with sums that hold all that is on record by now. Writes nothing."""
    table = ExperimentWindow
    query = _with_unit().where(table.experiment == experiment).order_by(table.pair, table.arm)
    with engine.connect() as connection:
        rows = [dict(row) for row in connection.execute(query).mappings()]
        return [_measured({**row, **newer(connection, row)}) for row in rows]


def fill_windows(engine: sa.Engine, now: float, *, settled_too: bool = False) -> int:
    """Make the sums of windows that are over again, but of settled ones only where asked; how many changed.

    Settled ones of before the oldest window on record are left alone: there is nothing to make them from.
    """
    table = ExperimentWindow
    due = _with_unit().where(table.ended_at <= now)
    if settled_too:
        due = due.where(table.ended_at >= sa.select(sa.func.min(WorkerWindow.started_at)).scalar_subquery())
    else:
        is_stale = sa.and_(table.filled_at < table.ended_at + SETTLED_S, table.filled_at < now - AGAIN_S)
        due = due.where(sa.or_(table.filled_at.is_(None), is_stale))
    changed = 0
    with engine.connect() as connection:
        found = [(row, newer(connection, row)) for row in map(dict, connection.execute(due).mappings().all())]
    for row, values in found:
        # Whoever looked earlier and writes later must not take back what another has found since.
        is_no_less = [getattr(table, name) <= values.get(name, row[name]) for name in ("windows", "requests")]
        with writing(engine).begin() as connection:  # a short one for each, so that the journal never waits long
            filled = sa.update(table).where(table.id == row["id"], *is_no_less)
            connection.execute(filled.values(**values, filled_at=now))
        changed += bool(values)
    return changed


def unfinished_since(engine: sa.Engine, now: float) -> float | None:
    """When the oldest window began that is not over by `now`; its sums cannot be made yet. None without one."""
    table = ExperimentWindow
    oldest = sa.select(sa.func.min(table.started_at)).where(table.state == "running", table.ended_at > now)
    with engine.connect() as connection:
        return connection.scalar(oldest)


def _with_unit() -> sa.Select[Any]:
    entry, table = ExperimentEntry, ExperimentWindow
    return sa.select(table.__table__, entry.unit).join_from(table, entry, entry.experiment == table.experiment)


def _measured(row: dict[str, Any]) -> Measured:
    window = Window(**{name: row[name] for name in Window.__dataclass_fields__})
    same = (
        "seconds_ns", "busy_ns", "tokens", "energy_uj", "measured_tokens", "early_busy_ns", "early_tokens",
        "draft_tokens", "failed", "prompt_tokens", "completion_tokens",
    )  # fmt: skip
    sums = Sums(arrivals=row["requests"], **{name: row[name] for name in same})
    if row["lengths"]:
        sums = replace(sums, lengths=tuple(row["lengths"]), ttft=_histogram(row["ttft"]), tpot=_histogram(row["tpot"]))
    return Measured(
        window,
        sums,
        row["windows"],
        dict(row["machine_ns"]),
        tuple(row["energy_sources"]),
    )


def _histogram(stored: dict[str, Any]) -> LatencyHistogram:
    return LatencyHistogram(tuple(stored["counts"]), stored["sum_s"])


def _run_row(run: Run) -> dict[str, Any]:
    spec = run.spec
    return {
        "experiment": run.id,
        "unit": spec.unit,
        "holdout": spec.holdout,
        "window_s": spec.window_s,
        "burn_in_s": spec.burn_in_s,
        "pairs": spec.pairs,
        "seed": run.seed,
        "started_at": run.started_at,
        "ended_at": run.ended_at,
        "started_by": run.by.replace("\0", ""),
        "why": run.why.replace("\0", ""),
        "state": run.state,
        "sentence": run.sentence.replace("\0", ""),
    }


def _run(row: Any) -> Run:
    return Run(
        id=row["experiment"],
        spec=Spec(cast("Unit", row["unit"]), row["holdout"], row["window_s"], row["burn_in_s"], row["pairs"]),
        seed=row["seed"],
        started_at=row["started_at"],
        by=row["started_by"],
        why=row["why"],
        state=cast("RunState", row["state"]),
        ended_at=row["ended_at"],
        sentence=row["sentence"],
    )


def _insert(connection: sa.Connection, table: Any) -> Any:
    return (postgresql if connection.dialect.name == "postgresql" else sqlite).insert(table)
