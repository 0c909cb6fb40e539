"""Which id a request goes by: its client's where that is harmless in a header and a log, else one of our own.

Ray's proxy adds a header x-request-id to every answer by itself, whatever the client sent, beside the application's.
The proxy therefore runs `OneRequestId` around all else: what comes in has a sane id, and what goes out has it once.
"""

from __future__ import annotations

import re
import uuid
from typing import Any

from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADER = "x-request-id"
PROXY_CALLBACK = {"RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": "workers.request_identity:proxy_middlewares"}
"""For the environment of Ray's proxies."""
_SANE = re.compile(r"[A-Za-z0-9._:\-]{1,128}")


def request_id_of(given: str) -> str:
    """`given` where it is up to 128 letters, digits, `.`, `_`, `:` and `-`."""
    return given if _SANE.fullmatch(given) else f"req-{uuid.uuid4().hex}"


class OneRequestId:
    """The outermost layer of a proxy."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = MutableHeaders(scope=scope)
        request_id = headers[HEADER] = request_id_of(headers.get(HEADER, ""))

        async def send_once(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[HEADER] = request_id  # in place of all there are
            await send(message)

        await self._app(scope, receive, send_once)


def proxy_middlewares() -> list[Any]:
    """Called by Ray in each proxy's process."""
    return [Middleware(OneRequestId)]
