"""A worker's side of its connections to endpoints: one message a step, with the tokens of all requests of an endpoint.

A call of Ray for each request says what is wanted and when it has ended; were its tokens to come back through it, too,
every one would be an object of its own in Ray's store (3 ms of processor time a token, seen on two cores).
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Sequence

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
    """One endpoint's connection, whose socket it owns: `send` and `drop` may be called from any thread, the rest is the
    event loop's that made it.
    """

    def __init__(self, connection: socket.socket, secret: str) -> None:
        connection.setblocking(False)
        self._socket = connection
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()  # of the socket, and of the next two
        self._unsent = bytearray()  # what waits for the socket to have room
        self._takes_more = True
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

    def drop(self) -> None:
        """Send no more, not even what waits, and let go of the connection."""
        with self._lock:
            self._break()

    def close(self) -> None:
        """Let go of the connection once what waits is sent."""
        with self._lock:
            self._takes_more = False
            if self._unsent:
                return
        self._let_go()

    def _write(self, message: bytes) -> None:
        with self._lock:
            if not self._takes_more:
                return
            if len(self._unsent) > MOST_UNSENT_BYTES:
                log.error("an endpoint reads no tokens; its requests are ended")
                self._break()
                return
            is_waiting = bool(self._unsent)
            self._unsent += message
            if not is_waiting:
                self._send_unsent()
                if self._unsent:
                    self._soon(self._wait_for_room)

    def _send_unsent(self) -> None:
        """As much as the socket takes; with the lock held."""
        try:
            del self._unsent[: self._socket.send(self._unsent)]
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:
            self._break()

    def _break(self) -> None:
        """With the lock held."""
        self._takes_more = False
        self._unsent.clear()
        self._soon(self._let_go)

    def _soon(self, callback: Callable[[], None]) -> None:
        """On the event loop; one that has ended has nothing to do any more."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback)

    def _wait_for_room(self) -> None:
        with self._lock:
            if not self.is_lost and self._unsent:
                self._loop.add_writer(self._socket, self._go_on)

    def _go_on(self) -> None:
        with self._lock:
            if self.is_lost:
                return
            self._send_unsent()
            if self._unsent:
                return
            self._loop.remove_writer(self._socket)
            is_over = not self._takes_more
        if is_over:
            self._let_go()

    def _let_go(self) -> None:
        """Who follows it is told."""
        with self._lock:
            if self.is_lost:
                return
            self.is_lost, self._takes_more = True, False
            self._unsent.clear()
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)
            self._socket.close()
        for end in tuple(self._open):
            if not end.done():
                end.set_exception(EndpointLost())

    def _read(self) -> None:
        """An endpoint says nothing on it: all that can be read is its end."""
        try:
            if self._socket.recv(1024):
                return
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            pass
        self._let_go()


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
        with contextlib.suppress(OSError):
            return _local_connection(address.local)
    connection = socket.create_connection((address.host, address.port), CONNECT_WITHIN_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _local_connection(name: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(CONNECT_WITHIN_S)
        connection.connect(name)
    except OSError:
        connection.close()
        raise
    return connection
