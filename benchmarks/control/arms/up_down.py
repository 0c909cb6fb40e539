"""Two deeper after a request kept all, one shallower after it did not: the rule of assisted generation in transformers.

The published rule is for one request. Here a cohort moves by the mean of its sequences' moves, as it would if each of
them kept the rule and the cohort ran at their mean. It starts at 5, never goes below 1, and never asks what a step
costs (adaptive control survey: "heuristic" schedule of Hugging Face).
"""

from __future__ import annotations

import numpy as np

from benchmarks.control.arms.base import Setting
from benchmarks.control.cost import Ints
from benchmarks.control.world import StepOutcome

START, UP, DOWN = 5.0, 2.0, 1.0


class UpDown:
    def __init__(self, setting: Setting) -> None:
        self._ladder = np.array(setting.profile.ladder)
        self._k = np.full(len(setting.profile.cohorts), min(START, float(setting.profile.depth)))

    def choose(self, t: int, running: Ints) -> Ints:
        return self._ladder[np.searchsorted(self._ladder, self._k, side="right") - 1]

    def observe(self, t: int, outcome: StepOutcome) -> None:
        n = outcome.sequences
        kept_all = outcome.counts[np.arange(len(n)), outcome.k] / np.maximum(n, 1)
        move = np.where(n > 0, UP * kept_all - DOWN * (1.0 - kept_all), 0.0)
        self._k = np.clip(self._k + move, max(self._ladder[1], 1), self._ladder[-1])
