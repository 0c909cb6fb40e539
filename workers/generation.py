"""The running engine requests of one HTTP request: started together, merged, and cancelled when it ends early."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from controlplane.telemetry import FinishReason, RequestRecord
from workers.api_calls import Call
from workers.api_choice import ChoiceReader, Piece
from workers.backend import Backend, DeadlineExceeded, Draining, Overloaded, WorkerError
from workers.deadlines import DEADLINE, STALLED
from workers.sequence import Chunk, EngineRequest

GRACE_S = 2.0
"""Past its deadline the worker ends a request; one that does not answer at all is given up so much later."""

ShownReason = FinishReason | Literal["tool_calls"]

_log = logging.getLogger(__name__)
_background: set[asyncio.Task[None]] = set()  # the loop itself holds tasks weakly


@dataclass(slots=True)
class Outcome:
    """What has come of one request so far.

    pieces: what may be shown of it. steps: (drafted, accepted) of every draft-verify round. prediction: tokens of the
    request's own prediction that were accepted, and that were drafted in vain. cached_tokens: prompt tokens that need
    not be computed.
    """

    reader: ChoiceReader
    pieces: list[Piece] = field(default_factory=list)
    steps: list[tuple[int, int]] = field(default_factory=list)
    tokens: int = 0
    logprob_sum: float = 0.0
    prediction: tuple[int, int] = (0, 0)
    finish_reason: FinishReason | None = None
    record: RequestRecord | None = None
    cached_tokens: int = 0

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.pieces)

    @property
    def calls(self) -> list[Call]:
        """Of tools, so far."""
        return [] if self.reader.calls is None else self.reader.calls.calls

    @property
    def shown_reason(self) -> ShownReason | None:
        """Why it ended, as clients are told."""
        reader = self.reader.calls
        is_called = self.finish_reason == "stop" and reader is not None and reader.calls and reader.is_whole
        return "tool_calls" if is_called else self.finish_reason

    @property
    def completion_tokens(self) -> int:
        """Tokens it was given, also where it did not get to its end."""
        return self.tokens if self.record is None else self.record.completion_tokens

    @property
    def mean_logprob(self) -> float:
        """By which the best of several is chosen; needs their log-probabilities."""
        return self.logprob_sum / self.tokens if self.tokens else -math.inf

    def add(self, chunk: Chunk) -> Piece:
        """What it adds to what may be shown. Raises WorkerError for the chunk of a request that failed."""
        if chunk.error is not None or chunk.finish_reason in ("error", "cancelled"):
            _log.warning("request %s failed: %s", chunk.request_id, chunk.error or chunk.finish_reason)
            if chunk.error == DEADLINE:
                raise DeadlineExceeded
            if chunk.error == STALLED:
                raise WorkerError("The worker got no further with this request and ended it; try again.")
            raise WorkerError("The worker failed while it generated; try again.")
        self.count(chunk)
        piece = self.reader.read(chunk)
        self.pieces.append(piece)
        self.finish_reason = chunk.finish_reason
        return piece

    def count(self, chunk: Chunk) -> None:
        """Its tokens, whether anybody sees them or not."""
        self.tokens += len(chunk.token_ids)
        self.steps.extend(chunk.steps)
        self.prediction = (self.prediction[0] + chunk.prediction[0], self.prediction[1] + chunk.prediction[1])
        self.logprob_sum += sum(token.logprob for token in chunk.logprobs)
        self.record = chunk.record
        self.cached_tokens = max(self.cached_tokens, chunk.cached_tokens)


class Arrival(NamedTuple):
    """A chunk of one of the requests, by its index, and what it adds to what may be shown."""

    choice: int
    piece: Piece
    finish_reason: ShownReason | None


class Generation:
    """`start` awaits a first chunk, so that a refusal can still be an HTTP status.

    on_end: called once, with the prompt tokens that were taken in and the completion tokens, however it ends. A prompt
    counts from when it was sent: the worker may be reading it when its client leaves.
    """

    def __init__(
        self,
        backend: Backend,
        requests: Sequence[EngineRequest],
        readers: Sequence[ChoiceReader],
        on_end: Callable[[int, int], None] | None = None,
    ) -> None:
        self._on_end = on_end
        self.outcomes = [Outcome(reader) for reader in readers]
        self._backend = backend
        self._requests = requests
        self._streams = [backend.generate(request) for request in requests]
        self._tasks: list[asyncio.Task[None]] = []
        self._queue: asyncio.Queue[tuple[int, Chunk] | Exception] = asyncio.Queue()
        self._first: list[Arrival] = []
        self.first_at: float | None = None  # unix seconds of the first chunk
        self._is_sent = False
        self._refused: set[int] = set()
        self._ended = False
        self._deadline: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        """Returns when one of the requests has its first chunk: none waits for the first chunks of the others.

        Raises whatever the backend raised for any of them until then; the others are cancelled then.
        """
        self._is_sent = True
        if (deadline_at := self._requests[0].deadline_at) is not None:
            left_s = max(deadline_at + GRACE_S - time.time(), 0.0)
            # One timer for all of it: to set one for every step cost a twentieth of what a step's chunk costs here.
            self._deadline = asyncio.get_running_loop().call_later(left_s, self._queue.put_nowait, DeadlineExceeded())
        self._tasks = [asyncio.create_task(self._read(index, stream)) for index, stream in enumerate(self._streams)]
        try:
            self._first = await self._take()
            self.first_at = time.time()
        except BaseException:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self.abandon()
            raise

    async def steps(self) -> AsyncIterator[list[Arrival]]:
        """What has arrived since the last time, in that order: one step's chunks come together. Raises when a request
        fails.
        """
        if self._first:
            first, self._first = self._first, []
            yield first
        while any(outcome.finish_reason is None for outcome in self.outcomes):
            yield await self._take()

    async def _take(self) -> list[Arrival]:
        """Wait for one chunk and take all that are there."""
        waiting = [await self._queue.get()]
        while not self._queue.empty():
            waiting.append(self._queue.get_nowait())
        arrived = []
        for n, item in enumerate(waiting):
            try:
                if isinstance(item, Exception):
                    raise item
                index, chunk = item
                piece = self.outcomes[index].add(chunk)
            except Exception:
                self._count(waiting[n + 1 :])
                raise
            arrived.append(Arrival(index, piece, self.outcomes[index].shown_reason))
        return arrived

    async def collect(self) -> None:
        """Start, and wait until every outcome is complete."""
        await self.start()
        try:
            async for _ in self.steps():
                pass
        finally:
            self.abandon()

    async def _read(self, index: int, stream: AsyncIterator[Chunk]) -> None:
        """Moves chunks into the queue until the one that finishes the request, or what went wrong instead."""
        try:
            while True:
                chunk = await _next(stream)
                self._queue.put_nowait((index, chunk))
                if chunk.finish_reason is not None:
                    return
        except Exception as error:
            if isinstance(error, Overloaded | Draining):
                self._refused.add(index)
            self._queue.put_nowait(error)

    def abandon(self) -> None:
        """Let go: cancels what is unfinished, in the background, so that no second cancellation can interrupt it."""
        if self._ended:
            return
        self._ended = True
        if self._deadline is not None:
            self._deadline.cancel()
        if self._on_end is not None:
            self._take_unread()
            taken_in = [r for index, r in enumerate(self._requests) if self._is_sent and index not in self._refused]
            prompt_tokens = sum(len(request.prompt_token_ids) for request in taken_in)
            self._on_end(prompt_tokens, sum(outcome.completion_tokens for outcome in self.outcomes))
        task = asyncio.create_task(self._let_go())
        _background.add(task)
        task.add_done_callback(_background.discard)

    def _take_unread(self) -> None:
        """What was generated and its client, being slow, had not read yet."""
        while not self._queue.empty():
            self._count([self._queue.get_nowait()])

    def _count(self, unread: Sequence[tuple[int, Chunk] | Exception]) -> None:
        for item in unread:
            if not isinstance(item, Exception):
                index, chunk = item
                self.outcomes[index].count(chunk)

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


async def _close(stream: AsyncIterator[Chunk]) -> None:
    close = getattr(stream, "aclose", None)
    if close is not None:
        await close()
