"""The requests that a worker has taken in: each one's call ends with it, its tokens go out with those of the others.

A step's tokens are sent by the engine's own thread, before it computes the next step: handed to the event loop they
would wait for the interpreter's lock until that computes, and the loop, the endpoint and the client would then each
take a core away from it. What begins or ends a request is the event loop's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import structlog

from workers.admission import Admission
from workers.backend import Overloaded
from workers.deadlines import QUEUE_WAIT
from workers.request_ends import RequestEnds
from workers.sequence import Chunk, EngineRequest
from workers.token_outlet import Outlet

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Open:
    """has_begun: its first chunk is on its way."""

    outlet: Outlet
    end: asyncio.Future[None]
    has_begun: bool = False


class OpenRequests:
    """Of one worker, on its event loop; only `pass_on` is the engine's thread's, and changes nothing of a request.

    submit and cancel: of the engine, which answers through `pass_on`, and through `deliver` what that leaves.
    """

    def __init__(
        self,
        admission: Admission,
        ends: RequestEnds,
        submit: Callable[[EngineRequest], None],
        cancel: Callable[[str], None],
    ) -> None:
        self._admission = admission
        self._ends = ends
        self._submit = submit
        self._cancel = cancel
        self._open: dict[str, _Open] = {}
        # Written by one thread each: steps that the engine's handed over to `deliver`, and those delivered.
        self._handed_over = self._delivered = 0

    async def serve(self, request: EngineRequest, outlet: Outlet) -> None:
        """Returns when the request's last chunk has gone out; cancelled before that, the engine ends it, too.

        Raises Overloaded, also for a request that was taken in and has to make room before it has begun, and
        EndpointLost.
        """
        displaced = self._admission.admit(request)
        if displaced is not None:
            self._turn_away(displaced.request_id, Overloaded(self._admission.retry_after_s()))
        end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._open[request.request_id] = _Open(outlet, end)
        is_with_engine = False
        try:
            outlet.follow(end)
            if not end.done():
                self._ends.begin(request)
                self._submit(request)
                is_with_engine = True
            await end
            is_with_engine = False
        finally:
            self._admission.end(request.request_id)
            del self._open[request.request_id]
            if is_with_engine:
                self._cancel(request.request_id)

    def pass_on(self, chunks: Sequence[Chunk]) -> bool:
        """On the engine's thread: send what one step gave, one message to each endpoint.

        False, and nothing is sent, where a request begins or ends with it, or `deliver` owes what came before: it is
        then for `deliver`.
        """
        messages = self._under_way(chunks) if self._handed_over == self._delivered else None
        if messages is None:
            self._handed_over += 1
            return False
        _send(messages)
        return True

    def _under_way(self, chunks: Sequence[Chunk]) -> dict[Outlet, list[Chunk]] | None:
        """By endpoint; None where one of them is the first or the last of its request."""
        messages: dict[Outlet, list[Chunk]] = {}
        for chunk in chunks:
            found = self._open.get(chunk.request_id)
            if found is None or not found.has_begun or chunk.finish_reason is not None:
                return None
            messages.setdefault(found.outlet, []).append(chunk)
        return messages

    def deliver(self, chunks: Sequence[Chunk]) -> None:
        """What one step gave and `pass_on` left: one message to each endpoint."""
        try:
            self._deliver(chunks)
        finally:
            self._delivered += 1

    def _deliver(self, chunks: Sequence[Chunk]) -> None:
        messages: dict[Outlet, list[Chunk]] = {}
        ended: list[asyncio.Future[None]] = []
        for chunk in chunks:
            found = self._open.get(chunk.request_id)
            if found is not None and not found.end.done():
                # From here on and not from when it is read: one that has a chunk is not turned away any more.
                self._admission.begin(chunk.request_id)
                if chunk.error == QUEUE_WAIT:
                    wait_s = self._admission.retry_after_s()
                    self._turn_away(chunk.request_id, Overloaded(wait_s, "the request waited too long for its turn"))
                else:
                    messages.setdefault(found.outlet, []).append(chunk)
                    found.has_begun = True
                    if chunk.finish_reason is not None:
                        ended.append(found.end)
            self._ends.take(chunk)
        _send(messages)
        for end in ended:
            if not end.done():
                end.set_result(None)

    def _turn_away(self, request_id: str, error: Exception) -> None:
        found = self._open.get(request_id)
        if found is not None and not found.end.done():
            found.end.set_exception(error)


def _send(messages: Mapping[Outlet, Sequence[Chunk]]) -> None:
    """Trouble with one endpoint is neither the others' nor the engine's."""
    for outlet, message in messages.items():
        try:
            outlet.send(message)
        except Exception:
            log.exception("tokens could not be sent; the requests of this endpoint are ended")
            outlet.drop()
