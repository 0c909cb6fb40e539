"""A bandit on measured tokens per second: one K for the whole batch, learnt apart for each load bucket.

UCB with discounting (Garivier and Moulines 2011): mean + width x sqrt(ln(total) / count), both discounted with every
step in the bucket. A reward is tokens per second and sequence over the highest discounted mean in its bucket. It knows
no cost table and does not see that rungs share their first positions.
"""

from __future__ import annotations

import math

import numpy as np

from benchmarks.control.arms.base import Setting
from benchmarks.control.cost import Ints
from benchmarks.control.world import StepOutcome
from controlplane.telemetry import LOAD_BUCKETS, load_bucket

KEPT, WIDTH = 0.997, 0.05


class ThroughputUcb:
    def __init__(self, setting: Setting) -> None:
        self._ladder = setting.profile.ladder
        shape = (len(LOAD_BUCKETS), len(self._ladder))
        self._count, self._reward = np.zeros(shape), np.zeros(shape)
        self._bucket = self._rung = 0

    def choose(self, t: int, running: Ints) -> Ints:
        self._bucket = load_bucket(int(running.sum()))
        count, reward = self._count[self._bucket], self._reward[self._bucket]
        if count.min() < 1e-3:
            self._rung = int(np.argmin(count))
        else:
            mean = reward / count
            width = WIDTH * np.sqrt(math.log(1.0 + count.sum()) / count)
            self._rung = int(np.argmax(mean / mean.max() + width))
        return np.full(len(running), self._ladder[self._rung])

    def observe(self, t: int, outcome: StepOutcome) -> None:
        running = int(outcome.sequences.sum())
        tokens = running + int((outcome.counts @ np.arange(outcome.counts.shape[1])).sum())
        count, reward = self._count[self._bucket], self._reward[self._bucket]
        count *= KEPT
        reward *= KEPT
        count[self._rung] += 1.0
        reward[self._rung] += tokens / (outcome.seconds * running)
