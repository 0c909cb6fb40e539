"""What K each sequence uses in this step by the newest plan: a look-up, worked out where a batch is new; no waiting.

A plan is alive for its own length, counted by a monotonic clock from when it was issued. How long ago that was at
receipt, two witnesses say: the wall clock, and the plan held before (the two were issued so far apart, and received so
far apart). A clock that was set wrong convinces only one of them, so a plan is refused only where both find it too
old, or both find it from the future.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, fields
from typing import Literal

import structlog

from controlplane.decision.batch_choice import BatchChoice, Counts, Padded, unpadded
from controlplane.decision.plan import Plan
from controlplane.policy import Policy
from controlplane.telemetry import LOAD_BUCKETS, MAX_K
from workers.sequence import Sequence

log = structlog.get_logger(__name__)

Refusal = Literal["epoch", "version", "future", "stale"]
"""Why a plan is not obeyed: of a controller that lost, older than the one in force, issued ahead of our clock by more
than its own length, or over before it came."""


def unplanned(policy: Policy) -> Plan:
    """The plan of a worker that has not heard from a controller: expired from the start, so fallback K rules."""
    fallback = {c.name: c.speculation.fallback for c in policy.cohorts}
    return Plan(0, 0, issued_at=0.0, expires_at=0.0, k={}, fallback=fallback, policy_revision=policy.revision)


def constant_plan(k: int, cohorts: Iterable[str]) -> Plan:
    """A plan that never expires and gives every cohort the same K: for benchmarks and tests."""
    names = list(cohorts)
    return Plan(0, 0, 0.0, math.inf, {c: (k,) * len(LOAD_BUCKETS) for c in names}, dict.fromkeys(names, k), "constant")


MOST_BATCHES = 512
"""Batches whose K is remembered; a plan that never changes meets ever new ones."""


class _KByBatch(dict[tuple[str, ...], tuple[int, ...]]):
    """The cohort of each sequence of a batch -> the K of each: worked out the first time, afterwards a dictionary's."""

    def __init__(self, k_of: Callable[[Mapping[str, int]], Mapping[str, int]]) -> None:
        super().__init__()
        self._k_of = k_of
        self._by_counts: dict[Counts, Mapping[str, int]] = {}

    def __missing__(self, cohorts: tuple[str, ...]) -> tuple[int, ...]:
        if len(self) >= MOST_BATCHES:
            self.clear()
            self._by_counts.clear()
        # The order in which sequences stand beside each other says nothing.
        counts = Counter(cohorts)
        key = frozenset(counts.items())
        by_cohort = self._by_counts.get(key)
        if by_cohort is None:
            by_cohort = self._by_counts[key] = self._k_of(counts)
        k = self[cohorts] = tuple([by_cohort[cohort] for cohort in cohorts])
        return k


@dataclass(frozen=True, slots=True)
class _Held:
    """A plan and what it comes to here. issued_at, ends_at: seconds of our monotonic clock."""

    plan: Plan
    issued_at: float
    ends_at: float
    alive: _KByBatch
    expired: _KByBatch


