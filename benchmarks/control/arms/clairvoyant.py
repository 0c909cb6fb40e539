"""Knows every cohort's true acceptance and every step's true cost, now: the ceiling for all arms."""

from __future__ import annotations

import numpy as np

from benchmarks.control.cost import Ints
from benchmarks.control.recorded import RecordedWorld
from benchmarks.control.world import World

CHUNK = 1000


def plan(world: World) -> Ints:
    """K by [step, cohort]: of all ways to give each cohort a rung, the one with most expected tokens per second.

    By enumeration, so jointly optimal whatever stairs the cost has. It knows the law, not the draws: the probabilities
    of a step, but not which tokens will be kept.
    """
    if isinstance(world, RecordedWorld):
        return world.best_by_step()
    profile, cost = world.profile, world.cost
    rungs = np.meshgrid(*(np.array(profile.ladder),) * len(profile.cohorts), indexing="ij")
    ways = np.stack([axis.ravel() for axis in rungs], axis=1)
    deeper = [(ways >= j).astype(np.float64).T for j in range(1, profile.depth + 1)]
    expected = world.expected_tokens
    chosen = np.empty_like(world.sequences)
    for start in range(0, world.steps, CHUNK):
        at = slice(start, min(start + CHUNK, world.steps))
        # float64 products of small integers are exact, and BLAS has no integers.
        n = world.sequences[at].astype(np.float64)
        seconds = cost.verify_s[(n @ (ways + 1.0).T).astype(np.int64)]
        seconds += cost.kv_s_per_sequence * n.sum(axis=1, keepdims=True)
        for j, mask in enumerate(deeper):
            drafting = (n @ mask).astype(np.int64)
            seconds += cost.draft_s[drafting]
            if j == 0:
                seconds += cost.on_s * (drafting > 0)
        tokens = np.zeros_like(seconds)
        for cohort in range(ways.shape[1]):
            tokens += n[:, cohort, None] * expected[at, cohort][:, ways[:, cohort]]
        chosen[at] = ways[np.argmax(tokens / seconds, axis=1)]
    return chosen
