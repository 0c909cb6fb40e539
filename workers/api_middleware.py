"""Around every request: its id, its processing time, and an answer even to what nobody foresaw."""

from __future__ import annotations

import logging
import time

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from workers.api_errors import ApiError
from workers.request_identity import HEADER, request_id_of

_log = logging.getLogger(__name__)


class RequestIdentity:
    """Sets scope["state"]: request_id (the client's, where it is sane), received_at (unix seconds)."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        request_id = request_id_of(Headers(scope=scope).get(HEADER, ""))
        scope.setdefault("state", {}).update(request_id=request_id, received_at=time.time())
        has_started = False

        async def send_with_identity(message: Message) -> None:
            nonlocal has_started
            if message["type"] == "http.response.start":
                has_started = True
                headers = MutableHeaders(scope=message)
                headers[HEADER] = request_id
                headers["openai-processing-ms"] = str(round((time.perf_counter() - started) * 1000))
            await send(message)

        try:
            await self._app(scope, receive, send_with_identity)
        except Exception:
            _log.exception("request %s failed", request_id)
            if not has_started:
                error = ApiError(500, f"Internal error; its log entry names {request_id}.", type="server_error")
                await error.response()(scope, receive, send_with_identity)
