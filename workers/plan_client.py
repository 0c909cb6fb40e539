"""What K each sequence uses in this step: a look-up in the newest plan, no waiting."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq

from controlplane.decision.plan import Plan
from controlplane.policy import Policy
from controlplane.telemetry import LOAD_BUCKETS
from workers.sequence import Sequence


def unplanned(policy: Policy) -> Plan:
    """The plan of a worker that has not heard from a controller: expired from the start, so fallback K rules."""
    fallback = {c.name: c.speculation.fallback for c in policy.cohorts}
    return Plan(0, 0, issued_at=0.0, expires_at=0.0, k={}, fallback=fallback, policy_revision=policy.revision)


def constant_plan(k: int, cohorts: Iterable[str]) -> Plan:
    """A plan that never expires and gives every cohort the same K: for benchmarks and tests."""
    names = list(cohorts)
    return Plan(0, 0, 0.0, math.inf, {c: (k,) * len(LOAD_BUCKETS) for c in names}, dict.fromkeys(names, k), "constant")


class PlanClient:
    """Holds the current plan. `accept` may be called from any thread; readers see one reference swapped."""

    def __init__(self, plan: Plan, clock: Callable[[], float]) -> None:
        self.plan = plan
        self._clock = clock
        self._accepting = threading.Lock()

    def accept(self, plan: Plan) -> None:
        """Take a newer plan; an older epoch (a controller that lost) or an older version is ignored."""
        # A broadcast and a report's answer may arrive together: the older one must not come last.
        with self._accepting:
            if (plan.epoch, plan.version) >= (self.plan.epoch, self.plan.version):
                self.plan = plan

    @property
    def is_expired(self) -> bool:
        return self.plan.is_expired(self._clock())

    @property
    def age_s(self) -> float:
        """Seconds since the plan was issued; 0 for a worker that never had one."""
        return max(0.0, self._clock() - self.plan.issued_at) if self.plan.issued_at else 0.0

    def k_for(self, decoding: Seq[Sequence]) -> tuple[int, ...]:
        """The plan's K for each sequence of this step, by its cohort and how many run beside it."""
        plan, now, running = self.plan, self._clock(), len(decoding)
        return tuple(plan.k_for(s.request.cohort, running, now) for s in decoding)
