"""The benchmark's client, against a server that speaks as the endpoint's does."""

from __future__ import annotations

import asyncio
import json

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route

from benchmarks.stream_client import Streamed, StreamError, stream
from workers.http_server import HttpServer
from workers.sse import DONE, frame


async def echo(request: Request) -> StreamingResponse:
    asked = await request.json()

    async def events() -> object:
        for text in asked["texts"]:
            yield frame({"text": text}) + frame({"text": "!"})
        yield DONE

    return StreamingResponse(events())  # type: ignore[arg-type]


def ask(path: str, texts: list[str]) -> Streamed:
    async def inside() -> Streamed:
        async def refuse(_: Request) -> PlainTextResponse:
            return PlainTextResponse("no such stream", 404)

        app = Starlette(routes=[Route("/echo", echo, methods=["POST"]), Route("/no", refuse, methods=["POST"])])
        server = HttpServer(app, "127.0.0.1", 0)
        try:
            return await asyncio.wait_for(stream("127.0.0.1", server.port, path, {"texts": texts}), 20)
        finally:
            await server.stop(1.0)

    return asyncio.run(inside())


def test_every_event_is_read_whatever_its_text() -> None:
    texts = ["a", "data: {", "line\nbreak", "\u2028", "}"]
    found = ask("/echo", texts)
    assert [event["text"] for event in found.events()] == [given for text in texts for given in (text, "!")]
    assert 0 < found.events_at[0] <= found.events_at[-1]


def test_an_answer_that_is_no_stream_is_an_error_that_shows_it() -> None:
    with pytest.raises(StreamError, match="no such stream"):
        ask("/no", []).events()


def test_what_is_cut_off_is_an_error() -> None:
    with pytest.raises(StreamError):
        Streamed((1.0,), b"data: " + json.dumps({"text": "a"}).encode()).events()
