"""The running engine requests of one HTTP request: started together, merged, and cancelled when it ends early."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

from controlplane.telemetry import FinishReason, RequestRecord
from workers.backend import Backend, Overloaded, WorkerError
from workers.sequence import Chunk, EngineRequest

_log = logging.getLogger(__name__)
_background: set[asyncio.Task[None]] = set()  # the loop itself holds tasks weakly


@dataclass(slots=True)
class Outcome:
    """What has come of one request so far. steps: (drafted, accepted) of every draft-verify round."""

    text: list[str] = field(default_factory=list)
    steps: list[tuple[int, int]] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    record: RequestRecord | None = None
    has_begun: bool = False

    @property
    def completion_tokens(self) -> int:
        """Tokens it was given, also where it did not get to its end."""
        if self.record is not None:
            return self.record.completion_tokens
        return 1 + sum(accepted + 1 for _, accepted in self.steps) if self.has_begun else 0

    def add(self, chunk: Chunk) -> None:
        """Raises WorkerError for the chunk of a request that failed."""
        if chunk.error is not None or chunk.finish_reason in ("error", "cancelled"):
            _log.warning("request %s failed: %s", chunk.request_id, chunk.error or chunk.finish_reason)
            raise WorkerError("The worker failed while it generated; try again.")
        self.has_begun = True
        self.text.append(chunk.text)
        self.steps.extend(chunk.steps)
        self.finish_reason = chunk.finish_reason
        self.record = chunk.record


class Generation:
    """`start` awaits each request's first chunk, so that a refusal can still be an HTTP status.

    on_end: called once, with the prompt tokens that were taken in and the completion tokens, however it ends. A prompt
    counts from when it was sent: the worker may be reading it when its client leaves.
    """

    def __init__(
        self,
        backend: Backend,
        requests: Sequence[EngineRequest],
        on_end: Callable[[int, int], None] | None = None,
    ) -> None:
        self._on_end = on_end
        self.outcomes = [Outcome() for _ in requests]
        self._backend = backend
        self._requests = requests
        self._streams = [backend.generate(request) for request in requests]
        self._first: list[Chunk] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._queue: asyncio.Queue[tuple[int, Chunk] | Exception] = asyncio.Queue()
        self._sent: set[int] = set()
        self._ended = False

    async def start(self) -> None:
        """Raises whatever the backend raised for any of the requests; the others are cancelled then."""
        firsts = [asyncio.ensure_future(_next(stream)) for stream in self._streams]
        self._sent = set(range(len(firsts)))
        try:
            await asyncio.wait(firsts, return_when=asyncio.FIRST_EXCEPTION)
            self._first = [first.result() for first in firsts if first.done()]
            for outcome, chunk in zip(self.outcomes, self._first, strict=True):
                outcome.add(chunk)
        except BaseException:
            for first in firsts:
                first.cancel()
            came = await asyncio.gather(*firsts, return_exceptions=True)
            self._sent -= {index for index, what in enumerate(came) if isinstance(what, Overloaded)}
            self.abandon()
            raise

    async def chunks(self) -> AsyncIterator[tuple[int, Chunk]]:
        """(index of the request, chunk) in the order of arrival; raises when a request fails."""
        for index, chunk in enumerate(self._first):
            yield index, chunk
        unfinished = sum(outcome.finish_reason is None for outcome in self.outcomes)
        self._tasks = [
            asyncio.create_task(_read(index, stream, self._queue))
            for index, stream in enumerate(self._streams)
            if self.outcomes[index].finish_reason is None
        ]
        while unfinished:
            arrived = await self._queue.get()
            if isinstance(arrived, Exception):
                raise arrived
            index, chunk = arrived
            self.outcomes[index].add(chunk)
            unfinished -= chunk.finish_reason is not None
            yield index, chunk

    async def collect(self) -> None:
        """Start, and wait until every outcome is complete."""
        await self.start()
        try:
            async for _ in self.chunks():
                pass
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Let go: cancels what is unfinished, in the background, so that no second cancellation can interrupt it."""
        if self._ended:
            return
        self._ended = True
        if self._on_end is not None:
            self._take_unread()
            taken_in = sum(len(self._requests[index].prompt_token_ids) for index in self._sent)
            self._on_end(taken_in, sum(outcome.completion_tokens for outcome in self.outcomes))
        task = asyncio.create_task(self._let_go())
        _background.add(task)
        task.add_done_callback(_background.discard)

    def _take_unread(self) -> None:
        """What was generated and its client, being slow, had not read yet."""
        while not self._queue.empty():
            arrived = self._queue.get_nowait()
            if not isinstance(arrived, Exception):
                index, chunk = arrived
                self.outcomes[index].steps.extend(chunk.steps)
                self.outcomes[index].record = chunk.record

    async def _let_go(self) -> None:
        for request, outcome in zip(self._requests, self.outcomes, strict=True):
            if outcome.finish_reason is None:
                try:
                    await self._backend.cancel(request.request_id)
                except Exception:
                    _log.exception("could not cancel request %s", request.request_id)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(_close(stream) for stream in self._streams), return_exceptions=True)


async def _next(stream: AsyncIterator[Chunk]) -> Chunk:
    try:
        return await anext(stream)
    except StopAsyncIteration:
        raise WorkerError("The worker ended the request without a result; try again.") from None


async def _read(index: int, stream: AsyncIterator[Chunk], queue: asyncio.Queue[tuple[int, Chunk] | Exception]) -> None:
    """Moves chunks into the queue until the one that finishes the request, or what went wrong instead."""
    try:
        while True:
            chunk = await _next(stream)
            queue.put_nowait((index, chunk))
            if chunk.finish_reason is not None:
                return
    except Exception as error:
        queue.put_nowait(error)


async def _close(stream: AsyncIterator[Chunk]) -> None:
    close = getattr(stream, "aclose", None)
    if close is not None:
        await close()
