"""Around every request: its id, its processing time, its log line, and an answer even to what nobody foresaw."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from workers.api_errors import ApiError
from workers.request_facts import RequestFacts
from workers.request_identity import HEADER, request_id_of

if TYPE_CHECKING:
    from workers.otel_requests import RequestTelemetry

log = structlog.wrap_logger(logging.getLogger(__name__), wrapper_class=structlog.stdlib.BoundLogger)
"""Silent until logs are configured: no line for every request on the output of a test or a benchmark."""
_QUIET = {"/health", "/metrics"}
"""Asked for again and again by programs: logged only at level debug."""


class RequestIdentity:
    """Sets scope["state"]: request_id (the client's, where it is sane), received_at (unix seconds), facts.

    telemetry: makes spans and gen_ai metrics of requests; None makes none.
    """

    def __init__(self, app: ASGIApp, telemetry: RequestTelemetry | None = None) -> None:
        self._app = app
        self._telemetry = telemetry

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        headers = Headers(scope=scope)
        request_id, received_at, facts = request_id_of(headers.get(HEADER, "")), time.time(), RequestFacts()
        scope.setdefault("state", {}).update(request_id=request_id, received_at=received_at, facts=facts)
        span = None
        if self._telemetry is not None:
            span = self._telemetry.begin(scope["path"], headers, received_at, facts)
        status = 0
        processing_ms = None

        async def send_with_identity(message: Message) -> None:
            nonlocal status, processing_ms
            if message["type"] == "http.response.start":
                status = message["status"]
                processing_ms = round((time.perf_counter() - started) * 1000)
                answered = MutableHeaders(scope=message)
                answered[HEADER] = request_id
                answered["openai-processing-ms"] = str(processing_ms)
            await send(message)

        try:
            await self._app(scope, receive, send_with_identity)
        except Exception:
            log.exception("request failed", request_id=request_id)
            if not status:
                error = ApiError(500, f"Internal error; its log entry names {request_id}.", type="server_error")
                await error.response()(scope, receive, send_with_identity)
        finally:
            if span is not None and self._telemetry is not None:
                self._telemetry.end(span, facts, status)
            # Of an unknown path not the text: it is the client's.
            route = getattr(scope.get("route"), "path", "unknown")
            write = log.debug if route in _QUIET else log.info
            write(
                "request",
                request_id=request_id,
                method=scope["method"] if scope["method"].isalpha() and len(scope["method"]) < 10 else "unknown",
                route=route,
                status=status,
                processing_ms=processing_ms,
                duration_ms=round((time.perf_counter() - started) * 1000),
                **facts.to_log(),
            )
