"""One K for all cohorts at all times: none, or the best one in hindsight."""

from __future__ import annotations

import numpy as np

from benchmarks.control.cost import Ints
from benchmarks.control.score import rates
from benchmarks.control.world import World


def best_k(world: World) -> int:
    """The rung that would have given most goodput over this trace."""
    goodputs = [rates(world, _everywhere(world, k)).mean() for k in world.profile.ladder]
    return world.profile.ladder[int(np.argmax(goodputs))]


def best(world: World) -> Ints:
    return _everywhere(world, best_k(world))


def none(world: World) -> Ints:
    return _everywhere(world, 0)


def _everywhere(world: World, k: int) -> Ints:
    return np.full_like(world.sequences, k)
