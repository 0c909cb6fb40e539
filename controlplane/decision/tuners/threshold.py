"""The plain operator rule: the deepest rung whose last position's conditional acceptance is at or over the floor.

Rungs are walked from the smallest and the walk ends at the first that fails. The present rung and those below it are
given up only when they are one standard deviation under the floor, a deeper one is taken only when it is one over:
between the two, noise moves nothing. Seen from outside:

- acceptance over the floor everywhere measured: K climbs into the unknown one rung at a time, up to the top;
- acceptance under the floor at some position: K rests on the rung below it, and only a probe looks there again;
- acceptance under the floor at the first position: K is the smallest rung, 0 where the ladder has it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from controlplane.decision.estimate import ENOUGH, POOLED_WEIGHT
from controlplane.decision.observation import RUNGS, Flags, Floats, Ints
from controlplane.decision.tuners.base import Situation, Wish


@dataclass(frozen=True, slots=True, eq=False)
class _Judged:
    """A rung's evidence, [cohorts] each: the position that decides, and whether it is the rung's last."""

    position: Ints
    mean: Floats
    sd: Floats
    examined: Floats
    is_known: Flags


@dataclass(slots=True, eq=False)
class _Walk:
    """[cohorts, loads] each: how far every cell has come, and what it would say if the walk ended now."""

    is_over: Flags
    best: Ints
    is_well: Flags
    k: Ints
    by: Ints
    """The rung whose evidence is shown; 0 for none."""
    is_unexplored: Flags
    is_blocked: Flags


def wish(situation: Situation) -> Wish:
    """The rungs for this evidence, given where each cell rests."""
    table, k = situation.table, situation.k
    shape = k.shape
    lowest = np.argmax(table.is_rung, axis=1)[:, None]
    floor = table.floor
    no = np.zeros(shape, np.bool_)
    best = np.broadcast_to(lowest, shape).copy()
    walk = _Walk(no.copy(), best, ~no, best.copy(), np.zeros(shape, np.int64), no.copy(), no.copy())
    best_by = np.zeros(shape, np.int64)
    evidence: dict[int, _Judged] = {}
    for rung in range(1, RUNGS):
        is_rung = table.is_rung[:, rung]
        if not is_rung.any():
            continue
        spine = situation.shapes.spine
        judged = evidence[rung] = _judge(situation, spine[np.maximum(table.below[:, rung], 0)], int(spine[rung]))
        here = is_rung[:, None] & ~walk.is_over
        is_bad = (judged.examined >= ENOUGH) & (judged.mean + judged.sd < floor)
        is_doubtful = judged.is_known & (judged.mean - judged.sd < floor)
        fails = here & (is_bad[:, None] | (is_doubtful[:, None] & (rung > k)))
        explores = here & ~fails & (rung > k) & ~judged.is_known[:, None]
        goes_on = here & ~fails & ~explores
        # Nothing lies below the lowest rung to go to: it is wished for, on evidence against it.
        is_stuck = fails & (rung == lowest)
        stays = fails & ~is_stuck & (walk.best == k)
        rises = fails & ~is_stuck & (walk.best > k)
        walk.k = np.where(is_stuck | (explores & walk.is_well), rung, np.where(fails | explores, walk.best, walk.k))
        walk.by = np.where(fails, np.where((stays | rises) & (best_by > 0), best_by, rung), walk.by)
        walk.by = np.where(explores, best_by, walk.by)
        walk.is_blocked |= stays & walk.is_well
        walk.is_unexplored |= explores & walk.is_well
        walk.is_over |= fails | explores
        walk.best = np.where(goes_on, rung, walk.best)
        best_by = np.where(goes_on, rung, best_by)
        is_good = judged.is_known & (judged.mean - judged.sd >= floor)
        walk.is_well = np.where(goes_on, is_good[:, None], walk.is_well)
    walk.k = np.where(walk.is_over, walk.k, walk.best)
    walk.by = np.where(walk.is_over, walk.by, best_by)
    return _shown(walk, evidence, floor)


def _shown(walk: _Walk, evidence: dict[int, _Judged], floor: Floats) -> Wish:
    shape = walk.k.shape
    position, accepted, examined = np.full(shape, -1), np.zeros(shape), np.zeros(shape)
    for rung, judged in evidence.items():
        is_by = walk.by == rung
        position = np.where(is_by, judged.position[:, None], position)
        accepted = np.where(is_by, judged.mean[:, None], accepted)
        examined = np.where(is_by, judged.examined[:, None], examined)
    by_evidence = (walk.by > 0) & ~walk.is_unexplored & (floor[:, None] > 0.0)
    strength = np.abs(accepted - floor[:, None]) / np.maximum(floor[:, None], 1e-12)
    gain = np.where(by_evidence, strength, np.inf)
    return Wish(walk.k, gain, walk.is_unexplored, walk.is_blocked, position, accepted, examined)


def _judge(situation: Situation, below: Ints, rung: int) -> _Judged:
    """The last position; while it lacks evidence, all positions of the rung beyond the one below it, together.

    rung, below: as deep as they draft, which is of a token tree its first path.
    """
    hazards, estimate = situation.hazards, situation.estimate
    last, below = rung - 1, np.minimum(below, rung - 1)
    is_known = hazards.examined[:, last] >= ENOUGH
    cohorts = np.arange(len(below))

    def over(counts: Floats) -> Floats:
        upto = np.concatenate([np.zeros((len(counts), 1)), counts.cumsum(axis=1)], axis=1)
        out: Floats = upto[:, rung] - upto[cohorts, below]
        return out

    examined, accepted = over(estimate.evidence.examined), over(estimate.evidence.accepted)
    worth = examined**2 / np.maximum(over(estimate.squares), 1e-12)
    mean = (accepted + POOLED_WEIGHT * estimate.pooled) / (examined + POOLED_WEIGHT)
    sd = np.sqrt(mean * (1.0 - mean) / ((worth + POOLED_WEIGHT) / estimate.spread + 1.0))
    return _Judged(
        position=np.where(is_known, last, below),
        mean=np.where(is_known, hazards.mean[:, last], mean),
        sd=np.where(is_known, hazards.sd[:, last], sd),
        examined=np.where(is_known, hazards.examined[:, last], examined),
        is_known=is_known,
    )
