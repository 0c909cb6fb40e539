"""The journal: the controller records without waiting, one thread writes.

Items wait in a bounded spool. A database that is locked, away or not migrated yet is tried again, with pauses that
grow to RETRY_MAX_S; when the spool is full the oldest items are dropped and counted as lost. An item that the
database refuses for its content is dropped alone, with a line in the log, so that it cannot hold up the others.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, InterfaceError, InternalError, OperationalError, ProgrammingError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from controlplane.alerts import Alert
from controlplane.decision.plan import Plan
from controlplane.experiment import Run, Window
from controlplane.store.engine import one_line, writing
from controlplane.store.rows import ControlTold, PolicyApplied, Ticked, WindowSeen
from controlplane.store.write import Item, write_items
from controlplane.telemetry import Report

if TYPE_CHECKING:
    from controlplane.decision.decide import Decision
    from controlplane.policy import Policy
    from controlplane.rollout import Rollout

log = logging.getLogger(__name__)

BATCH = 2000
"""Items in one transaction, at most: what many windows add to one row of a rollup is then written once."""
RETRY_MIN_S = 0.1
RETRY_MAX_S = 5.0

UNAVAILABLE = (OperationalError, InterfaceError, InternalError, ProgrammingError, PoolTimeoutError)
"""Errors of the database's state, not of a row's content: worth another try."""


class SqlJournal:
    """Write-behind journal on one database; the engine stays the caller's. Safe to use from any thread.

    bound: items that may wait (a window, request, decision, plan version and policy is one each), beside the batch of
    2000 at most that is being written.
    """

    def __init__(self, engine: sa.Engine, *, bound: int = 50_000) -> None:
        if bound < 1:
            raise ValueError(f"bound must be at least 1, not {bound}")
        self._engine = writing(engine)
        self._bound = bound
        self._changed = threading.Condition()
        self._spool: deque[Item] = deque()
        self._in_flight = 0  # items at the spool's head that are being written: these cannot be dropped
        self._renewal: Plan | None = None
        self._known_plan: tuple[int, int] | None = None
        self._recorded = 0
        self._written = 0
        self._lost = 0
        self._closing_at: float | None = None
        self._thread = threading.Thread(target=self._run, name="kadence-journal", daemon=True)
        self._thread.start()

    @property
    def spooled(self) -> int:
        """Items recorded and not yet in the database."""
        with self._changed:
            return len(self._spool)

    @property
    def lost(self) -> int:
        """Items that will never be in the database."""
        with self._changed:
            return self._lost

    def record(self, reports: Sequence[Report], decisions: Sequence[Decision], plan: Plan, now: float) -> None:
        """What one tick saw, decided and published. Never waits for the database and never raises for it."""
        items: list[Item] = [Ticked(plan, now)]
        for report in reports:
            items.append(WindowSeen(report.window, now))
            items.extend(report.requests)
            items.extend(report.canary)
        items.extend(decisions)
        with self._changed:
            if (plan.epoch, plan.version) == self._known_plan:
                self._renewal = plan  # only its expiry moved: the latest one is enough
            else:
                self._known_plan = (plan.epoch, plan.version)
                items.append(plan)
            self._add(items)

    def policy_applied(self, policy: Policy, by: str, why: str, now: float) -> None:
        """A policy was put in force at `now` (unix seconds)."""
        with self._changed:
            self._add([PolicyApplied(policy, by, why, now)])

    def told(self, kind: str, value: dict[str, Any], *, epoch: int, at: float) -> None:
        """The controller was told something that its later decisions depend on (models.ControlEvent)."""
        with self._changed:
            self._add([ControlTold(epoch, at, kind, value)])

    def rollout_changed(self, rollout: Rollout) -> None:
        """A staged rollout began or ended."""
        with self._changed:
            self._add([rollout])

    def experiment(self, run: Run) -> None:
        """A savings experiment began or ended."""
        with self._changed:
            self._add([run])

    def experiment_windows(self, windows: Sequence[Window]) -> None:
        """Windows of a savings experiment began, or their pair is done or aborted."""
        with self._changed:
            self._add(list(windows))

    def alert(self, alert: Alert, decisions: Sequence[Decision] = ()) -> None:
        """An alert was raised, seen again or cleared, and what that changed."""
        with self._changed:
            self._add([alert, *decisions])

    def flush(self, timeout: float = 10.0) -> bool:
        """Wait until all that was recorded before this call is written or lost; False after `timeout` seconds."""
        with self._changed:
            target = self._recorded
            return self._changed.wait_for(
                lambda: self._written + self._lost >= target and self._renewal is None, timeout
            )

    def close(self, timeout: float = 10.0) -> None:
        """Write what is left, for `timeout` seconds at most, and stop; what remains then is counted as lost."""
        with self._changed:
            if self._closing_at is None:
                self._closing_at = time.monotonic() + timeout
            self._changed.notify_all()
        self._thread.join(timeout + 1.0)
        with self._changed:
            if left := len(self._spool):
                log.warning("the ledger closed with %d rows not written", left)
                self._lost += left
                self._spool.clear()
                self._changed.notify_all()

    def _add(self, items: Sequence[Item]) -> None:
        self._recorded += len(items)
        if self._closing_at is not None and not self._thread.is_alive():
            self._lost += len(items)
            return
        self._spool.extend(items)
        self._drop_oldest()
        self._changed.notify_all()

    def _drop_oldest(self) -> None:
        # What is being written comes on top of the bound: it may be in the database any moment.
        excess = len(self._spool) - self._in_flight - self._bound
        if excess <= 0:
            return
        self._spool.rotate(-self._in_flight)
        for _ in range(excess):
            self._spool.popleft()
        self._spool.rotate(self._in_flight)
        if not self._lost:
            log.warning("the ledger's spool is full (%d rows): the oldest are dropped", self._bound)
        self._lost += excess

    def _run(self) -> None:
        pause = 0.0
        while True:
            with self._changed:
                if pause:
                    self._changed.wait_for(lambda: self._closing_at is not None, pause)
                else:
                    self._changed.wait_for(lambda: self._spool or self._renewal or self._closing_at is not None)
                if self._closing_at is not None and (
                    not (self._spool or self._renewal) or time.monotonic() >= self._closing_at
                ):
                    return
                batch = list(islice(self._spool, BATCH))
                renewal = self._renewal
                self._in_flight = len(batch)
            refused = self._try(batch, renewal)
            with self._changed:
                self._in_flight = 0
                if refused is None:
                    pause = min(max(2 * pause, RETRY_MIN_S), RETRY_MAX_S)
                    self._drop_oldest()
                    if self._closing_at is not None:  # nothing wakes it any more: pause here
                        self._changed.wait(min(pause, max(self._closing_at - time.monotonic(), 0)))
                else:
                    pause = 0.0
                    if self._renewal is renewal:
                        self._renewal = None
                    for _ in batch:
                        self._spool.popleft()
                    self._written += len(batch) - refused
                    self._lost += refused
                self._changed.notify_all()

    def _try(self, batch: list[Item], renewal: Plan | None) -> int | None:
        """Write the batch; how many of its items were refused for good, or None to try again later."""
        try:
            with self._engine.begin() as connection:
                write_items(connection, [*batch, *([renewal] if renewal else [])])
            return 0
        except UNAVAILABLE as e:
            log.warning("the ledger cannot be written, will try again: %s", one_line(e))
            return None
        except Exception as e:  # a row's content, whatever is wrong with it
            if len(batch) > 1 or (batch and renewal):
                # In halves: the rows that are at fault are found in few transactions.
                half = (len(batch) + 1) // 2
                parts = [self._try(part, None) for part in (batch[:half], batch[half:]) if part]
                return None if None in parts else sum(p for p in parts if p)
            log.error("the ledger refused a %s: %s", type(batch[0] if batch else renewal).__name__, _reason(e))
            return len(batch)


def _reason(error: Exception) -> str:
    return one_line(error) if isinstance(error, DBAPIError) else f"{type(error).__name__}: {error}"
