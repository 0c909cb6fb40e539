"""An endpoint in miniature: a real HTTP server that streams what a test asks for, in the dialect of ours."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route


@dataclass
class FakeEndpoint:
    """What it answers with, and what it was asked. throttle: how many 429s it still gives; error: (status, message).

    metrics: expositions to show, one after the other.
    """

    url: str = ""
    pieces: tuple[str, ...] = ("Hel", "lo, ", "world")
    pause_s: float = 0.0
    throttle: int = 0
    error: tuple[int, str] | None = None
    error_in_stream: str | None = None
    break_off: bool = False
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    metrics: list[str] = field(default_factory=list)
    most_at_once: int = 0
    at_once: int = 0

    async def models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [{"id": "tiny", "object": "model"}]})

    async def show_metrics(self, request: Request) -> Response:
        """The first of `metrics` and then the next, the last one for ever; 404 without any."""
        if not self.metrics:
            return Response(status_code=404)
        return Response(self.metrics.pop(0) if len(self.metrics) > 1 else self.metrics[0])

    async def complete(self, request: Request) -> Response:
        body = await request.json()
        if self.throttle:
            self.throttle -= 1
            return JSONResponse({"error": {"message": "busy"}}, 429, {"Retry-After": "0.05"})
        self.bodies.append(body)
        self.headers.append(dict(request.headers))
        if self.error:
            return JSONResponse({"error": {"message": self.error[1]}}, self.error[0])
        return StreamingResponse(self.stream("messages" in body), media_type="text/event-stream")

    async def stream(self, chat: bool) -> AsyncIterator[str]:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            if chat:
                yield self.data({"choices": [{"delta": {"role": "assistant", "content": ""}, "finish_reason": None}]})
            for piece in self.pieces:
                await asyncio.sleep(self.pause_s)
                content = {"delta": {"content": piece}} if chat else {"text": piece}
                yield self.data({"choices": [{**content, "finish_reason": None}]})
                if self.break_off:
                    return
            if self.error_in_stream:
                yield self.data({"error": {"message": self.error_in_stream}})
            yield self.data({"choices": [{**({"delta": {}} if chat else {"text": ""}), "finish_reason": "stop"}]})
            speculation = {"num_spec_steps": 2, "num_draft_tokens": 8, "num_accepted_draft_tokens": 6}
            usage = {"prompt_tokens": 4, "completion_tokens": 9}
            yield self.data({"choices": [], "usage": usage, "metrics": {"speculative_decoding": speculation}})
            yield "data: [DONE]\n\n"
        finally:
            self.at_once -= 1

    @staticmethod
    def data(chunk: dict[str, Any]) -> str:
        return f"data: {json.dumps(chunk)}\n\n"


@pytest.fixture
def endpoint() -> Iterator[FakeEndpoint]:
    fake = FakeEndpoint()
    routes = [Route("/v1/models", fake.models), Route("/metrics", fake.show_metrics)]
    routes += [Route(path, fake.complete, methods=["POST"]) for path in ("/v1/completions", "/v1/chat/completions")]
    listening = socket.create_server(("127.0.0.1", 0))
    fake.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    server = uvicorn.Server(uvicorn.Config(Starlette(routes=routes), log_level="error", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield fake
    server.should_exit = True
    thread.join()
    listening.close()
