"""A worker's door: how many requests it takes in, whom it turns away when full, and when they should come back."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass

from workers.backend import Overloaded
from workers.fair_queue import FLEX, PRIORITY, flow_of
from workers.sequence import EngineRequest

RETRY_MOST_S = 60.0
UNKNOWN_RETRY_S = 1.0
"""What a client is told while nothing has left the queue yet."""
REMEMBERED = 64
"""Departures that the pace is taken from."""

_RANK = {FLEX: 0, PRIORITY: 2}
"""Who is turned away first: the lowest."""


@dataclass(slots=True)
class _Open:
    request: EngineRequest
    has_begun: bool = False


class Admission:
    """The requests of one worker, from when they are taken in until they end.

    limit: so many, running and waiting together. When it is full, the tenant with most waiting requests loses its
    newest one to a tenant with fewer (Suter et al. 1998, longest queue drop): a flood fills the queue, and does not
    keep others out of it. Of several choices of one answer none is turned away, since another may have begun.
    """

    def __init__(self, limit: int, now: Callable[[], float] = time.monotonic) -> None:
        self._limit, self._now = limit, now
        self._open: dict[str, _Open] = {}
        self._departed: deque[float] = deque(maxlen=REMEMBERED)
        self.refused: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._open)

    def admit(self, request: EngineRequest) -> EngineRequest | None:
        """Take a request in. Returns the one that has to go for it, where one has to; raises Overloaded where it is
        this one. Either is counted, by "full" and "displaced".
        """
        displaced = None
        if len(self._open) >= self._limit:
            displaced = self._loser(request)
            if displaced is None:
                self.refused["full"] += 1
                raise Overloaded(self.retry_after_s())
            self.refused["displaced"] += 1
            del self._open[displaced.request_id]
        self._open[request.request_id] = _Open(request)
        return displaced

    def begin(self, request_id: str) -> None:
        """It has its first chunk."""
        found = self._open.get(request_id)
        if found is not None and not found.has_begun:
            found.has_begun = True
            self._departed.append(self._now())

    def end(self, request_id: str) -> None:
        self._open.pop(request_id, None)

    @property
    def waiting(self) -> int:
        """Requests without their first chunk."""
        return sum(not o.has_begun for o in self._open.values())

    def retry_after_s(self) -> float:
        """Seconds in which half of those that wait will have begun, at the pace of late; a second to a minute."""
        if not self._departed:
            return UNKNOWN_RETRY_S
        # Until now and not until the last of them: where nothing gets on any more, the pace falls.
        pace = len(self._departed) / max(self._now() - self._departed[0], 1e-3)
        return min(max(self.waiting / 2 / pace, UNKNOWN_RETRY_S), RETRY_MOST_S)

    def _loser(self, request: EngineRequest) -> EngineRequest | None:
        waiting = [o.request for o in self._open.values() if not o.has_begun and is_alone(o.request.request_id)]
        cheap = [r for r in waiting if r.service_tier == FLEX]
        if cheap and request.service_tier != FLEX:
            return cheap[-1]
        lengths = Counter(flow_of(r) for r in waiting)
        own = flow_of(request)
        lengths[own] += 1
        longest = max(lengths, key=lambda flow: lengths[flow])
        if lengths[longest] <= lengths[own]:
            # The newcomer's own tenant has the most, or as good as: what comes last waits outside.
            longest = own
        mine = [r for r in waiting if flow_of(r) == longest]
        if longest == own:
            lower = [r for r in mine if _rank(r) < _rank(request)]
            return min(reversed(lower), key=_rank) if lower else None
        return min(reversed(mine), key=_rank)


def is_alone(request_id: str) -> bool:
    """Whether its answer has no other choices: those have a number behind the answer's id (workers/api.py)."""
    return request_id.count("-") < 2


def _rank(request: EngineRequest) -> int:
    return _RANK.get(request.service_tier or "", 1)
