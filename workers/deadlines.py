"""How long a request may take: in the queue, in all, and without getting any further."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

DEADLINE = "deadline"
"""Error of a request whose `deadline_at` has passed."""
QUEUE_WAIT = "queue_wait"
"""Error of one that waited too long for a place; nothing of it was computed."""
STALLED = "stalled"
"""Error of one that has a place and got no further: neither a prompt position nor a token."""


@dataclass(frozen=True, slots=True)
class TimeLimits:
    """Seconds. queue_wait_s: for a place. stall_s: with one, between two signs of progress."""

    queue_wait_s: float = math.inf
    stall_s: float = math.inf


@dataclass(slots=True)
class _Timer:
    expires_at: float
    wait_until: float
    progress_at: float | None = None
    """None while it waits for a place."""

    def overdue(self, now: float, stall_s: float) -> str | None:
        if now >= self.expires_at:
            return DEADLINE
        if self.progress_at is None:
            return QUEUE_WAIT if now >= self.wait_until else None
        return STALLED if now >= self.progress_at + stall_s else None


class Deadlines:
    """The timers of an engine's requests. elapsed: seconds of a clock that nobody sets, unlike the one of
    `deadline_at`: a machine whose time is corrected loses no request.
    """

    def __init__(self, limits: TimeLimits | None = None, elapsed: Callable[[], float] = time.monotonic) -> None:
        self._limits, self._elapsed = limits or TimeLimits(), elapsed
        self._timers: dict[str, _Timer] = {}

    def start(self, request_id: str, remaining_s: float | None) -> None:
        """A request came in, that may take so many seconds more; None: any number."""
        now = self._elapsed()
        expires_at = math.inf if remaining_s is None else now + remaining_s
        self._timers[request_id] = _Timer(expires_at, now + self._limits.queue_wait_s)

    def progress(self, request_id: str) -> None:
        """It got its place, or further: `overdue` counts from here."""
        self._timers[request_id].progress_at = self._elapsed()

    def pause(self, request_id: str) -> None:
        """It lost its place and waits for another one, for as long as that takes; only its deadline goes on."""
        timer = self._timers[request_id]
        timer.progress_at, timer.wait_until = None, math.inf

    def end(self, request_id: str) -> None:
        del self._timers[request_id]

    def overdue(self) -> list[tuple[str, str]]:
        """Requests that are to end now, each with the reason."""
        now, stall_s = self._elapsed(), self._limits.stall_s
        found = [(name, timer.overdue(now, stall_s)) for name, timer in self._timers.items()]
        return [(name, reason) for name, reason in found if reason is not None]
