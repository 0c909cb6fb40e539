"""The journal again through the production controller: the same ticks in, and the decisions must be those on record.

What goes in is what the journal kept: each tick's time and windows, the policies with the time at which they were put
in force, and the kill switch. Exact from a controller's start on, because what it believes begins there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from controlplane.alerts import Alert
from controlplane.controller import Controller
from controlplane.decision.decide import Decision, Rates
from controlplane.decision.plan import KillSwitch, Plan, PlanArm
from controlplane.policy import Policy, parse_policy
from controlplane.rollout import Rollout, StageOrder, Unit
from controlplane.store.policies import RolloutEntry
from controlplane.store.queries import DecisionRow
from controlplane.store.recorded import AppliedPolicy, RecordedEvent, RecordedTick
from controlplane.telemetry import Report

BY_PERSON = ("kill_switch", "policy_applied")
"""Reasons whose sentence says who ordered it, which a tick does not keep (of an aborted rollout neither)."""

APART = ("canary",)
"""Reasons that belong to no tick: a drafter is blocked beside the plan's K, which stays as it was decided."""


class ReplayError(ValueError):
    """The journal cannot be replayed; the message is one line that says why."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A decision that came out otherwise. stored, replayed: None where that one was not made at all."""

    at: float
    cohort: str
    load_bucket: int
    policy_revision: str
    stored: DecisionRow | None
    replayed: DecisionRow | None

    @property
    def sentence(self) -> str:
        """What differs, for a person."""
        if self.stored is None or self.replayed is None:
            return "is not on record" if self.stored is None else "is on record, and was not made again"
        return "; ".join(
            f"{name} {getattr(self.stored, name)!r} on record, {getattr(self.replayed, name)!r} again"
            for name in DecisionRow.__dataclass_fields__
            if getattr(self.stored, name) != getattr(self.replayed, name)
        )


class KeptDecisions:
    """A journal that keeps the decisions and nothing else."""

    def __init__(self) -> None:
        self.decisions: list[Decision] = []

    def record(self, reports: Sequence[Report], decisions: Sequence[Decision], plan: Plan, now: float) -> None:
        self.decisions += decisions

    def policy_applied(self, policy: Policy, by: str, why: str, now: float) -> None:
        pass

    def rollout_changed(self, rollout: Rollout) -> None:
        pass

    def told(self, kind: str, value: dict[str, Any], *, epoch: int, at: float) -> None:
        pass

    def alert(self, alert: Alert, decisions: Sequence[Decision]) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Orders:
    """What was ordered from outside while the ticks went on, by the time of the tick or between two.

    policies, rollouts: all on record. events: of one controller.
    """

    policies: Sequence[AppliedPolicy] = ()
    rollouts: Sequence[RolloutEntry] = ()
    events: Sequence[RecordedEvent] = ()


class Replay:
    """One controller's life again. Raises ReplayError where the first tick on record is not its start."""

    def __init__(self, first: RecordedTick, orders: Orders) -> None:
        promoted = {rollout.ended_at for rollout in orders.rollouts if rollout.stage == "promoted"}
        # A promotion is on record as an apply, too, but it was the tick that made it.
        policies = {policy.at: policy for policy in orders.policies if policy.at not in promoted}
        if first.at not in policies:
            raise ReplayError(
                f"the beginning of the controller {first.epoch} is no longer on record, and its decisions depend on it"
            )
        self._policies = policies
        self._staged = {rollout.started_at: rollout for rollout in orders.rollouts}
        self._aborted = {rollout.ended_at for rollout in orders.rollouts if rollout.stage == "aborted"}
        self._rates = [event for event in orders.events if event.kind == "rates"]
        self._arms = {event.at: event for event in orders.events if event.kind == "experiment"}
        self._resumed = {event.at: event for event in orders.events if event.kind == "resume"}
        self._journal = KeptDecisions()
        self.controller = Controller(
            parsed(policies[first.at]), self._journal, epoch=first.epoch, first_version=first.plan_version
        )
        self._kill_switch = "off"

    def step(self, tick: RecordedTick) -> list[Decision]:
        """One tick, or one order, again; the decisions that would be journalled for it."""
        applied, self._journal.decisions = self._policies.get(tick.at), []
        while self._rates and self._rates[0].at < tick.at:
            self.controller.set_rates(Rates.told(self._rates.pop(0).value))
        if tick.at in self._staged:
            self._stage(self._staged[tick.at])
        elif tick.at in self._resumed:
            resumed = self._resumed[tick.at]
            k = {name: tuple(by_load) for name, by_load in resumed.value["k"].items()}
            self.controller.resume(k, resumed.windows, tick.at)
        elif tick.at in self._arms:
            told = self._arms[tick.at].value
            self.controller.set_arm(cast("PlanArm", told["arm"]), sentence=told["sentence"], now=tick.at)
        elif applied is not None:
            self.controller.apply_policy(parsed(applied), by=applied.by, why=applied.why, now=tick.at)
        elif tick.kill_switch != self._kill_switch:
            self._kill_switch = tick.kill_switch
            mode = cast("KillSwitch", tick.kill_switch)
            self.controller.set_kill_switch(mode, by="the journal", why="replayed", now=tick.at)
        elif tick.at in self._aborted:
            self.controller.abort_rollout(by="the journal", why="replayed", now=tick.at)
        else:
            for window in tick.windows:
                self.controller.observe(Report(window))
            self.controller.tick(tick.at)
        return self._journal.decisions

    def _stage(self, rollout: RolloutEntry) -> None:
        order = StageOrder(rollout.share, cast("Unit", rollout.unit), rollout.min_windows, rollout.max_s)
        policy = parse_policy(rollout.text, source=f"revision {rollout.revision}")
        self.controller.apply_policy(
            policy, by=rollout.started_by, why=rollout.why, now=rollout.started_at, rollout=order
        )


def replay(ticks: Iterable[RecordedTick], orders: Orders) -> Iterator[DecisionRow]:
    """The decisions of one controller's ticks, made again. Raises ReplayError."""
    again: Replay | None = None
    for tick in ticks:
        if again is None:
            again = Replay(tick, orders)
        yield from map(as_stored, again.step(tick))


def compare(stored: Iterable[DecisionRow], replayed: Iterable[DecisionRow]) -> list[Difference]:
    """Every decision that is not the same on both sides, by time. What only one side has is a difference, too."""
    ours, theirs = ({_key(row): row for row in rows if row.reason not in APART} for rows in (stored, replayed))
    return [
        Difference(*key, stored=ours.get(key), replayed=theirs.get(key))
        for key in sorted({*ours, *theirs})
        if key not in ours or key not in theirs or _said(ours[key]) != _said(theirs[key])
    ]


def as_stored(decision: Decision) -> DecisionRow:
    """A decision as the ledger gives it back."""
    accept_at = tuple(a if math.isfinite(a) else cast("float", None) for a in decision.accept_at)
    fields = {name: getattr(decision, name) for name in DecisionRow.__dataclass_fields__}
    return DecisionRow(**{**fields, "reason": str(decision.reason), "accept_at": accept_at})


def parsed(applied: AppliedPolicy) -> Policy:
    """The policy that was put in force. Raises PolicyError where this release no longer takes it."""
    return parse_policy(applied.text, source=f"revision {applied.revision}")


def _key(row: DecisionRow) -> tuple[float, str, int, str]:
    return row.at, row.cohort, row.load_bucket, row.policy_revision


def _said(row: DecisionRow) -> DecisionRow:
    return replace(row, sentence="") if row.reason in BY_PERSON else row
