"""What a step takes, from a profile's cost shape: exact, without noise, in seconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from benchmarks.control.profile import MAX_SEQUENCES, Profile

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

REPEATS = 5
"""A worker's start measures each size this many times and keeps the median."""


@dataclass(frozen=True)
class Cost:
    """Time of one step by who drafts how deep.

        T = verify[pad(sum of (K + 1))] + kv x context tokens + sum over j = 1..K of draft[pad(sequences with K >= j)]
            + on-cost if anything is drafted

    (the shape of adaptive control over a measured table; draft[m] = draft_share x verify[m], without the kv term).
    """

    profile: Profile

    @cached_property
    def verify_s(self) -> Floats:
        """Seconds of one target forward by positions, [positions]; 0 positions take none."""
        table = self.profile.cost.verify_ms
        sizes, costs = np.array(list(table), float), np.array(list(table.values())) / 1e3
        padded = self._padded(np.arange(MAX_SEQUENCES * (self.profile.depth + 1) + 1)).astype(float)
        times = np.interp(padded, sizes, costs)
        if len(sizes) > 1:
            beyond = np.maximum(padded - sizes[-1], 0.0)
            times = times + beyond * (costs[-1] - costs[-2]) / (sizes[-1] - sizes[-2])
        times[0] = 0.0
        return times

    @cached_property
    def draft_s(self) -> Floats:
        """Seconds of one drafted token each of m sequences, [m]."""
        return self.profile.cost.draft_share * self.verify_s[: MAX_SEQUENCES + 1]

    @property
    def kv_s_per_sequence(self) -> float:
        return self.profile.cost.kv_ms_per_1k_tokens * self.profile.cost.context / 1e6

    @property
    def on_s(self) -> float:
        return self.profile.cost.on_cost_ms / 1e3

    def seconds(self, sequences: Ints, k: Ints) -> Floats:
        """Seconds of steps. sequences, k: by cohort on the last axis, [..., cohorts], broadcast. Returns [...]."""
        positions = (sequences * (k + 1)).sum(axis=-1)
        return self.verify_s[positions] + self.kv_s_per_sequence * sequences.sum(axis=-1) + self.drafting(sequences, k)

    def drafting(self, sequences: Ints, k: Ints) -> Floats:
        """The part of `seconds` that is spent drafting (0 where nobody drafts)."""
        spent: Floats = self.on_s * ((sequences * (k > 0)).sum(axis=-1) > 0)
        for j in range(1, int(k.max(initial=0)) + 1):
            spent = spent + self.draft_s[(sequences * (k >= j)).sum(axis=-1)]
        return spent

    def step(self, sequences: Sequence[int], k: Sequence[int]) -> tuple[float, float]:
        """(seconds, of which drafting) of one step, by cohort: the same as above without arrays, ten times as fast."""
        positions = running = 0
        for n, depth in zip(sequences, k, strict=True):
            positions += n * (depth + 1)
            running += n
        drafting, draft = 0.0, self._draft_list
        for j in range(1, max(k) + 1):
            m = sum(n for n, depth in zip(sequences, k, strict=True) if depth >= j)
            if not m:
                break
            drafting += draft[m] + (self.on_s if j == 1 else 0.0)
        return self._verify_list[positions] + self.kv_s_per_sequence * running + drafting, drafting

    @cached_property
    def uniform_s(self) -> Floats:
        """Seconds of a step in which all of n sequences draft the same K, [n, rung of the ladder]."""
        n = np.arange(MAX_SEQUENCES + 1)[:, None, None]
        return self.seconds(n, np.array(self.profile.ladder)[None, :, None])

    def measured(self, n: int, k: int, generator: np.random.Generator) -> tuple[float, float]:
        """(seconds, of which drafting) as a worker measures them at its start: the median of a few noisy steps."""
        seconds, drafting = self.step((n,), (k,))
        noise = float(np.median(np.exp(generator.normal(0.0, self.profile.timing_noise, REPEATS))))
        return seconds * noise, drafting * noise

    @cached_property
    def _verify_list(self) -> list[float]:
        return [float(s) for s in self.verify_s]

    @cached_property
    def _draft_list(self) -> list[float]:
        return [float(s) for s in self.draft_s]

    def padded(self, sequences: int, deepest: Ints, positions: Ints) -> Ints:
        """As batch_choice.Padded: a worker knows its own."""
        return self._padded(positions)

    def _padded(self, positions: Ints) -> Ints:
        sizes = np.array(self.profile.cost.padding, dtype=np.int64)
        if not len(sizes):
            return positions
        gap = int(sizes[-1] - sizes[-2]) if len(sizes) > 1 else int(sizes[-1])
        beyond = sizes[-1] + -(-(positions - sizes[-1]) // gap) * gap
        within = sizes[np.minimum(np.searchsorted(sizes, positions), len(sizes) - 1)]
        return np.where(positions > sizes[-1], beyond, np.where(positions > 0, within, 0))
