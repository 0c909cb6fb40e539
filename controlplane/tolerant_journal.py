"""The journal as the controller uses it: control goes on without its memory, and a count says so."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from controlplane.alerts import Alert
from controlplane.decision.decide import Decision
from controlplane.decision.plan import Plan
from controlplane.policy import Policy
from controlplane.rollout import Rollout
from controlplane.telemetry import Report

log = logging.getLogger(__name__)


class Journal(Protocol):
    """Where the controller's doings are kept. Calls must return at once: an implementation spools and writes later."""

    def record(self, reports: Sequence[Report], decisions: Sequence[Decision], plan: Plan, now: float) -> None: ...

    def policy_applied(self, policy: Policy, by: str, why: str, now: float) -> None: ...

    def rollout_changed(self, rollout: Rollout) -> None: ...

    def told(self, kind: str, value: dict[str, Any], *, epoch: int, at: float) -> None: ...

    def alert(self, alert: Alert, decisions: Sequence[Decision]) -> None: ...


class TolerantJournal:
    """A Journal whose calls never raise. failures: times that one did; what it was given then is lost."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.failures = 0

    def record(self, reports: Sequence[Report], decisions: Sequence[Decision], plan: Plan, now: float) -> None:
        self._try(lambda: self._journal.record(reports, decisions, plan, now))

    def policy_applied(self, policy: Policy, by: str, why: str, now: float) -> None:
        self._try(lambda: self._journal.policy_applied(policy, by, why, now))

    def rollout_changed(self, rollout: Rollout) -> None:
        self._try(lambda: self._journal.rollout_changed(rollout))

    def told(self, kind: str, value: dict[str, Any], *, epoch: int, at: float) -> None:
        self._try(lambda: self._journal.told(kind, value, epoch=epoch, at=at))

    def alert(self, alert: Alert, decisions: Sequence[Decision]) -> None:
        self._try(lambda: self._journal.alert(alert, decisions))

    def _try(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception:
            self.failures += 1
            log.exception("the journal failed; control goes on")
