"""Server-sent events, and work that ends as soon as its client has gone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

DONE = b"data: [DONE]\n\n"

_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode  # json.dumps would make one for every event

T = TypeVar("T")


class ClientGone(Exception):
    """The client closed its connection before the answer was ready."""


def frame(event: Mapping[str, Any]) -> bytes:
    """One event. ASCII only: some clients cut lines at U+2028 and U+0085, which JSON may carry raw."""
    return b"data: " + _encode(event).encode() + b"\n\n"


async def disconnected(receive: Receive) -> None:
    """Returns when the client has gone; only for requests whose body has been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def while_connected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`; when the client goes first, work is cancelled and ClientGone raised."""
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(disconnected(receive))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientGone
    finally:
        await _stop(working)
        await _stop(watching)


class EventStream(Response):
    """Sends frames as they come and stops as soon as the client has gone; `on_close` is called once either way."""

    media_type = "text/event-stream"

    def __init__(self, frames: AsyncGenerator[bytes, None], on_close: Callable[[], None]) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._frames = frames
        self._on_close = on_close  # apart from the frames: a generator that never started has no `finally`

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await while_connected(receive, self._send(send))
        except (ClientGone, OSError):
            pass  # nobody is left to tell
        finally:
            self._on_close()
            await self._frames.aclose()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for data in self._frames:
            await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _stop(task: asyncio.Future[Any]) -> None:
    """Cancel a task and wait until it has ended; what it raised on the way is not ours."""
    if not task.done():
        task.cancel()
        await _settled(task)


async def _settled(task: Awaitable[Any]) -> None:
    await asyncio.gather(task, return_exceptions=True)
