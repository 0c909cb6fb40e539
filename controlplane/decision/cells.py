"""What the guard remembers of every (cohort, load bucket), and of the one probe that a cohort may have: arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from controlplane.decision.observation import BUCKETS, Evidence, Flags, Floats, Ints

FIRST_PROBE, MAX_BACKOFF = 0.25, 2
"""Share of probe_every before the first probe after a fall (one odd text may have caused it), and while probes fail."""

NEVER = -np.inf


@dataclass(frozen=True, slots=True, eq=False)
class CellStates:
    """[cohorts, loads] each; times in unix seconds, NEVER where it did not happen.

    k: where the cell rests, -1 where it was never decided. changed_at: last change of k. waits_from: since when it
    waits for its next probe. decided_at: last tick in which it was looked at. failures: probes in a row that did not
    pass or last, and raises that were taken back. passed_at: last probe that passed. before_k: K before the last raise,
    -1 where there is none to take back. tokens, tokens_squared, steps: measured since the last change, emitted per
    sequence and step; speed_time: the same steps' seconds, over those of a step at K = 0 beside as many sequences.
    ran_s: seconds that the cell was active since its last probe. reverted_at: when a raise was last taken back.
    before_speed, before_sd: what that came to before the last raise, and its standard deviation; NaN for unknown.
    """

    k: Ints
    changed_at: Floats
    waits_from: Floats
    decided_at: Floats
    failures: Ints
    passed_at: Floats
    before_k: Ints
    tokens: Floats
    tokens_squared: Floats
    steps: Floats
    speed_time: Floats
    before_speed: Floats
    before_sd: Floats
    ran_s: Floats
    reverted_at: Floats

    @classmethod
    def fresh(cls, cohorts: int) -> CellStates:
        shape = (cohorts, BUCKETS)
        never, none, zero = np.full(shape, NEVER), np.full(shape, -1), np.zeros(shape)
        unknown = np.full(shape, np.nan)
        return cls(
            k=none, changed_at=never, waits_from=never, decided_at=never, failures=np.zeros(shape, np.int64),
            passed_at=never, before_k=none, tokens=zero, tokens_squared=zero, steps=zero, speed_time=zero,
            before_speed=unknown, before_sd=unknown, ran_s=zero,
            reverted_at=never,
        )  # fmt: skip

    def wait_s(self, probe_every_s: Floats) -> Floats:
        """[cohorts, loads]: seconds from waits_from to the next probe."""
        backoff = np.minimum(2.0 ** np.minimum(self.failures - 1, 8), MAX_BACKOFF)
        waits: Floats = probe_every_s[:, None] * np.where(self.failures > 0, backoff, FIRST_PROBE)
        return waits

    def speed(self) -> tuple[Floats, Floats]:
        """Measured tokens per time of a K = 0 step, and its standard deviation."""
        mean = self.tokens / np.maximum(self.steps, 1.0)
        variance = np.maximum(self.tokens_squared / np.maximum(self.steps, 1.0) - mean**2, 0.0)
        speed = self.tokens / np.maximum(self.speed_time, 1e-12)
        relative = np.sqrt(variance / np.maximum(self.steps, 1.0)) / np.maximum(mean, 1e-12)
        return speed, speed * relative


@dataclass(frozen=True, slots=True, eq=False)
class Probes:
    """A rung under trial at one load, one a cohort at most; [cohorts] each.

    k: the rung, -1 for none. load_bucket: where. since: unix seconds. is_active: a probe that ran out of time keeps its
    evidence, which may go on arriving, for the next. evidence: [cohorts, MAX_K], of steps at that rung.
    """

    k: Ints
    load_bucket: Ints
    since: Floats
    is_active: Flags
    evidence: Evidence

    @classmethod
    def none(cls, cohorts: int) -> Probes:
        return cls(
            np.full(cohorts, -1),
            np.zeros(cohorts, np.int64),
            np.full(cohorts, NEVER),
            np.zeros(cohorts, np.bool_),
            Evidence.nothing(cohorts),
        )

    def planned(self, k: Ints) -> Ints:
        """`k` [cohorts, loads] with the rungs of active probes in their places."""
        active = np.flatnonzero(self.is_active)
        if not len(active):
            return k
        out = k.copy()
        out[active, self.load_bucket[active]] = self.k[active]
        return out

    def without(self, cohorts: Ints | Flags) -> Probes:
        """With the probes of some cohorts gone, evidence too."""
        k, is_active = self.k.copy(), self.is_active.copy()
        k[cohorts], is_active[cohorts] = -1, False
        arrays = []
        for a in (self.evidence.planned, self.evidence.drafted, self.evidence.reached, self.evidence.examined,
                  self.evidence.accepted):  # fmt: skip
            changed = a.copy()
            changed[cohorts] = 0.0
            arrays.append(changed)
        return Probes(k, self.load_bucket, self.since, is_active, Evidence(*arrays))
