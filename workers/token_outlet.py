"""A worker's side of its connections to endpoints: one message a step, with the tokens of all requests of an endpoint.

A call of Ray for each request says what is wanted and when it has ended; were its tokens to come back through it, too,
every one would be an object of its own in Ray's store (3 ms of processor time a token, seen on two cores).
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Sequence

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


class Outlet:
    """One endpoint's connection, whose socket it owns: `send` may be called from any thread, the rest is the event
    loop's that made it.
    """

    def __init__(self, connection: socket.socket, secret: str) -> None:
        connection.setblocking(False)
        self._socket = connection
        self._loop = asyncio.get_running_loop()
        self._unsent = bytearray()
        self._lock = threading.Lock()
        self._open: set[asyncio.Future[None]] = set()
        self.is_lost = False
        self._loop.add_reader(connection, self._read)
        self._write(framed(secret.encode()))

    def follow(self, end: asyncio.Future[None]) -> None:
        """Have `end` fail with EndpointLost when the connection goes before it is done."""
        if self.is_lost:
            end.set_exception(EndpointLost())
            return
        self._open.add(end)
        end.add_done_callback(self._open.discard)

    def send(self, chunks: Sequence[Chunk]) -> None:
        """One message, on its way before those of later calls; on a connection that is lost it goes nowhere."""
        self._write(encode(chunks))

    def close(self) -> None:
        """Let go of the connection; who follows it is told."""
        with self._lock:
            if self.is_lost:
                return
            self.is_lost = True
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)
            self._socket.close()
            self._unsent.clear()
        for end in tuple(self._open):
            if not end.done():
                end.set_exception(EndpointLost())

    def _write(self, message: bytes) -> None:
        with self._lock:
            if self.is_lost:
                return
            has_waited = bool(self._unsent)
            self._unsent += message
            if has_waited:
                if len(self._unsent) > MOST_UNSENT_BYTES:
                    log.error("an endpoint reads no tokens; its requests are ended")
                    self._loop.call_soon_threadsafe(self.close)
            elif not self._send_unsent():
                self._loop.call_soon_threadsafe(self._wait_for_room)

    def _send_unsent(self) -> bool:
        """What the socket takes; False where something is left for when it has room. With the lock held."""
        try:
            del self._unsent[: self._socket.send(self._unsent)]
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:
            self._unsent.clear()
            self._loop.call_soon_threadsafe(self.close)
        return not self._unsent

    def _wait_for_room(self) -> None:
        with self._lock:
            if not self.is_lost:
                self._loop.add_writer(self._socket, self._go_on)

    def _go_on(self) -> None:
        with self._lock:
            if not self.is_lost and self._send_unsent():
                self._loop.remove_writer(self._socket)

    def _read(self) -> None:
        """An endpoint says nothing on it: all that can be read is its end."""
        try:
            if self._socket.recv(1024):
                return
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            pass
        self.close()


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
    try:
        connection = await asyncio.to_thread(_connection, address)
    except (OSError, TimeoutError) as error:
        log.error("an endpoint cannot be reached", host=address.host, port=address.port, reason=str(error))
        raise EndpointLost("the worker cannot reach the endpoint; try again") from error
    return Outlet(connection, address.secret)


def _connection(address: EndpointAddress) -> socket.socket:
    """By the machine's own way where the endpoint is on it, else by the network."""
    if address.local:
        local = socket.socket(socket.AF_UNIX)
        local.settimeout(CONNECT_WITHIN_S)
        try:
            local.connect(address.local)
        except OSError:
            local.close()
        else:
            return local
    connection = socket.create_connection((address.host, address.port), CONNECT_WITHIN_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection
