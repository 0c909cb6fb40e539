"""What an arm's choices were worth on a trace.

The score of a choice is its *expected* goodput: tokens that the law of the step expects over the noiseless time of the
step. Choices were made from noisy, drawn outcomes; judging them by expectation takes only the luck of the draw out of
the comparison. Load runs by the clock, whatever K is, so every step of the trace stands for the same stretch of time,
and the goodput of a trace is the mean over its steps of tokens per second. (Total tokens over total seconds would let
an arm gain by hurrying through the steps of low load; it is reported beside, from drawn tokens and measured seconds.)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.control.cost import Floats, Ints
from benchmarks.control.world import World
from controlplane.telemetry import LOAD_BUCKETS

MIN_CELL_SHARE = 0.02
"""A (load bucket, cohort) cell with a smaller share of the trace's steps is left out: nobody could have learnt it."""

MID_CELL_SHARE, LARGE_CELL_SHARE = 0.05, 0.1
"""Cells at least as large are also looked at by themselves: how soon evidence was there matters less in them."""

BUCKETS = len(LOAD_BUCKETS)


@dataclass(frozen=True, slots=True)
class Score:
    """One arm on one trace; tokens/s, and percent.

    percent_of_clairvoyant: goodput over that of the clairvoyant arm. gain_over_best_fixed_percent: over that of the
    best single K of the trace. drawn_percent_of_clairvoyant: total drawn tokens over total measured seconds, likewise.
    worst_cell_percent: what the arm's K brought in the worst cell beside the best fixed K of the trace (`cells`).
    worst_mid_cell_percent, worst_large_cell_percent: the same of cells with a twentieth and a tenth of the steps.
    worst_own_gap_percent, mean_own_gap_percent: the same beside each cell's own best fixed K; the mean is by steps.
    changes_per_step: how often a running cohort's K changed.
    """

    goodput: float
    percent_of_clairvoyant: float
    gain_over_best_fixed_percent: float
    drawn_percent_of_clairvoyant: float
    worst_cell_percent: float
    worst_mid_cell_percent: float
    worst_large_cell_percent: float
    worst_own_gap_percent: float
    mean_own_gap_percent: float
    changes_per_step: float


def rates(world: World, k: Ints) -> Floats:
    """[step] expected tokens per second with these K, [step, cohort]."""
    return by_cohort(world, k).sum(axis=1)


def by_cohort(world: World, k: Ints) -> Floats:
    """[step, cohort] expected tokens of a cohort per second of the step."""
    tokens = world.sequences * np.take_along_axis(world.expected_tokens, k[:, :, None], axis=2)[:, :, 0]
    return tokens / world.step_seconds(k)[:, None]


def drawn_goodput(world: World, k: Ints) -> float:
    """All drawn tokens over all measured seconds."""
    lengths = np.minimum(np.arange(world.counts.shape[-1]), k[:, :, None])
    tokens = world.sequences.sum() + (world.counts * lengths).sum()
    return float(tokens / world.drawn_seconds(k).sum())


@dataclass(frozen=True, slots=True)
class Cells:
    """An arm beside every fixed K in each cell, [load bucket, cohort(, rung)]; NaN where a cell has too few steps.

    steps: in the cell. percent: what the arm's K brought over the rung's. The rung is put in place of the arm's K for
    that cohort in that bucket alone, all else as the arm had it; the batch's tokens per second that are gained or lost
    are counted as a share of the cohort's own. So nothing has to be said about who pays for a step that all share: with
    time split by positions, a cohort that rightly drafts beside one that rightly does not would seem slower for it.
    """

    steps: Ints
    percent: Floats

    def against(self, rung: int) -> Floats:
        """[bucket, cohort] percent over one rung, by index."""
        return self.percent[:, :, rung]

    def against_own_best(self) -> Floats:
        """[bucket, cohort] percent over the rung that is best in the cell: at most 0 where the arm kept one rung."""
        return self.percent.min(axis=2)


def cells(world: World, k: Ints) -> Cells:
    """`k` beside every rung in every cell."""
    ladder, cohorts = world.profile.ladder, len(world.profile.cohorts)
    bucket = np.searchsorted(np.array(LOAD_BUCKETS), world.sequences.sum(axis=1))
    ours = rates(world, k)
    steps = np.zeros((BUCKETS, cohorts), dtype=np.int64)
    percent = np.full((BUCKETS, cohorts, len(ladder)), np.nan)
    for cohort in range(cohorts):
        runs = world.sequences[:, cohort] > 0
        steps[:, cohort] = np.bincount(bucket[runs], minlength=BUCKETS)
        is_counted = steps[:, cohort] >= MIN_CELL_SHARE * world.steps
        for rung, fixed_k in enumerate(ladder):
            swapped = k.copy()
            swapped[:, cohort] = fixed_k
            theirs = by_cohort(world, swapped)
            gained = np.bincount(bucket[runs], (ours - theirs.sum(axis=1))[runs], BUCKETS)
            of = np.bincount(bucket[runs], theirs[runs, cohort], BUCKETS)
            percent[is_counted, cohort, rung] = 100.0 * gained[is_counted] / of[is_counted]
    return Cells(steps, percent)


def score(world: World, k: Ints, clairvoyant: Ints, best_fixed: Ints) -> Score:
    """The choices `k`, [step, cohort], beside those of the clairvoyant arm and of the best fixed K."""
    goodput, ceiling, fixed = (float(rates(world, each).mean()) for each in (k, clairvoyant, best_fixed))
    beside = cells(world, k)
    own, is_counted = beside.against_own_best(), ~np.isnan(beside.percent[:, :, 0])
    worst = beside.against(world.profile.ladder.index(int(best_fixed[0, 0])))
    return Score(
        goodput=goodput,
        percent_of_clairvoyant=100.0 * goodput / ceiling,
        gain_over_best_fixed_percent=100.0 * (goodput / fixed - 1.0),
        drawn_percent_of_clairvoyant=100.0 * drawn_goodput(world, k) / drawn_goodput(world, clairvoyant),
        worst_cell_percent=float(np.nanmin(worst)),
        worst_mid_cell_percent=_worst_of(worst, beside.steps >= MID_CELL_SHARE * world.steps),
        worst_large_cell_percent=_worst_of(worst, beside.steps >= LARGE_CELL_SHARE * world.steps),
        worst_own_gap_percent=float(np.nanmin(own)),
        mean_own_gap_percent=float(np.average(own[is_counted], weights=beside.steps[is_counted])),
        changes_per_step=changes(world.sequences, k) / world.steps,
    )


def _worst_of(percent: Floats, which: NDArray[np.bool_]) -> float:
    """The least of them; NaN where there is none."""
    return float(percent[which].min()) if which.any() else float("nan")


def changes(sequences: Ints, k: Ints) -> int:
    """How often the K of a running cohort was another than when it last ran, over all cohorts; [step, cohort]."""
    return sum(int(np.count_nonzero(np.diff(k[sequences[:, c] > 0, c]))) for c in range(k.shape[1]))
