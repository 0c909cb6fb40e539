"""Runs a savings experiment on a controller: begins windows in time, ends them, and gives up pairs that were spoilt.

All calls come from one thread, as the Controller's do.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple, Protocol

from controlplane.controller import Controller
from controlplane.decision.plan import PlanArm
from controlplane.experiment import SETTLE_S, ExperimentError, Run, RunState, Spec, Window, run_json, window_json

JOIN_S = 5.0
"""A pair is begun so late at most, or where ticks are rarer, so late as still leaves SETTLE_S of the part that is
dropped; a controller that was not there when it began (it was restarted) waits for the next."""

SET_BACK_S = 0.5
"""A clock that is slewed, or a plan that was issued within this tick, is none that was set back."""

GONE_S = 60.0
"""What was not heard of for so long is gone."""


class ExperimentLog(Protocol):
    """Where runs and windows are kept. Calls must return at once."""

    def experiment(self, run: Run) -> None: ...

    def experiment_windows(self, windows: Sequence[Window]) -> None: ...


class Circumstances(NamedTuple):
    """What must not change within a pair."""

    policy_revision: str
    kill_switch: str
    rollout: str | None
    blocked_drafters: tuple[str, ...]

    @property
    def obstacle(self) -> str | None:
        """Why no pair can be measured now."""
        if self.kill_switch != "off":
            return f"the kill switch was at {self.kill_switch}"
        return None if self.rollout is None else f"policy {self.rollout} was tried on a part of the system"

    def changed(self, since: Circumstances) -> str | None:
        """Why a pair that began under `since` is spoilt."""
        if self.obstacle is not None:
            return self.obstacle
        if self.policy_revision != since.policy_revision:
            return f"the policy was changed from {since.policy_revision} to {self.policy_revision}"
        return None if self == since else "the canary stopped a drafter, or let one go on"


@dataclass(frozen=True, slots=True)
class UnderWay:
    """The pair that is being measured."""

    windows: tuple[Window, Window]
    since: Circumstances

    @property
    def ends_at(self) -> float:
        return max(window.ended_at for window in self.windows)


@dataclass(slots=True)
class ExperimentControl:
    """One experiment at a time. run: the one on record that is to go on; done: its complete pairs.

    looked_at: the number of its last pair on record; that one, complete or given up, is not begun again.
    """

    controller: Controller
    log: ExperimentLog
    clock: Callable[[], float] = time.time
    run: Run | None = None
    done: int = 0
    looked_at: int = -1
    _pair: UnderWay | None = field(default=None)
    _advanced_at: float = field(default=math.inf)

    def start(self, asked: dict[str, Any], by: str, why: str, seed: int | None = None) -> Run:
        """Begin one: what was asked, and the policy's section for the rest. Raises ExperimentError."""
        if self.run is not None and self.run.state == "running":
            raise ExperimentError(f"experiment {self.run.id} is running; stop it first: kadence experiment stop")
        spec = Spec.of(self.controller.policy.experiment, asked)
        now = self.clock()
        if spec.unit == "replica" and not any(at > now - GONE_S for at in self.controller.held_out.values()):
            raise ExperimentError(
                "unit: no replica without a drafter was heard of lately; give the policy `experiment: {unit: replica, "
                "...}` or set holdout_replicas, and start the system again"
            )
        name = f"exp-{datetime.fromtimestamp(now, UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
        seed = secrets.randbelow(2**31) if seed is None else seed
        self.run, self.done, self._pair, self.looked_at = Run(name, spec, seed, now, by, why), 0, None, -1
        self.log.experiment(self.run)
        return self.run

    def stop(self, by: str, why: str) -> Run:
        """End it; the pair under way is given up. Raises ExperimentError where none is running."""
        if self.run is None or self.run.state != "running":
            raise ExperimentError("no experiment is running; start one: kadence experiment start")
        now = self.clock()
        self._give_up(f"stopped by {by}: {why}")
        self._set_arm("", now)
        self._end("stopped", f"stopped by {by}: {why}", now)
        return self.run

    def advance(self, now: float) -> None:
        """Begin and end what is due at `now` (unix seconds); to be called before each of the controller's ticks."""
        run = self.run
        if run is None or run.state != "running":
            return
        around = self._around()
        if self._pair is not None:
            spoilt = around.changed(self._pair.since) or self._absence(now)
            if spoilt is not None:
                self._give_up(spoilt)
            elif now >= self._pair.ends_at:
                self._complete()
        if self.done >= run.spec.pairs:
            self._set_arm("", now)
            self._end("finished", f"all {run.spec.pairs} pairs are complete", now)
            return
        if self._pair is None:
            self._begin(run, around, now)
        self._advanced_at = now
        self._set_arm(self._arm_at(now), now)

    def _absence(self, now: float) -> str | None:
        """Why nobody can tell what ruled since the last tick: the plan expired, or its times are no longer true."""
        plan = self.controller.plan
        if now >= plan.expires_at:
            return f"there was no tick for {now - plan.issued_at:.0f} s, and the plan expired"
        back = plan.issued_at - now
        return f"the clock was set back by {back:.0f} s" if back > SET_BACK_S else None

    def status(self) -> dict[str, Any] | None:
        """The running experiment, or the last one; None without one."""
        if self.run is None:
            return None
        pair = None if self._pair is None else [window_json(window) for window in self._pair.windows]
        return {**run_json(self.run), "done": self.done, "arm": self.controller.arm, "under_way": pair}

    def _begin(self, run: Run, around: Circumstances, now: float) -> None:
        number = run.pair_at(now)
        if number <= self.looked_at:
            return
        windows = run.windows(number)
        late = now - windows[0].started_at
        if late < 0:
            return
        self.looked_at = number
        was_there = self._advanced_at < windows[0].started_at
        if late > max(JOIN_S, run.spec.dropped_s - SETTLE_S if was_there else 0.0):
            return  # nobody was there when it began: there is nothing to measure
        first, second = (replace(window, policy_revision=around.policy_revision) for window in windows)
        self._pair = UnderWay((first, second), around)
        self.log.experiment_windows(self._pair.windows)
        if around.obstacle is not None:
            self._give_up(around.obstacle)

    def _complete(self) -> None:
        if self._pair is not None:
            self.done += 1
            self.log.experiment_windows([replace(window, state="done") for window in self._pair.windows])
            self._pair = None

    def _give_up(self, reason: str) -> None:
        if self._pair is not None:
            windows = [replace(window, state="aborted", reason=reason) for window in self._pair.windows]
            self.log.experiment_windows(windows)
            self._pair = None

    def _end(self, state: RunState, sentence: str, now: float) -> None:
        if self.run is not None:
            self.run = self.run.ended(state, sentence, now)
            self.log.experiment(self.run)

    def _arm_at(self, now: float) -> PlanArm:
        if self._pair is None or self.run is None or self.run.spec.unit == "replica":
            return ""
        first, second = self._pair.windows
        return first.arm if now < first.ended_at else second.arm

    def _set_arm(self, arm: PlanArm, now: float) -> None:
        if arm == self.controller.arm:
            return
        run, pair = self.run, self._pair
        name = "experiment" if run is None else f"experiment {run.id}"
        of = "between its pairs" if pair is None else f"{arm} window of pair {pair.windows[0].pair}"
        self.controller.set_arm(arm, sentence=f"{name}: {of}", now=now)

    def _around(self) -> Circumstances:
        plan, rollout = self.controller.plan, self.controller.rollout
        tried = None if rollout is None or rollout.is_over else rollout.candidate.revision
        return Circumstances(self.controller.policy.revision, plan.kill_switch, tried, plan.blocked_drafters)
