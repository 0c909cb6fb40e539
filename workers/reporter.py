"""Carries reports to the controller and brings back the plan, on a thread of its own: the engine never waits for it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence

import structlog

from controlplane.decision.plan import Plan
from controlplane.telemetry import Report

log = structlog.get_logger(__name__)

RETRY_S = 1.0
MAX_BATCH = 120


class ControllerUnreachable(Exception):
    """The controller did not answer; the reports stay here and are sent again."""


class Reporter:
    """Sends reports in order, each until it is acknowledged; keeps at most `bound`, then drops the oldest and counts.

    send: blocking; raises ControllerUnreachable, and whatever else it raises counts as that. A report may arrive twice:
    its window id makes that harmless.
    """

    def __init__(
        self, send: Callable[[Sequence[Report]], Plan], accept: Callable[[Plan], None], bound: int = 3600
    ) -> None:
        self._send = send
        self._accept = accept
        self._bound = bound
        self._waiting: deque[Report] = deque()
        self._changed = threading.Condition()
        self._stopping = False
        self.lost = 0
        self._thread = threading.Thread(target=self._run, name="kadence-reporter", daemon=True)
        self._thread.start()

    def put(self, report: Report) -> None:
        with self._changed:
            if len(self._waiting) >= self._bound:
                self._waiting.popleft()
                self.lost += 1
            self._waiting.append(report)
            self._changed.notify()

    def stop(self, timeout: float = 5.0) -> None:
        """Send what waits, once more, and end."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join(timeout)

    def _run(self) -> None:
        reachable = True
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._stopping)
                batch = [self._waiting[i] for i in range(min(len(self._waiting), MAX_BATCH))]
                if not batch:
                    return
            try:
                self._accept(self._send(batch))
            except Exception as error:
                # Whatever it was: without this thread no plan arrives and no report leaves, and nobody would notice.
                if reachable:
                    expected = isinstance(error, ControllerUnreachable)
                    log.warning("controller unreachable; serving goes on", reason=str(error), exc_info=not expected)
                reachable = False
                with self._changed:
                    if self._stopping:
                        return
                    self._changed.wait_for(lambda: self._stopping, RETRY_S)
                continue
            if not reachable:
                log.info("controller reachable again", reports=len(batch))
            reachable = True
            self._forget(batch)

    def _forget(self, batch: Sequence[Report]) -> None:
        sent = {r.window.id for r in batch}
        with self._changed:
            while self._waiting and self._waiting[0].window.id in sent:
                self._waiting.popleft()
