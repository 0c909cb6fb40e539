"""What cannot be true of a reported window: it is refused before anything is computed from it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from math import isfinite
from operator import itemgetter
from typing import Any

import numpy as np

from controlplane.step_columns import Ints, StepColumns
from controlplane.telemetry import (
    LATENCY_BOUNDS_S,
    LOAD_BUCKETS,
    MAX_K,
    CohortWindow,
    LatencyCell,
    ProfileCell,
    StepCell,
    TenantUse,
    WorkerWindow,
)

MOST = 1e15
"""No number of a window is as large: neither counts nor seconds, nor microjoules. Sums of such numbers are finite."""
LATEST = 253_402_300_000
"""Unix seconds, late in the year 9999: no calendar, and no hour of the ledger, goes further."""
_BINS = len(LATENCY_BOUNDS_S) + 1
_COUNTED_TWICE = tuple(name for name in TenantUse._fields if name not in ("tenant", "input_tokens"))
"""What a cohort counts and its tenants count again."""
_counted_twice = itemgetter(*map(TenantUse._fields.index, _COUNTED_TWICE))


def window_problem(window: WorkerWindow) -> str | None:
    """The first field of a window that cannot be true, by name, else None."""
    return next(_problems(window), None)


def _problems(window: WorkerWindow) -> Iterator[str]:
    numbers = {
        "started_at": window.started_at,
        "ended_at": window.ended_at,
        "busy_s": window.busy_s,
        "plan_age_s": window.plan_age_s,
        "seconds": window.seconds,
        "energy_uj": window.energy_uj or 0,
        "idle_energy_uj": window.idle_energy_uj or 0,
    }
    for name, value in numbers.items():
        if not _is_amount(value):
            yield f"bad {name}"
    if window.ended_at > LATEST:
        yield "bad ended_at"
    # Whole numbers are split to the last unit, and a float among them would be lost with its window on the way in.
    for name, count in (("energy_uj", window.energy_uj), ("idle_energy_uj", window.idle_energy_uj)):
        if isinstance(count, float):
            yield f"bad {name}: not a whole number"
    if window.idle_energy_uj is not None and (window.energy_uj is None or window.idle_energy_uj > window.energy_uj):
        yield "bad idle_energy_uj: more than energy_uj"
    if len({cohort.cohort for cohort in window.cohorts}) != len(window.cohorts):
        yield "bad cohorts"
    yield from chain.from_iterable(map(_cohort_problems, window.cohorts))
    if not all(map(_is_step_time, window.latency)):
        yield "bad step times"
    if not all(map(_is_profile, window.profile)):
        yield "bad profile"
    if window.columns is not None and not _is_of(window.columns, window.cohorts):
        yield "bad columns"


def _cohort_problems(cohort: CohortWindow) -> Iterator[str]:
    counts = (
        cohort.prefill_positions,
        cohort.draft_positions,
        cohort.first_tokens,
        cohort.requests_started,
        cohort.requests_finished,
        cohort.requests_failed,
    )
    total = sum(counts)  # a float where one of them is
    if min(counts) < 0 or not total < MOST or isinstance(total, float):  # so that NaN, too, is refused
        yield "bad positions, first_tokens or requests"
    if not all(_is_amount(h.sum_s) and len(h.counts) == _BINS for h in (cohort.ttft, cohort.tpot)):
        yield "bad latency"
    for cell in (*cohort.cells, *cohort.shadow):
        yield from _cell_problems(cell)
    if any(min(c.depth, c.rank) < 0 or not 0 <= c.kept <= c.tried for c in cohort.ranks):
        yield "bad ranks"
    if cohort.tenants:
        yield from _tenant_problems(cohort)


def _tenant_problems(cohort: CohortWindow) -> Iterator[str]:
    # On the controller's thread, for every cohort of every report: comparisons of whole tuples.
    tenants = cohort.tenants
    for use in tenants:
        if min(use[1:]) < 0 or not use.input_tokens < MOST:
            yield "bad tenants: a count is negative or too large"
        if isinstance(sum(use[1:]), float):
            yield "bad tenants: a count is not a whole number"
        if not use.accepted_tokens <= use.draft_tokens <= use.verify_positions:
            yield "bad tenants: more tokens kept than drafted, or drafted than verified"
    sums: tuple[Any, ...] = tenants[0]
    if len(tenants) > 1:
        names, *counts = zip(*tenants, strict=True)
        sums = (None, *map(sum, counts))
        if len(set(names)) != len(names):
            yield "bad tenants: one is there twice"
    ours, theirs = _counted_twice(cohort.as_one_tenant), _counted_twice(sums)
    if ours != theirs:
        differ = next(name for name, a, b in zip(_COUNTED_TWICE, ours, theirs, strict=True) if a != b)
        yield f"bad tenants: their {differ} are not the cohort's"


def _cell_problems(cell: StepCell) -> Iterator[str]:
    if not _is_amount(cell.step_seconds):
        yield "bad step_seconds"
    if not 0 <= cell.load_bucket < len(LOAD_BUCKETS) or not 0 <= cell.k < MOST:
        yield "bad cell"
    for drafted, accepted, _, steps in cell.counts:
        if (
            not 0 <= steps < MOST
            or not 0 <= accepted <= drafted < MOST
            or isinstance(steps + drafted + accepted, float)
        ):
            yield "bad counts"
    if len(cell.overlap) != len(cell.overlap_steps) or not all(map(_is_amount, (*cell.overlap, *cell.overlap_steps))):
        yield "bad overlap"
    if not all(0.0 <= chance <= 1.0 for chance in cell.propensity):  # false of NaN too
        yield "bad propensity"


def _is_step_time(cell: LatencyCell) -> bool:
    return all(map(_is_amount, cell))


def _is_profile(cell: ProfileCell) -> bool:
    return all(map(_is_amount, cell)) and cell.sequences >= 1 and cell.k <= MAX_K


def _is_of(columns: StepColumns, cohorts: tuple[CohortWindow, ...]) -> bool:
    """Whether the columns name the same cohorts, and hold no number that the cells could not have."""
    is_same = columns.cohorts == tuple(cohort.cohort for cohort in cohorts)
    sums = (columns.step_seconds, columns.overlap, columns.overlap_steps, columns.steps, columns.tpot_sum_s)
    is_sum = all(bool((np.isfinite(values) & (values >= 0)).all()) for values in sums)
    is_chance = bool(((columns.propensity >= 0) & (columns.propensity <= 1)).all())
    return is_same and is_sum and is_chance and _points_somewhere(columns)


def _points_somewhere(columns: StepColumns) -> bool:
    """Whether every row is of a cell, every cell of a cohort and a load, and no count is more than it is of."""
    rows = (columns.drafted, columns.accepted, columns.ended, columns.steps)
    cells = (columns.load_bucket, columns.k, columns.step_seconds, columns.is_shadow)
    wide = (columns.overlap, columns.overlap_steps, columns.propensity)
    return (
        all(len(values) == len(columns.row_cell) for values in rows)
        and all(len(values) == len(columns.cohort) for values in (*cells, *wide))
        and columns.tpot.shape == (len(columns.cohorts), _BINS)
        and _is_below(columns.row_cell, len(columns.cohort))
        and _is_below(columns.cohort, len(columns.cohorts))
        and _is_below(columns.load_bucket, len(LOAD_BUCKETS))
        and bool((columns.k >= 0).all() and (columns.accepted >= 0).all())
        and bool((columns.accepted <= columns.drafted).all())
    )


def _is_below(indices: Ints, end: int) -> bool:
    return bool(((indices >= 0) & (indices < end)).all())


def _is_amount(value: float) -> bool:
    return isfinite(value) and 0 <= value < MOST
