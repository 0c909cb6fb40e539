"""An application behind the endpoint's own HTTP server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route

from workers.http_server import HttpServer

WITHIN_S = 20.0


class App:
    """`/slow` answers half, and the rest when `go` is set."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.log: list[str] = []
        routes = [Route("/", self.hello), Route("/slow", self.slow)]
        self.asgi = Starlette(routes=routes, lifespan=self.lifespan)

    @contextlib.asynccontextmanager
    async def lifespan(self, _: Starlette) -> AsyncIterator[None]:
        self.log.append("up")
        yield
        self.log.append("down")

    async def hello(self, request: Request) -> PlainTextResponse:
        assert request.client is not None
        return PlainTextResponse(request.client.host)

    async def slow(self, _: Request) -> StreamingResponse:
        async def parts() -> AsyncIterator[bytes]:
            yield b"begun "
            await self.go.wait()
            yield b"ended"

        return StreamingResponse(parts())


def run(test: Callable[[App, HttpServer, httpx.AsyncClient], Awaitable[Any]]) -> Any:
    async def inside() -> Any:
        app = App()
        server = HttpServer(app.asgi, "127.0.0.1", 0)
        try:
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", timeout=WITHIN_S) as client:
                return await asyncio.wait_for(test(app, server, client), WITHIN_S)
        finally:
            await server.stop(1.0)

    return asyncio.run(inside())


def test_it_answers_from_the_moment_it_is_made() -> None:
    async def test(app: App, server: HttpServer, client: httpx.AsyncClient) -> tuple[str, list[str], bool]:
        return (await client.get("/")).text, list(app.log), server.is_running

    assert run(test) == ("127.0.0.1", ["up"], True)


def test_an_answer_that_runs_ends_before_it_stops_and_nobody_new_gets_in() -> None:
    async def test(app: App, server: HttpServer, client: httpx.AsyncClient) -> tuple[str, list[str], bool]:
        async with client.stream("GET", "/slow") as answer:
            parts = answer.aiter_text()
            text = await anext(parts)
            stopping = asyncio.create_task(server.stop(WITHIN_S))
            await asyncio.sleep(0.4)
            async with httpx.AsyncClient(base_url=client.base_url) as other:
                with pytest.raises(httpx.HTTPError):
                    await other.get("/")
            app.go.set()
            text += "".join([part async for part in parts])
        await stopping
        return text, app.log, server.is_running

    assert run(test) == ("begun ended", ["up", "down"], False)


def test_an_answer_that_does_not_end_in_time_is_cut_off() -> None:
    async def test(app: App, server: HttpServer, client: httpx.AsyncClient) -> bool:
        async with client.stream("GET", "/slow") as answer:
            parts = answer.aiter_raw()
            await anext(parts)
            await server.stop(0.1)
            with contextlib.suppress(httpx.HTTPError):
                await anext(parts, b"")
        return server.is_running

    assert run(test) is False


def test_a_port_that_is_taken_is_said_at_once() -> None:
    async def test(app: App, server: HttpServer, client: httpx.AsyncClient) -> None:
        with pytest.raises(OSError, match=r"[Aa]ssign|[Pp]ermission"):
            HttpServer(app.asgi, "192.0.2.1", server.port)

    run(test)


def test_two_replicas_share_a_port() -> None:
    async def test(app: App, server: HttpServer, client: httpx.AsyncClient) -> str:
        other = HttpServer(app.asgi, "127.0.0.1", server.port)
        await server.stop(1.0)
        async with httpx.AsyncClient(base_url=client.base_url, timeout=WITHIN_S) as late:
            answer = await late.get("/")
        await other.stop(1.0)
        return answer.text

    assert run(test) == "127.0.0.1"
