"""The sums of an experiment's windows, made from the windows and requests that the ledger has.

They may be made as often as asked: a window that arrives late is in the next ones, and one that arrives twice is stored
once. Where raw rows were pruned meanwhile, fewer are found than before, and what was stored stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from controlplane.experiment import HOLDOUT
from controlplane.finops.savings import LENGTH_BOUNDS
from controlplane.store.models import Request, Window, WindowCohort
from controlplane.telemetry import LATENCY_BOUNDS_S

LONGEST_REQUEST_S = 3600.0
"""Requests that take longer than this are not found by the window in which they arrived."""

NO_SUMS: Mapping[str, Any] = {
    "windows": 0, "seconds_ns": 0, "busy_ns": 0, "machine_ns": {}, "tokens": 0, "energy_uj": None, "measured_tokens": 0,
    "energy_sources": [], "early_busy_ns": 0, "early_tokens": 0, "draft_tokens": 0, "requests": 0, "failed": 0,
    "prompt_tokens": 0, "completion_tokens": 0, "lengths": [], "ttft": {}, "tpot": {}, "filled_at": None,
}  # fmt: skip
"""Of a window that is not over yet."""


def newer(connection: sa.Connection, row: Mapping[str, Any]) -> dict[str, Any]:
    """The sums of which the ledger has as much as when they were made last, or more."""
    machines, requests = _machines(connection, row), _requests(connection, row)
    found: dict[str, Any] = machines if machines["windows"] >= row["windows"] else {}
    found = {**found, **(requests if requests["requests"] >= row["requests"] else {})}
    return {name: value for name, value in found.items() if value != row[name]}


def _of_arm(column: Any, row: Mapping[str, Any]) -> sa.ColumnElement[bool]:
    """Workers of that arm: those without a drafter are the control of unit replica, and in no arm of unit window."""
    is_holdout: sa.ColumnElement[bool] = column.startswith(HOLDOUT, autoescape=True)
    return is_holdout if (row["unit"], row["arm"]) == ("replica", "control") else sa.not_(is_holdout)


def _machines(connection: sa.Connection, row: Mapping[str, Any]) -> dict[str, Any]:
    w, c = Window, WindowCohort
    start, end = row["burn_in_end"], row["ended_at"]
    within = (
        w.started_at >= start,
        w.started_at < end,
        w.ended_at <= end,
        _of_arm(w.worker, row),
    )
    is_early = w.ended_at <= (start + end) / 2

    def total(value: Any, condition: Any = None) -> Any:
        return sa.func.sum(value if condition is None else sa.case((condition, value), else_=0))

    of_windows = (
        sa.select(
            w.device, w.energy_source, sa.func.count(), total(w.seconds_ns), total(w.busy_ns), total(w.energy_uj),
            total(w.busy_ns, is_early),
        )
        .where(*within)
        .group_by(w.device, w.energy_source)
    )  # fmt: skip
    emitted = c.emitted_tokens
    of_cohorts = (
        sa.select(
            total(emitted), total(emitted, w.energy_uj.is_not(None)), total(emitted, is_early), total(c.draft_tokens)
        )
        .join_from(w, c)
        .where(*within)
    )  # fmt: skip
    groups = connection.execute(of_windows).all()
    tokens = [int(value or 0) for value in connection.execute(of_cohorts).one()]
    machine_ns: dict[str, int] = {}
    for device, _, _, seconds_ns, *_ in groups:
        machine_ns[device] = machine_ns.get(device, 0) + int(seconds_ns)
    measured_uj = [int(g[5]) for g in groups if g[5] is not None]
    return {
        "windows": sum(g[2] for g in groups),
        "seconds_ns": sum(machine_ns.values()),
        "busy_ns": sum(int(g[4]) for g in groups),
        "machine_ns": machine_ns,
        "tokens": tokens[0],
        "energy_uj": sum(measured_uj) if measured_uj else None,
        "measured_tokens": tokens[1],
        "energy_sources": sorted({g[1] for g in groups if g[5] is not None}),
        "early_busy_ns": sum(int(g[6]) for g in groups),
        "early_tokens": tokens[2],
        "draft_tokens": tokens[3],
    }


def _requests(connection: sa.Connection, row: Mapping[str, Any]) -> dict[str, Any]:
    r, start, end = Request, row["burn_in_end"], row["ended_at"]
    # By arrival: what a slower arm did not finish in time must not be missing from its lengths.
    within = (
        r.finished_at >= start,
        r.finished_at < end + LONGEST_REQUEST_S,
        r.started_at >= start,
        r.started_at < end,
        _of_arm(r.worker, row),
    )
    columns = [
        sa.func.count(),
        sa.func.sum(sa.case((r.finish_reason == "error", 1), else_=0)),
        sa.func.sum(r.prompt_tokens),
        sa.func.sum(r.completion_tokens),
        sa.func.sum(r.ttft_s),
        sa.func.sum(r.tpot_s),
        *_buckets(r.completion_tokens, LENGTH_BOUNDS),
        *_buckets(r.ttft_s, LATENCY_BOUNDS_S),
        *_buckets(r.tpot_s, LATENCY_BOUNDS_S),
    ]
    # Floats as they are, counts as integers: PostgreSQL sums integers to decimals.
    values = list(connection.execute(sa.select(*columns).where(*within)).one())
    counts = [int(value or 0) for value in values[6:]]
    lengths, rest = counts[: len(LENGTH_BOUNDS) + 1], counts[len(LENGTH_BOUNDS) + 1 :]
    half = len(LATENCY_BOUNDS_S) + 1
    return {
        "requests": int(values[0]),
        "failed": int(values[1] or 0),
        "prompt_tokens": int(values[2] or 0),
        "completion_tokens": int(values[3] or 0),
        "lengths": lengths,
        "ttft": {"counts": rest[:half], "sum_s": float(values[4] or 0.0)},
        "tpot": {"counts": rest[half:], "sum_s": float(values[5] or 0.0)},
    }


def _buckets(column: Any, bounds: Sequence[float]) -> list[Any]:
    """How many are in each bucket of `bounds`, and in the overflow, as columns."""
    edges = [*zip((None, *bounds), (*bounds, None), strict=True)]
    out = []
    for low, high in edges:
        inside = [*([column > low] if low is not None else []), *([column <= high] if high is not None else [])]
        out.append(sa.func.sum(sa.case((sa.and_(*inside), 1), else_=0)))
    return out
