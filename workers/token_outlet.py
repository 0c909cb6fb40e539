"""A worker's side of its connections to endpoints: one message a step, with the tokens of all requests of an endpoint.

A call of Ray for each request says what is wanted and when it has ended; were its tokens to come back through it, too,
every one would be an object of its own in Ray's store (3 ms of processor time a token, seen on two cores).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import cast

import structlog

from workers.backend import WorkerError
from workers.sequence import Chunk
from workers.token_wire import EndpointAddress, encode, framed

log = structlog.get_logger(__name__)

CONNECT_WITHIN_S = 5.0
MOST_UNSENT_BYTES = 256 * 2**20
"""What an endpoint that reads nothing may leave with a worker, before it counts as gone."""


class EndpointLost(WorkerError):
    """The endpoint that asked for a request is not there any more: nobody would read its tokens."""

    def __init__(self, message: str = "the connection to the endpoint was lost; try again") -> None:
        super().__init__(message)


class Outlet(asyncio.Protocol):
    """One endpoint's connection; all on the event loop that made it."""

    def __init__(self, secret: str) -> None:
        self._secret = secret
        self._transport: asyncio.Transport | None = None
        self._open: set[asyncio.Future[None]] = set()
        self.is_lost = False

    def follow(self, end: asyncio.Future[None]) -> None:
        """Have `end` fail with EndpointLost when the connection goes before it is done."""
        if self.is_lost:
            end.set_exception(EndpointLost())
            return
        self._open.add(end)
        end.add_done_callback(self._open.discard)

    def send(self, chunks: Sequence[Chunk]) -> None:
        """One message; on a connection that is lost it goes nowhere."""
        if self._transport is None or self.is_lost:
            return
        if self._transport.get_write_buffer_size() > MOST_UNSENT_BYTES:
            log.error("an endpoint reads no tokens; its requests are ended")
            self._transport.abort()
            return
        self._transport.write(encode(chunks))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(framed(self._secret.encode()))

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        for end in tuple(self._open):
            if not end.done():
                end.set_exception(EndpointLost())


class Outlets:
    """A worker's connections, by endpoint; one that was lost is made anew for the next request."""

    def __init__(self) -> None:
        self._outlets: dict[EndpointAddress, asyncio.Task[Outlet]] = {}

    async def reach(self, address: EndpointAddress) -> Outlet:
        """The connection to that endpoint, made where there is none. Raises EndpointLost."""
        task = self._outlets.get(address)
        if task is None or _is_lost(task):
            self._forget_lost()
            task = self._outlets[address] = asyncio.ensure_future(_connect(address))
        return await asyncio.shield(task)  # others may wait for it, too

    def close(self) -> None:
        for task in self._outlets.values():
            if task.done() and not _is_lost(task):
                task.result().close()
            else:
                task.cancel()
        self._outlets.clear()

    def _forget_lost(self) -> None:
        """An endpoint that was replaced never comes back under its address."""
        for address, task in tuple(self._outlets.items()):
            if _is_lost(task):
                del self._outlets[address]


def _is_lost(task: asyncio.Task[Outlet]) -> bool:
    """Whether the connection was tried and is not, or no longer, there."""
    return task.done() and (task.cancelled() or task.exception() is not None or task.result().is_lost)


async def _connect(address: EndpointAddress) -> Outlet:
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(CONNECT_WITHIN_S):
            _, outlet = await loop.create_connection(lambda: Outlet(address.secret), address.host, address.port)
    except (OSError, TimeoutError) as error:
        log.error("an endpoint cannot be reached", host=address.host, port=address.port, reason=str(error))
        raise EndpointLost("the worker cannot reach the endpoint; try again") from error
    return outlet