class PlanClient:
    """Holds the current plan. `accept` may be called from any thread; readers see one reference swapped.

    clock: unix seconds. worker: this worker's name, for a plan that is staged on some workers. drafter: its
    name@version. monotonic: seconds of a clock that is never set. padded: how the engine pads a step.
    """

    def __init__(
        self,
        plan: Plan,
        clock: Callable[[], float],
        worker: str = "",
        drafter: str = "",
        monotonic: Callable[[], float] = time.monotonic,
        padded: Padded = unpadded,
    ) -> None:
        self._clock, self._monotonic = clock, monotonic
        self._worker, self._drafter, self._padded = worker, drafter, padded
        self._standing: dict[Counts, dict[str, int]] = {}
        self._is_blocked_here = False
        self._accepting = threading.Lock()
        self._refused: Counter[str] = Counter()
        self._clamped = 0
        self._held = self._hold(plan, clock() - plan.issued_at)

    @property
    def plan(self) -> Plan:
        """The plan in force."""
        return self._held.plan

    @plan.setter
    def plan(self, plan: Plan) -> None:
        """Put `plan` in force whatever is held, as tests and benchmarks do."""
        self._held = self._hold(plan, self._clock() - plan.issued_at)

    @property
    def refused(self) -> Mapping[str, int]:
        """Plans that were not obeyed, by Refusal."""
        return dict(self._refused)

    @property
    def clamped(self) -> int:
        """Entries of plans that were no K at all (below 0, or deeper than any ladder) and were brought into range."""
        return self._clamped

    def accept(self, plan: Plan) -> None:
        """Take a newer plan, or a renewal of the one in force; anything else is refused and counted."""
        # A broadcast and a report's answer may arrive together: the older one must not come last.
        with self._accepting:
            held = self._held.plan
            if plan == held:
                return  # a controller whose ticks fail still answers: that does not make its plan younger
            refusal, age = self._judge(plan)
            if refusal is None:
                if self._drafter in plan.blocked_drafters:
                    self._is_blocked_here = False  # the controller knows; from here on its word counts
                self._held = self._hold(plan, age)
                return
            if refusal == "version" and self._drafter in plan.blocked_drafters:
                self._is_blocked_here = False  # it knew, and was told otherwise before its answer came
            self._refused[refusal] += 1
        if self._refused[refusal] == 1:
            log.warning("plan refused", reason=refusal, epoch=plan.epoch, version=plan.version, in_force=held.version)

    def block_drafter(self) -> None:
        """K = 0 from the next step on, until a plan has blocked this drafter, too, and a later one does no more."""
        with self._accepting:
            self._is_blocked_here = True

    @property
    def is_drafter_off(self) -> bool:
        """Whether the drafter must not run at all: kill switch at zero, wrong text, or a window without speculation."""
        plan = self._held.plan
        is_blocked = self._is_blocked_here or self._drafter in plan.blocked_drafters
        return is_blocked or plan.kill_switch == "zero" or (plan.arm == "control" and not self.is_expired)

    def _judge(self, plan: Plan) -> tuple[Refusal | None, float]:
        """Why not to obey `plan`, if so, and its age in seconds."""
        held, length = self._held, plan.expires_at - plan.issued_at
        if plan.epoch < held.plan.epoch:
            return "epoch", 0.0
        if plan.epoch == held.plan.epoch and plan.version < held.plan.version:
            return "version", 0.0
        # Older by less than a plan lasts, it was overtaken; by more, the controller's clock was set back.
        if plan.version == held.plan.version and -length < plan.issued_at - held.plan.issued_at < 0.0:
            return "version", 0.0
        ages = [self._clock() - plan.issued_at]
        if held.plan.issued_at:
            ages.append(self._monotonic() - held.issued_at - (plan.issued_at - held.plan.issued_at))
        believable = [age for age in ages if -length <= age < length]
        if believable:
            return None, min(believable)
        return ("stale" if max(ages) >= length else "future"), 0.0

    def _hold(self, plan: Plan, age: float) -> _Held:
        issued_at = self._monotonic() - max(age, 0.0)
        ends_at = issued_at + plan.expires_at - plan.issued_at
        held: _Held | None = getattr(self, "_held", None)
        if held is not None and _says(held.plan) == _says(plan):
            return _Held(plan, issued_at, ends_at, held.alive, held.expired)

        # What it comes to is worked out at the first step that it is obeyed in: not here, where other threads wait.
        choice = BatchChoice(plan, self._worker, self._drafter, self._padded, self._standing)

        def by_batch(at: float) -> _KByBatch:
            return _KByBatch(lambda counts: {c: self._legal(k) for c, k in choice.k_for(counts, at).items()})

        return _Held(plan, issued_at, ends_at, by_batch(-math.inf), by_batch(math.inf))

    def _legal(self, k: int) -> int:
        """K within what any ladder may have, whatever a plan says."""
        legal = min(max(int(k), 0), MAX_K)
        self._clamped += legal != k
        return legal

    @property
    def is_expired(self) -> bool:
        return self._monotonic() >= self._held.ends_at

    @property
    def age_s(self) -> float:
        """Seconds since the plan was issued; 0 for a worker that never had one."""
        held = self._held
        return self._monotonic() - held.issued_at if held.plan.issued_at else 0.0

    def k_for(self, decoding: Seq[Sequence]) -> tuple[int, ...]:
        """The plan's K for each sequence of this step, by its cohort and those that run beside it."""
        if self._is_blocked_here:
            return (0,) * len(decoding)
        held = self._held  # read once: all sequences of a step obey one plan
        chosen = held.expired if self._monotonic() >= held.ends_at else held.alive
        return chosen[tuple([s.request.cohort for s in decoding])]


_ISSUE = {"epoch", "version", "issued_at", "expires_at"}
_CONTENT = tuple(field.name for field in fields(Plan) if field.name not in _ISSUE)


def _says(plan: Plan) -> tuple[object, ...]:
    """All that a K may depend on."""
    return tuple(getattr(plan, name) for name in _CONTENT)
