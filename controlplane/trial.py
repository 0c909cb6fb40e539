"""A policy on trial inside a running controller: what those that try it are decided from and told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from controlplane.decision.decide import DecisionState, Observation, Rates, Tick, decide, observe
from controlplane.decision.plan import StagedPlan
from controlplane.policy import Policy
from controlplane.rollout import Rollout, RolloutError, StageOrder, begin, end, judge
from controlplane.rollout import observe as compare
from controlplane.telemetry import WorkerWindow


@dataclass(frozen=True, slots=True)
class Trial:
    """A rollout under way. state: the candidate's, fed by the workers that obey it; None where cohorts try it."""

    rollout: Rollout
    state: DecisionState | None

    @classmethod
    def begin(
        cls, candidate: Policy, incumbent: Policy, order: StageOrder, state: DecisionState,
        *, workers: Mapping[str, float], by: str, why: str, now: float,
    ) -> Trial:  # fmt: skip
        """From what is believed under the incumbent. Raises RolloutError where the candidate cannot be tried."""
        rollout = begin(candidate, incumbent, order, workers=workers, by=by, why=why, now=now)
        return cls(rollout, state.carried(candidate) if order.unit == "replicas" else None)

    @property
    def plan(self) -> StagedPlan | None:
        """What the workers that try the candidate are told; None where none does."""
        if self.state is None or self.rollout.is_over:
            return None
        candidate = self.rollout.candidate
        return StagedPlan(
            workers=self.rollout.member_workers,
            fallback={cohort.name: cohort.speculation.fallback for cohort in candidate.cohorts},
            policy_revision=candidate.revision,
            **self.state.planned(),
        )

    def split(self, windows: Sequence[WorkerWindow]) -> tuple[list[WorkerWindow], list[WorkerWindow]]:
        """The windows of the workers that obey the incumbent, and of those that obey the candidate."""
        members = set(self.rollout.member_workers)
        kept = [window for window in windows if window.id.worker not in members]
        return kept, [window for window in windows if window.id.worker in members]

    def decide(
        self, windows: Sequence[WorkerWindow], now: float, rates: Rates, *, is_stopped: bool
    ) -> tuple[Trial, Tick | None]:
        """Decide for the workers that try it; under a kill switch (is_stopped) only believe what they saw."""
        if self.state is None:
            return self, None
        seen = Observation.of(windows, self.state.table.names)
        if is_stopped:
            return replace(self, state=observe(self.state, seen, now)), None
        tick = decide(self.state, seen, now, rates)
        return replace(self, state=tick.state), tick

    def advance(self, windows: Sequence[WorkerWindow], now: float, *, is_stopped: bool) -> Trial:
        """With a tick's windows compared. Under a kill switch both parts do the same, so that says nothing."""
        seen = self.rollout if is_stopped else compare(self.rollout, windows, now)
        return replace(self, rollout=judge(seen, now))

    def resting(self, now: float) -> Trial:
        """As DecisionState.resting."""
        return replace(self, state=None if self.state is None else self.state.resting(now))

    def aborted(self, by: str, why: str, now: float) -> Trial:
        """Ended by a person. Raises RolloutError where it is over."""
        if self.rollout.is_over:
            raise RolloutError("no policy is being tried")
        return replace(self, rollout=end(self.rollout, "aborted", f"aborted by {by}: {why}", now))
