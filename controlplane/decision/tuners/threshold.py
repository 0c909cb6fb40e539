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
from itertools import pairwise

from controlplane.decision.estimate import ENOUGH, Estimate, Hazard
from controlplane.decision.tuners.base import Wish
from controlplane.policy import Speculation


@dataclass(frozen=True, slots=True)
class _Judged:
    """A rung's evidence. position: the one that decides. is_known: the last position has evidence of its own."""

    position: int
    hazard: Hazard
    is_known: bool


def wish(estimate: Estimate, speculation: Speculation, k: int) -> Wish:
    """The rung for this evidence when the present one is `k`."""
    floor, ladder = speculation.acceptance_floor, speculation.ladder
    best, best_by, is_well = ladder[0], None, True
    for below, rung in pairwise((0, *(r for r in ladder if r > 0))):
        judged = _judge(estimate, below, rung)
        mean, sd, examined = judged.hazard
        is_bad = examined >= ENOUGH and mean + sd < floor
        if is_bad or (judged.is_known and rung > k and mean - sd < floor):
            if rung == ladder[0]:  # there is nothing below it to go to
                return _because(rung, judged, floor)
            return _stopped(best, best_by, judged, k, floor, is_well)
        if rung > k and not judged.is_known:
            explored = rung if is_well else best
            return _because(explored, best_by, floor, is_unexplored=is_well)
        best, best_by, is_well = rung, judged, judged.is_known and mean - sd >= floor
    return _because(best, best_by, floor)


def _judge(estimate: Estimate, below: int, rung: int) -> _Judged:
    """The last position; while it lacks evidence, all positions of the rung beyond the one below it, together."""
    last = estimate.at(rung - 1)
    if last.examined >= ENOUGH:
        return _Judged(rung - 1, last, True)
    return _Judged(below, estimate.over(below, rung), False)


def _stopped(best: int, best_by: _Judged | None, failed: _Judged, k: int, floor: float, is_well: bool) -> Wish:
    """The walk ended at a rung that fails: below `k` that is the reason to go down, above it the reason to stay."""
    if best < k:
        return _because(best, failed, floor)
    shown = _because(best, best_by or failed, floor)
    if best > k:
        return shown
    return Wish(best, shown.position, shown.accepted, shown.examined, shown.strength, is_blocked=is_well)


def _because(k: int, judged: _Judged | None, floor: float, *, is_unexplored: bool = False) -> Wish:
    if judged is None:
        return Wish(k, is_unexplored=is_unexplored)
    mean, _, examined = judged.hazard
    strength = float("inf") if is_unexplored or floor <= 0.0 else abs(mean - floor) / floor
    return Wish(k, judged.position, mean, examined, strength, is_unexplored)
