"""Reads of what machines drew over time: from windows for hours, from the rollups for longer. Units as in models.py.

A sum of energy is of what was measured: null where nothing was, and beside it the machine time that it is of.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from controlplane.store.cost_models import CostDay, CostHour
from controlplane.store.engine import reading
from controlplane.store.models import Window, WindowCohort
from controlplane.store.queries import window_bucket
from controlplane.store.rollup import IDLE
from controlplane.store.time_range import TimeRange

HOUR_S, DAY_S = 3600, 86_400


@dataclass(frozen=True, slots=True)
class PowerPoint:
    """One machine in the bucket that began at `at` (unix seconds). machine: a worker, or a sku where rollups are read.

    energy_uj, idle_uj: of its measured windows, None where none was measured. ns: machine time; measured_ns: the part
    of it that energy_uj is of, None where it is not told apart (rollups). resting_uj: what the device would have drawn
    in the measured time with nothing running, None where that is not known.
    """

    at: float
    machine: str
    sku: str
    source: str
    energy_uj: int | None
    idle_uj: int | None
    ns: int
    measured_ns: int | None = None
    resting_uj: int | None = None

    @property
    def watts(self) -> float | None:
        """Mean power; None where nothing was measured."""
        time_ns = self.ns if self.measured_ns is None else self.measured_ns
        # microjoules over nanoseconds are kilowatts
        return None if self.energy_uj is None or not time_ns else 1000 * self.energy_uj / time_ns


@dataclass(frozen=True, slots=True)
class BatchPoint:
    """What the machines did together in the bucket that began at `at`, and what it drew.

    tokens: emitted ones, measured_tokens those in windows with energy; active_uj: attributed to the cohorts,
    wasted_uj: of it, on draft tokens that were not kept, idle_uj: the rest, each of the measured windows, None where
    none was. running: sequences on a machine, mean over its busy time; None without any. steps: of sequences.
    """

    at: float
    tokens: int
    measured_tokens: int
    active_uj: int | None
    wasted_uj: int | None
    idle_uj: int | None
    running: float | None
    steps: int
    spec_steps: int
    draft_tokens: int
    accepted_tokens: int

    @property
    def active_j_per_token(self) -> float | None:
        """Joules of the work itself by emitted token, of the measured windows."""
        return _joules_by(self.active_uj, self.measured_tokens)

    @property
    def whole_j_per_token(self) -> float | None:
        """With the idle energy of the same machines."""
        return (
            None if self.active_uj is None else _joules_by(self.active_uj + (self.idle_uj or 0), self.measured_tokens)
        )

    @property
    def drafted_per_step(self) -> float | None:
        """Draft tokens by step of a sequence, plain steps included."""
        return self.draft_tokens / self.steps if self.steps else None

    @property
    def tokens_per_step(self) -> float | None:
        """Emitted by step of a sequence, plain steps included: what speculation changes at a given batch."""
        return self.tokens / self.steps if self.steps else None


def _joules_by(microjoules: int | None, tokens: int) -> float | None:
    return None if microjoules is None or not tokens else microjoules / 1e6 / tokens


def power_series(engine: sa.Engine, range: TimeRange, bucket_s: float) -> list[PowerPoint]:
    """The power of every worker in buckets of `bucket_s` seconds, from its windows, by time, worker and source."""
    w, bucket = Window, window_bucket(engine, bucket_s)
    is_measured = w.energy_uj.is_not(None)
    # A worker whose resting power is known for a part of its windows has none for the whole.
    resting_ns = sa.func.sum(sa.case((sa.and_(is_measured, w.idle_energy_uj.is_not(None)), w.seconds_ns), else_=0))
    query = (
        sa.select(
            bucket.label("bucket"), w.worker, w.device, w.energy_source,
            sa.func.sum(w.energy_uj).label("energy_uj"),
            sa.func.sum(w.idle_uj).label("idle_uj"),
            sa.func.sum(w.seconds_ns).label("ns"),
            sa.func.sum(sa.case((is_measured, w.seconds_ns), else_=0)).label("measured_ns"),
            sa.func.sum(sa.case((is_measured, w.idle_energy_uj))).label("resting_uj"),
            resting_ns.label("resting_ns"),
        )
        .where(w.started_at >= range.start, w.started_at < range.end)
        .group_by(sa.literal_column("bucket"), w.worker, w.device, w.energy_source)
        .order_by(sa.literal_column("bucket"), w.worker, w.energy_source)
    )  # fmt: skip
    with reading(engine).connect() as connection:
        return [
            PowerPoint(
                at=int(row["bucket"]) * bucket_s,
                machine=row["worker"],
                sku=row["device"],
                source=row["energy_source"],
                energy_uj=_whole(row["energy_uj"]),
                idle_uj=_whole(row["idle_uj"]),
                ns=int(row["ns"]),
                measured_ns=int(row["measured_ns"]),
                resting_uj=_whole(row["resting_uj"]) if row["resting_ns"] == row["measured_ns"] else None,
            )
            for row in connection.execute(query).mappings()
        ]


def rolled_up_power(engine: sa.Engine, range: TimeRange, *, by_day: bool) -> list[PowerPoint]:
    """The same of every sku, by the hours or days that began in the range, from the rollups.

    These do not say how much of a key's machine time was measured: where windows of a source went without a
    measurement, the power reads low.
    """
    table: Any = CostDay if by_day else CostHour
    unit, size = (table.day, DAY_S) if by_day else (table.hour, HOUR_S)
    first, end = (int(-(-at // size)) for at in (range.start, range.end))
    query = (
        sa.select(
            unit.label("unit"), table.sku, table.energy_source,
            sa.func.sum(table.uj).label("energy_uj"),
            sa.func.sum(sa.case((table.direction == IDLE, table.uj))).label("idle_uj"),
            sa.func.sum(table.ns).label("ns"),
        )
        .where(unit >= first, unit < end)
        .group_by(unit, table.sku, table.energy_source)
        .order_by(unit, table.sku, table.energy_source)
    )  # fmt: skip
    with reading(engine).connect() as connection:
        return [
            PowerPoint(
                at=float(row["unit"] * size),
                machine=row["sku"],
                sku=row["sku"],
                source=row["energy_source"],
                energy_uj=_whole(row["energy_uj"]),
                idle_uj=_whole(row["idle_uj"]),
                ns=int(row["ns"]),
            )
            for row in connection.execute(query).mappings()
        ]


def batch_series(engine: sa.Engine, range: TimeRange, bucket_s: float) -> list[BatchPoint]:
    """Energy by token beside batch occupancy and drafting, of all machines, in buckets of `bucket_s` seconds."""
    w, c, bucket = Window, WindowCohort, window_bucket(engine, bucket_s)
    within = (w.started_at >= range.start, w.started_at < range.end)
    is_measured = w.energy_uj.is_not(None)
    steps = c.spec_steps + c.plain_steps
    of_machines = (
        sa.select(
            bucket.label("bucket"),
            sa.func.sum(w.idle_uj).label("idle_uj"),
            sa.func.sum(w.busy_ns).label("busy_ns"),
            sa.func.sum(w.busy_ns * w.running).label("running_ns"),
        )
        .where(*within)
        .group_by(sa.literal_column("bucket"))
    )
    of_cohorts = (
        sa.select(
            bucket.label("bucket"),
            sa.func.sum(c.emitted_tokens).label("tokens"),
            sa.func.sum(sa.case((is_measured, c.emitted_tokens), else_=0)).label("measured_tokens"),
            sa.func.sum(c.attributed_uj).label("active_uj"),
            sa.func.sum(c.wasted_uj).label("wasted_uj"),
            sa.func.sum(steps).label("steps"),
            sa.func.sum(c.spec_steps).label("spec_steps"),
            sa.func.sum(c.draft_tokens).label("draft_tokens"),
            sa.func.sum(c.accepted_tokens).label("accepted_tokens"),
        )
        .join_from(w, c)
        .where(*within)
        .group_by(sa.literal_column("bucket"))
    )
    with reading(engine).connect() as connection:
        work = {row["bucket"]: row for row in connection.execute(of_cohorts).mappings()}
        machines = connection.execute(of_machines).mappings().all()
    points = []
    for row in sorted(machines, key=lambda row: row["bucket"]):
        did, busy_ns = work.get(row["bucket"]), int(row["busy_ns"] or 0)
        counts = {
            name: int(did[name]) if did else 0
            for name in ("tokens", "measured_tokens", "steps", "spec_steps", "draft_tokens", "accepted_tokens")
        }
        points.append(
            BatchPoint(
                at=int(row["bucket"]) * bucket_s,
                active_uj=_whole(did["active_uj"]) if did else None,
                wasted_uj=_whole(did["wasted_uj"]) if did else None,
                idle_uj=_whole(row["idle_uj"]),
                running=int(row["running_ns"]) / busy_ns if busy_ns else None,
                **counts,
            )
        )
    return points


def _whole(value: Any) -> int | None:
    return None if value is None else int(value)
