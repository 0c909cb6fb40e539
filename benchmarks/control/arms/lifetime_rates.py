"""Most tokens per second by accepted / drafted of each position since the start, and the exact cost table.

The rule of a version of vLLM's dynamic speculative decoding: a position's rate is all it ever accepted over all it ever
drafted, 0 where it drafted nothing; nothing is forgotten or probed, and all requests share one K. It is given the
noiseless cost table, which is more than the published rule has. It starts at the deepest rung.
"""

from __future__ import annotations

import numpy as np

from benchmarks.control.arms.base import Setting
from benchmarks.control.cost import Ints
from benchmarks.control.world import StepOutcome

WARM_UP, EVERY = 20, 10


class LifetimeRates:
    def __init__(self, setting: Setting) -> None:
        self._ladder = np.array(setting.profile.ladder)
        self._uniform_s = setting.cost.uniform_s
        self._positions = np.arange(1, setting.profile.depth + 1)
        self._drafted, self._accepted = np.zeros(len(self._positions)), np.zeros(len(self._positions))
        self._expected = np.ones(len(self._positions) + 1)

    def choose(self, t: int, running: Ints) -> Ints:
        if t < WARM_UP:
            return np.full(len(running), self._ladder[-1])
        if t % EVERY == 0:
            self._expected[1:] = 1.0 + np.cumsum(self._accepted / np.maximum(self._drafted, 1.0))
        per_second = self._expected[self._ladder] / self._uniform_s[int(running.sum())]
        return np.full(len(running), self._ladder[np.argmax(per_second)])

    def observe(self, t: int, outcome: StepOutcome) -> None:
        self._drafted += np.where(self._positions <= outcome.k[:, None], outcome.sequences[:, None], 0).sum(axis=0)
        self._accepted += np.cumsum(outcome.counts.sum(axis=0)[::-1])[::-1][1:]
