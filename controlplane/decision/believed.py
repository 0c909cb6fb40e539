"""What recorded windows make one believe: the control loop's own estimates, formed again from the newest of them.

Nothing is decided here, and nothing is computed otherwise than in a tick: `decide.observe` takes the windows in, tick
by tick, so acceptance is censored at K and fades, step times are corrected by steps, and joules are fitted. Because
evidence fades (half of it within estimate.HALF_LIFE examined drafts), the newest windows are enough.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from controlplane.decision.decide import DecisionState, observe
from controlplane.decision.estimate import Hazards, Outlook
from controlplane.decision.latency import AT_BUCKETS, uniform_seconds
from controlplane.decision.observation import BUCKETS, RUNGS, Floats, Observation
from controlplane.decision.tree_rungs import gained
from controlplane.policy import CohortPolicy, Guard, Match, Policy, Speculation
from controlplane.telemetry import LOAD_BUCKETS, MAX_K, ProfileCell, WorkerWindow

UNKNOWN_REVISION = "unknown"


@dataclass(frozen=True, slots=True, eq=False)
class Believed:
    """State after the last window, and the steps that were seen.

    steps, seconds, emitted: [cohorts, loads, MAX_K + 1] f64, sums over real steps by the K that they were planned with,
    of 1, wall seconds of a sequence and emitted tokens. profile: the step times of a worker's start that the belief
    about latency began with.
    """

    state: DecisionState
    steps: Floats
    seconds: Floats
    emitted: Floats
    profile: tuple[ProfileCell, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return self.state.table.names

    @property
    def hazards(self) -> Hazards:
        return self.state.estimate.hazards()

    @property
    def outlook(self) -> Outlook:
        return self.state.outlook

    def step_seconds(self, outlook: Outlook | None = None) -> Floats | None:
        """[cohorts, loads, MAX_K + 1] seconds of a step in which every sequence drafts this K; None without step times.

        outlook: another one than believed, such as that of a what-if.
        """
        times = self.state.times
        return None if times is None else uniform_seconds(times, (outlook or self.outlook).positions)

    def measured_steps(self) -> Floats:
        """[loads, MAX_K + 1]: discounted steps that were measured at each size; 0 where there are only profiles."""
        times = self.state.times
        return np.zeros((BUCKETS, RUNGS)) if times is None else times.weight[AT_BUCKETS]

    def is_profiled(self, load_bucket: int, k: int) -> bool:
        """Whether a size lies within those that were profiled at a worker's start; beyond, times are led on."""
        loads, ks = {c.sequences for c in self.profile}, {c.k for c in self.profile}
        if not loads:
            return False
        is_inside = min(loads) <= LOAD_BUCKETS[load_bucket] <= max(loads)
        return is_inside and min(ks) <= k <= max(ks)


def believe(
    ticks: Iterable[tuple[float, Sequence[WorkerWindow]]], policy: Policy, profile: Sequence[ProfileCell] = ()
) -> Believed:
    """The belief after these ticks, earliest first: (unix seconds, the windows taken in).

    policy: whose cohorts count, see `covering`. profile: step times of before the first tick, where none comes with it.
    """
    state = DecisionState.start(policy)
    names = state.table.names
    sums = np.zeros((3, len(names), BUCKETS, RUNGS))
    known, is_first = tuple(profile), True
    for at, windows in ticks:
        seen = Observation.of(windows, names)
        known = known or seen.profile
        if is_first and profile and not seen.profile:
            seen = replace(seen, profile=tuple(profile), profiled=seen.setups)
        is_first = False
        state = observe(state, seen, at)
        cells = seen.cells
        real = ~cells.is_shadow
        where = (cells.cohort[real], cells.load_bucket[real], cells.k[real])
        for total, of in zip(sums, (cells.steps, cells.seconds, cells.emitted), strict=True):
            np.add.at(total, where, of[real])
    steps, seconds, emitted = sums
    return Believed(state, steps, seconds, emitted, known)


def covering(policy: Policy | None, cohorts: Iterable[str], deepest: int) -> Policy:
    """`policy` with further cohorts for those that it does not name, so that none of the traffic is left out.

    policy: None where none is on record. deepest: K up to which those cohorts may draft, all rungs to there.
    """
    known = () if policy is None else policy.cohorts
    names = {cohort.name for cohort in known}
    ladder = tuple(range(min(max(deepest, 1), MAX_K) + 1))
    speculation = Speculation("goodput", 0.5, ladder, start=0, fallback=0)
    further = tuple(
        CohortPolicy(name, Match(), speculation, guard=Guard()) for name in sorted(set(cohorts)) if name not in names
    )
    if policy is None:
        return Policy(1, further, None, UNKNOWN_REVISION, "")
    return replace(policy, cohorts=(*known, *further)) if further else policy


def offered(outlook: Outlook, hazards: Hazards) -> Floats:
    """[cohorts, MAX_K]: P(a token is drafted at each position while all before it were kept)."""
    share: Floats = outlook.of_chains.survival / np.maximum(np.cumprod(hazards.mean, axis=1), 1e-300)
    return share


def scaled(outlook: Outlook, hazards: Hazards, by: float) -> Outlook:
    """The outlook were every conditional acceptance `by` times what is believed, and 1 at most.

    How often the drafter has a token at all stays: more tokens kept are not more tokens drafted. Survival is then the
    product of the scaled hazards with the same share of drafts that were offered. A rung that is a token tree brings as
    much more than a chain of as many tokens as it is believed to bring now.
    """
    if outlook.chain is not None:
        chain = scaled(outlook.chain, hazards, by)
        gain = (outlook.emitted - 1.0) / np.maximum(outlook.chain.emitted - 1.0, 1e-12)
        emitted = 1.0 + (chain.emitted - 1.0) * gain
        return replace(outlook, survival=gained(emitted), emitted=emitted, chain=chain)
    # A power of `by` would also scale positions that cannot be kept more often than always.
    kept = np.cumprod(np.minimum(hazards.mean * by, 1.0), axis=1)
    survival = np.minimum(kept * offered(outlook, hazards), outlook.drafted)
    zero = np.zeros((len(survival), 1))
    emitted = 1.0 + np.concatenate([zero, survival.cumsum(axis=1)], axis=1)
    return replace(outlook, survival=survival, emitted=emitted)
