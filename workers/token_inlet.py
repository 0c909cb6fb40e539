"""An endpoint's side of its connections to workers: tokens come in by the step, and go to the requests they are of."""

from __future__ import annotations

import asyncio
import hmac
import secrets
import sys
from typing import cast

import structlog

from workers.backend import WorkerError
from workers.sequence import Chunk
from workers.token_wire import MOST_FRAME, MOST_GREETING, EndpointAddress, FrameReader, WireError, decode

log = structlog.get_logger(__name__)

GREET_WITHIN_S = 5.0
LATE_S = 5.0
"""For the last word on a request: its tokens and the end of its call come by different ways."""

GONE = "the worker went away while serving this request; try again"
UNFINISHED = "The worker ended the request without a result; try again."


class TokenStream:
    """The chunks of one request. `source` is the connection that the first of them came by."""

    def __init__(self) -> None:
        self._waiting: asyncio.Queue[Chunk | Exception] = asyncio.Queue()
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False
        self.source: object | None = None

    async def get(self) -> Chunk:
        """The next one; raises what went wrong instead."""
        item = await self._waiting.get()
        if isinstance(item, Exception):
            raise item
        return item

    def put(self, chunk: Chunk) -> None:
        self._waiting.put_nowait(chunk)

    def fail(self, error: Exception) -> None:
        """After what is there already."""
        self._waiting.put_nowait(error)

    def fail_late(self, message: str) -> None:
        """Fail in LATE_S with a WorkerError, unless the stream is closed by then."""
        if self._timer is None and not self._is_closed:
            self._timer = asyncio.get_running_loop().call_later(LATE_S, self.fail, WorkerError(message))

    def close(self) -> None:
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()


class TokenInlet:
    """Listens on `host` from the first request on; all on that request's event loop."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        self._host = host
        self._secret = secrets.token_hex(32)
        self._servers: list[asyncio.Server] = []
        self._address: EndpointAddress | None = None
        self._starting = asyncio.Lock()
        self._streams: dict[str, TokenStream] = {}
        self._sources: set[_Source] = set()

    async def address(self) -> EndpointAddress:
        """Where workers bring tokens to."""
        if self._address is None:
            async with self._starting:
                if self._address is None:
                    self._address = await self._listen()
        return self._address

    def open(self, request_id: str) -> TokenStream:
        """To be closed by `close`; before that is done, what comes for the request is kept for it."""
        stream = self._streams[request_id] = TokenStream()
        return stream

    def close(self, request_id: str) -> None:
        """What comes for it from now on is dropped."""
        stream = self._streams.pop(request_id, None)
        if stream is not None:
            stream.close()

    @property
    def open_streams(self) -> int:
        return len(self._streams)

    def stop(self) -> None:
        """Listen no more and let go of all workers."""
        for server in self._servers:
            server.close()
        for source in tuple(self._sources):
            source.abort()

    async def _listen(self) -> EndpointAddress:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: _Source(self), self._host, 0)
        self._servers.append(server)
        port: int = server.sockets[0].getsockname()[1]
        return EndpointAddress(self._host, port, self._secret, await self._listen_locally())

    async def _listen_locally(self) -> str:
        """The name under which this machine's workers find it; "" where there is no such thing."""
        if sys.platform != "linux":  # elsewhere a name would be a file, and stay after a crash
            return ""
        name = f"\0kadence-{secrets.token_hex(16)}"
        try:
            self._servers.append(await asyncio.get_running_loop().create_unix_server(lambda: _Source(self), name))
        except OSError as error:
            log.warning("no Unix socket for tokens; they come by TCP", reason=str(error))
            return ""
        return name

    def knows(self, greeting: bytes) -> bool:
        return hmac.compare_digest(greeting, self._secret.encode())

    def begin(self, source: _Source) -> None:
        self._sources.add(source)

    def take(self, chunks: list[Chunk], source: _Source) -> None:
        for chunk in chunks:
            stream = self._streams.get(chunk.request_id)
            if stream is not None:
                stream.source = source
                stream.put(chunk)

    def lose(self, source: _Source) -> None:
        """The end of its call says why, and what a client is told; if even that does not come, this does."""
        self._sources.discard(source)
        for stream in self._streams.values():
            if stream.source is source:
                stream.fail_late(GONE)


class _Source(asyncio.Protocol):
    """A connection from a worker, or from somebody who has yet to show that he is one."""

    def __init__(self, inlet: TokenInlet) -> None:
        self._inlet = inlet
        self._frames = FrameReader(MOST_GREETING)
        self._is_known = False
        self._transport: asyncio.Transport | None = None
        self._greeting: asyncio.TimerHandle | None = None

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._inlet.begin(self)
        self._greeting = asyncio.get_running_loop().call_later(GREET_WITHIN_S, self.abort)

    def data_received(self, data: bytes) -> None:
        try:
            for frame in self._frames.feed(data):
                if self._is_known:
                    self._inlet.take(decode(frame), self)
                elif self._inlet.knows(frame):
                    self._know()
                else:
                    raise WireError("it does not say the secret")
        except WireError as error:
            log.error("a connection for tokens is closed", reason=str(error) if self._is_known else "not a worker's")
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._greeting is not None:
            self._greeting.cancel()
        self._inlet.lose(self)

    def _know(self) -> None:
        self._is_known, self._frames.most = True, MOST_FRAME
        if self._greeting is not None:
            self._greeting.cancel()
