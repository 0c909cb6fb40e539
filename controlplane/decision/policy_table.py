"""A policy as arrays over its cohorts: what a tick computes with."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np

from controlplane.decision.observation import RUNGS, Flags, Floats, Ints
from controlplane.policy import CohortPolicy, Policy

FIXED, THRESHOLD, GOODPUT = 0, 1, 2
_TUNERS = {"fixed": FIXED, "threshold": THRESHOLD, "goodput": GOODPUT}


@dataclass(frozen=True, slots=True, eq=False)
class PolicyTable:
    """[cohorts] each, in the policy's order. is_rung: [cohorts, MAX_K + 1] whether K is on the ladder.

    tuner: FIXED, THRESHOLD or GOODPUT. below, above: [cohorts, MAX_K + 1] the nearest rung under and over a K, -1 where
    there is none. tpot_p95_s: NaN where the operator set none.
    """

    cohorts: tuple[CohortPolicy, ...]
    names: tuple[str, ...]
    revision: str
    tuner: Ints
    is_ragged: Flags
    objective: tuple[str, ...]
    is_rung: Flags
    below: Ints
    above: Ints
    start: Ints
    fallback: Ints
    floor: Floats
    tolerance: Floats
    hold_s: Floats
    min_samples: Floats
    probe_every_s: Floats
    tpot_p95_s: Floats

    @property
    def rungs(self) -> int:
        """One more than the deepest rung of any cohort: K beyond it need not be looked at. At least 2: K = 0 and 1."""
        return max(int(np.flatnonzero(self.is_rung.any(axis=0))[-1]), 1) + 1

    def pursuing_cost(self, names: Collection[str]) -> PolicyTable:
        """With cost as the objective of the cohorts of these names."""
        if not names:
            return self
        pairs = zip(self.names, self.objective, strict=True)
        return replace(self, objective=tuple("cost" if name in names else objective for name, objective in pairs))

    @classmethod
    def of(cls, policy: Policy) -> PolicyTable:
        """Of a parsed policy, whose ladders are rising rungs between 0 and MAX_K."""
        cohorts = policy.cohorts
        speculation, guard = [c.speculation for c in cohorts], [c.guard for c in cohorts]
        is_rung = np.zeros((len(cohorts), RUNGS), np.bool_)
        for row, s in zip(is_rung, speculation, strict=True):
            row[list(s.ladder)] = True
        ks = np.arange(RUNGS)
        upto = np.maximum.accumulate(np.where(is_rung, ks, -1), axis=1)
        from_here = np.minimum.accumulate(np.where(is_rung, ks, RUNGS)[:, ::-1], axis=1)[:, ::-1]
        none = np.full((len(cohorts), 1), -1)
        above = np.concatenate([from_here[:, 1:], none], axis=1)
        return cls(
            cohorts=cohorts,
            names=tuple(c.name for c in cohorts),
            revision=policy.revision,
            tuner=np.array([_TUNERS[s.tuner] for s in speculation], np.int64),
            is_ragged=np.array([s.tuner == "goodput" and s.slots == "ragged" for s in speculation], np.bool_),
            objective=tuple(s.objective for s in speculation),
            is_rung=is_rung,
            below=np.concatenate([none, upto[:, :-1]], axis=1),
            above=np.where(above == RUNGS, -1, above),
            start=np.array([s.start for s in speculation], np.int64),
            fallback=np.array([s.fallback for s in speculation], np.int64),
            floor=np.array([s.acceptance_floor for s in speculation]),
            tolerance=np.array([g.tolerance for g in guard]),
            hold_s=np.array([g.hold_s for g in guard]),
            min_samples=np.array([float(g.min_samples) for g in guard]),
            probe_every_s=np.array([g.probe_every_s for g in guard]),
            tpot_p95_s=np.array([np.nan if c.slo.tpot_p95_s is None else c.slo.tpot_p95_s for c in cohorts]),
        )
