"""What cannot be true of a reported window: it is refused before anything is computed from it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from math import isfinite
from operator import attrgetter, itemgetter
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
_counts = attrgetter(
    "prefill_positions", "draft_positions", "first_tokens", "requests_started", "requests_finished", "requests_failed"
)
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
    columns = window.columns
    is_sound = columns is not None and _is_of(columns, window.cohorts)
    # Arrays are looked at in a fraction of the time that it takes to walk the cells, which then need but be the same.
    is_same = columns is not None and is_sound and _says_the_same(columns, window.cohorts)
    counted = None if columns is None or not is_same else _counted(columns, window.cohorts)
    walked = not _are_ordinary(window.cohorts)
    for index, cohort in enumerate(window.cohorts):
        if walked:
            yield from _cohort_problems(cohort)
        for cell in (*cohort.cells, *cohort.shadow) if cohort.shadow else cohort.cells:
            if not is_same or cell.overlap or cell.overlap_steps or cell.propensity or cell.tree or cell.ranks:
                yield from _cell_problems(cell)
        if cohort.tenants:
            yield from _tenant_problems(cohort, cohort.as_one_tenant if counted is None else counted[index])
    if not all(map(_is_step_time, window.latency)):
        yield "bad step times"
    if not all(map(_is_profile, window.profile)):
        yield "bad profile"
    if columns is not None and not is_sound:
        yield "bad columns"
    elif columns is not None and not is_same:
        yield "bad columns: not those of the cells"


def _are_ordinary(cohorts: tuple[CohortWindow, ...]) -> bool:
    """Whether `_cohort_problems` finds nothing in any of them, in one look at all numbers; where unsure, False."""
    counts = list(chain.from_iterable(map(_counts, cohorts)))
    times = [histogram for cohort in cohorts for histogram in (cohort.ttft, cohort.tpot)]
    seconds = [histogram.sum_s for histogram in times]
    total = sum(counts)
    return (
        not isinstance(total, float)
        and total < MOST
        and min(counts, default=0) >= 0
        and all(map(isfinite, seconds))
        and min(seconds, default=0) >= 0
        and sum(seconds) < MOST
        and all(len(histogram.counts) == _BINS for histogram in times)
    )


def _cohort_problems(cohort: CohortWindow) -> Iterator[str]:
    counts = _counts(cohort)
    total = sum(counts)  # a float where one of them is
    if min(counts) < 0 or not total < MOST or isinstance(total, float):  # so that NaN, too, is refused
        yield "bad positions, first_tokens or requests"
    if not all(_is_amount(h.sum_s) and len(h.counts) == _BINS for h in (cohort.ttft, cohort.tpot)):
        yield "bad latency"


def _tenant_problems(cohort: CohortWindow, counted: TenantUse) -> Iterator[str]:
    """counted: what the cohort's own counts come to."""
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
    ours, theirs = _counted_twice(counted), _counted_twice(sums)
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
    if not _is_tree(cell.tree):
        yield "bad tree"
    if any(min(c.depth, c.rank) < 0 or not 0 <= c.kept <= c.tried < MOST for c in cell.ranks):
        yield "bad ranks"


def _is_step_time(cell: LatencyCell) -> bool:
    return all(map(_is_amount, cell))


def _is_profile(cell: ProfileCell) -> bool:
    *amounts, tree = cell
    return all(map(_is_amount, amounts)) and cell.sequences >= 1 and cell.k <= MAX_K and _is_tree(tree)


def _is_tree(parents: tuple[int, ...]) -> bool:
    """Whether every parent is a node before its child, or the root; not more nodes than any K pays for."""
    return len(parents) <= MAX_K and all(
        isinstance(parent, int) and -1 <= parent < node for node, parent in enumerate(parents)
    )


def _is_of(columns: StepColumns, cohorts: tuple[CohortWindow, ...]) -> bool:
    """Whether the columns name the same cohorts, and hold no number that the cells could not have."""
    is_same = columns.cohorts == tuple(cohort.cohort for cohort in cohorts)
    sums = (columns.step_seconds, columns.overlap, columns.overlap_steps, columns.steps, columns.tpot_sum_s)
    is_sum = all(bool(((values >= 0) & (values < MOST)).all()) for values in sums)  # false of NaN too
    is_chance = bool(((columns.propensity >= 0) & (columns.propensity <= 1)).all())
    return is_same and is_sum and is_chance and _points_somewhere(columns)


