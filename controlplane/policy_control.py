"""Who may change the policy of a running system, and how: an operator over HTTP, the followed file, a rollout.

All calls come from one thread, as the Controller's do.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from controlplane.controller import Controller
from controlplane.decision.plan import Plan
from controlplane.policy import Policy, parse_policy
from controlplane.policy_watch import FILE, PolicyWatch, follow
from controlplane.rollout import StageOrder, rollout_json


@dataclass(frozen=True, slots=True)
class PolicyStatus:
    """Since when the policy in force is, by whom and why; the file that is followed and what is wrong with it.

    applied_at: unix seconds. file: None where none is followed. rollout: the newest one as rollout.rollout_json has it.
    """

    applied_by: str = ""
    why: str = ""
    applied_at: float | None = None
    file: str | None = None
    file_problems: tuple[str, ...] = ()
    rollout: Mapping[str, Any] | None = None

    def as_json(self) -> dict[str, Any]:
        return {
            "applied_by": self.applied_by,
            "why": self.why,
            "applied_at": self.applied_at,
            "file": self.file,
            "file_problems": list(self.file_problems),
            "rollout": dict(self.rollout) if self.rollout is not None else None,
        }


@dataclass(slots=True)
class PolicyControl:
    """Changes a Controller's policy and remembers who did it. watch: None where no file is followed.

    is_in_charge: asked before a changed file is applied; a controller that stepped down is not.
    """

    controller: Controller
    watch: PolicyWatch | None = None
    clock: Callable[[], float] = time.time
    is_in_charge: Callable[[], bool] = lambda: True
    _by: str = ""
    _why: str = ""
    _at: float | None = field(default=None)

    def put(self, policy: Policy, by: str, why: str, stage: StageOrder | None = None) -> Plan:
        """In force at once, or with `stage` on a part first; the plan that says so. Raises RolloutError."""
        now = self.clock()
        self.controller.apply_policy(policy, by=by, why=why, now=now, rollout=stage)
        if stage is None:
            self._by, self._why, self._at = by, why, now
        return self.controller.tick(self.clock())

    def put_text(self, text: str, by: str, why: str, stage: StageOrder | None = None) -> Plan:
        """Likewise, for YAML. Raises PolicyError and RolloutError; the last good policy then stays in force."""
        return self.put(parse_policy(text, source="the posted policy"), by, why, stage)

    def abort_rollout(self, by: str, why: str) -> Plan:
        """All back to the incumbent. Raises RolloutError where no rollout is under way."""
        self.controller.abort_rollout(by=by, why=why, now=self.clock())
        return self.controller.tick(self.clock())

    async def follow_file(self) -> None:
        """Apply the watched file whenever it changes and is good; for ever."""
        if self.watch is not None:
            await follow(self.watch, self._take_file)

    def status(self) -> PolicyStatus:
        rollout, watch = self.controller.rollout, self.watch
        by, why, at = self._by, self._why, self._at
        if rollout is not None and rollout.stage == "promoted" and (rollout.ended_at or 0) >= (at or 0):
            by, why, at = rollout.by, rollout.why, rollout.ended_at
        return PolicyStatus(
            by,
            why,
            at,
            None if watch is None else str(watch.path),
            () if watch is None else watch.problems,
            None if rollout is None else rollout_json(rollout),
        )

    def _take_file(self, policy: Policy) -> None:
        if self.is_in_charge() and policy.revision != self.controller.policy.revision:
            name = Path(self.watch.path).name if self.watch is not None else ""
            self.put(policy, FILE, f"{name} changed")
