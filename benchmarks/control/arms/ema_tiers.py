"""Moves along tiers of K by an average of accepted tokens; which K a tier has depends on the batch size alone.

After the defaults that a version of SGLang's adaptive speculation publishes: exponential average with weight 0.2, moved
every 5 steps after a warm-up of 10; tiers {1: 1 3 5 7, 8: 0 1 3, 32: 0 1, 64: 0}; down where the average falls to a
quarter below the next lower tier, up where it comes within half a token of the present one. At K = 0 the average stands
still and the next move tries the smallest positive tier. It never asks what a step costs. Cohorts have averages of
their own, which the published rule does not give them. A tier that the ladder lacks becomes the rung below it.
"""

from __future__ import annotations

import numpy as np

from benchmarks.control.arms.base import Setting, rung_index
from benchmarks.control.cost import Ints
from benchmarks.control.world import StepOutcome

TIERS = {1: (1, 3, 5, 7), 8: (0, 1, 3), 32: (0, 1), 64: (0,)}
WEIGHT, EVERY, WARM_UP = 0.2, 5, 10
DOWN_HYSTERESIS, UP_MARGIN = -0.25, 0.5


class EmaTiers:
    def __init__(self, setting: Setting) -> None:
        ladder = setting.profile.ladder
        self._tiers = {
            size: tuple(sorted({ladder[rung_index(ladder, k)] for k in tiers})) for size, tiers in TIERS.items()
        }
        cohorts = len(setting.profile.cohorts)
        self._k = [self._tiers[1][0]] * cohorts
        self._average: list[float | None] = [None] * cohorts

    def choose(self, t: int, running: Ints) -> Ints:
        tiers = self._tiers[max(size for size in TIERS if size <= max(int(running.sum()), 1))]
        is_move_due = t >= WARM_UP and t % EVERY == 0
        for cohort, k in enumerate(self._k):
            at = rung_index(tiers, k)
            average = self._average[cohort]
            if is_move_due and tiers[at] == 0:
                at = min(at + 1, len(tiers) - 1)
            elif is_move_due and average is not None:
                if at > 0 and average <= tiers[at - 1] + DOWN_HYSTERESIS:
                    at -= 1
                elif at + 1 < len(tiers) and average > tiers[at] - UP_MARGIN:
                    at += 1
            self._k[cohort] = tiers[at]
        return np.array(self._k)

    def observe(self, t: int, outcome: StepOutcome) -> None:
        accepted = outcome.counts @ np.arange(outcome.counts.shape[1])
        for cohort, (n, k) in enumerate(zip(outcome.sequences.tolist(), outcome.k.tolist(), strict=True)):
            if n and k:
                seen, before = float(accepted[cohort]) / n, self._average[cohort]
                self._average[cohort] = seen if before is None else before + WEIGHT * (seen - before)