def _points_somewhere(columns: StepColumns) -> bool:
    """Whether every row is of a cell, every cell of a cohort and a load, and no count is more than it is of."""
    rows = (columns.drafted, columns.accepted, columns.ended, columns.steps)
    cells = (columns.load_bucket, columns.k, columns.step_seconds, columns.is_shadow, columns.is_tree)
    wide = (columns.overlap, columns.overlap_steps, columns.propensity)
    return (
        all(len(values) == len(columns.row_cell) for values in rows)
        and all(len(values) == len(columns.cohort) for values in (*cells, *wide))
        and columns.tpot.shape == (len(columns.cohorts), _BINS)
        and _is_below(columns.row_cell, len(columns.cohort))
        and _is_below(columns.cohort, len(columns.cohorts))
        and _is_below(columns.load_bucket, len(LOAD_BUCKETS))
        and bool((columns.k >= 0).all() and (columns.accepted >= 0).all())
        and bool((columns.accepted <= columns.drafted).all() and (columns.drafted < MOST).all())
    )


def _says_the_same(columns: StepColumns, cohorts: tuple[CohortWindow, ...]) -> bool:
    """Whether the cells' counts and seconds are what the columns say, and whole where they must be."""
    cells = [cell for cohort in cohorts for group in (cohort.cells, cohort.shadow) for cell in group]
    rows = [count for cell in cells for count in cell.counts]
    in_order = bool((np.diff(columns.row_cell) >= 0).all())
    lengths = np.bincount(columns.row_cell, minlength=len(columns.cohort)).tolist()
    said = zip(*(a.tolist() for a in (columns.drafted, columns.accepted, columns.ended, columns.steps)), strict=True)
    owned = (
        np.bincount(columns.cohort, ~columns.is_shadow, len(cohorts)),
        np.bincount(columns.cohort, minlength=len(cohorts)),
    )
    own, every = (a.tolist() for a in owned)
    return (
        in_order
        and bool((np.diff(columns.cohort) >= 0).all())
        and own == [len(cohort.cells) for cohort in cohorts]
        and every == [len(cohort.cells) + len(cohort.shadow) for cohort in cohorts]
        and lengths == [len(cell.counts) for cell in cells]
        and columns.load_bucket.tolist() == [cell.load_bucket for cell in cells]
        and columns.k.tolist() == [cell.k for cell in cells]
        and columns.is_tree.tolist() == [bool(cell.tree) for cell in cells]
        and columns.step_seconds.tolist() == [cell.step_seconds for cell in cells]
        and list(said) == rows
        and not isinstance(sum(chain.from_iterable(rows)), float)
    )


def _counted(columns: StepColumns, cohorts: tuple[CohortWindow, ...]) -> list[TenantUse] | None:
    """`as_one_tenant` of every cohort, from columns that say what its cells say; None where no tenants are known."""
    if not any(cohort.tenants for cohort in cohorts):
        return None
    real = ~columns.is_shadow[columns.row_cell]
    owner, steps = columns.cohort[columns.row_cell][real], columns.steps[real]

    def total(per_step: Ints) -> list[int]:
        sums = np.zeros(len(cohorts), np.int64)
        np.add.at(sums, owner, steps * per_step)
        return sums.tolist()

    drafted, accepted = columns.drafted[real], columns.accepted[real]
    extra = (~columns.ended[real]).astype(np.int64)
    of_cohorts = zip(cohorts, total(drafted + 1), total(drafted), total(accepted), total(accepted + extra), strict=True)
    return [
        TenantUse(
            None,
            cohort.prefill_positions,
            verified,
            cohort.draft_positions,
            draft_tokens,
            accepted_tokens,
            0,
            cohort.first_tokens + emitted,
            cohort.requests_finished + cohort.requests_failed,
        )
        for cohort, verified, draft_tokens, accepted_tokens, emitted in of_cohorts
    ]


def _is_below(indices: Ints, end: int) -> bool:
    return bool(((indices >= 0) & (indices < end)).all())


def _is_amount(value: float) -> bool:
    return isfinite(value) and 0 <= value < MOST
