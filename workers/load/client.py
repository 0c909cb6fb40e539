"""Closed-loop streaming traffic: `concurrency` clients, each sending its next request when the last one has ended."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

import httpx

from workers.load.events import RequestEvent, SpeculationCounts
from workers.load.mix import PlannedRequest

COHORT_HEADER = "x-kadence-cohort"
CONNECT_TIMEOUT_S = 5.0
SILENCE_TIMEOUT_S = 120.0
DRAIN_S = 30.0
MAX_RETRY_AFTER_S = 30.0
GIVE_UP_AFTER = 5
"""Failed connections in a row after which the endpoint counts as gone."""

OnEvent = Callable[[RequestEvent], None]
OnText = Callable[[], None]


class LoadError(RuntimeError):
    """The endpoint cannot be used; one line that says what to do."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """A run ends at the first of: `duration_s` seconds, `requests` requests. What runs then may take drain_s more."""

    duration_s: float
    requests: int | None = None
    drain_s: float = DRAIN_S


@dataclass(slots=True)
class Run:
    """What a run has seen so far; `stop` ends it early, as Ctrl-C does."""

    events: list[RequestEvent] = field(default_factory=list)
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    gone: str | None = None


async def served_model(url: str, api_key: str | None = None) -> str:
    """Id of the first model that the endpoint at `url` serves. Raises LoadError."""
    try:
        async with _client(url, api_key, 1) as client:
            answer = await client.get("/v1/models")
            answer.raise_for_status()
            return str(answer.json()["data"][0]["id"])
    except httpx.HTTPStatusError as error:
        raise LoadError(f"{url}/v1/models answered {_error_of(error.response)}") from error
    except httpx.InvalidURL as error:
        raise LoadError(f"--url {url}: {error}") from error
    except httpx.HTTPError as error:
        raise LoadError(f"cannot reach {url} ({_cause(error)}); is `kadence serve` running there?") from error
    except (ValueError, LookupError, TypeError) as error:
        raise LoadError(f"{url}/v1/models did not answer with a list of models; is it an OpenAI endpoint?") from error


async def send_load(
    url: str,
    model: str,
    planned: Iterator[PlannedRequest],
    concurrency: int,
    bounds: Bounds,
    run: Run,
    *,
    api_key: str | None = None,
    on_event: OnEvent = lambda event: None,
) -> None:
    """Send `planned` requests within `bounds`; every one that was begun ends up in `run.events`."""
    deadline = time.monotonic() + bounds.duration_s
    failed_in_a_row = 0

    async def one_client(client: httpx.AsyncClient) -> None:
        nonlocal failed_in_a_row
        while time.monotonic() < deadline and not run.stop.is_set():
            if bounds.requests is not None and started[0] >= bounds.requests:
                return
            started[0] += 1
            event = await send_request(client, model, next(planned))
            run.events.append(event)
            on_event(event)
            failed_in_a_row = failed_in_a_row + 1 if event.status == "error" and event.first_text_at is None else 0
            if failed_in_a_row >= GIVE_UP_AFTER * concurrency:
                run.gone = event.error
                run.stop.set()

    started = [0]
    async with _client(url, api_key, concurrency) as client:
        clients = [asyncio.create_task(one_client(client)) for _ in range(concurrency)]
        stopping = asyncio.create_task(run.stop.wait())
        everyone = asyncio.ensure_future(asyncio.wait(clients))
        limit = bounds.duration_s + bounds.drain_s
        await asyncio.wait({everyone, stopping}, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
        for task in (*clients, stopping):
            task.cancel()
        results = await asyncio.gather(*clients, stopping, everyone, return_exceptions=True)
    for result in results:
        if isinstance(result, Exception):
            raise result


async def send_request(client: httpx.AsyncClient, model: str, planned: PlannedRequest) -> RequestEvent:
    """Send one request, again after every 429, and read its stream to the end. Cancelling it gives an event too."""
    stream = _Stream(RequestEvent(planned.index, planned.cohort, "ok", time.monotonic(), 0.0))
    try:
        while (wait_s := await _attempt(client, model, planned, stream)) is not None:
            stream.throttled += 1
            await asyncio.sleep(wait_s)
        return stream.event("error" if stream.error else "ok")
    except asyncio.CancelledError:
        # The run is over: this request is part of it all the same. The task ends with its loop condition.
        return stream.event("cancelled")
    except (httpx.HTTPError, ValueError, LookupError, TypeError, AttributeError) as error:
        stream.error = _cause(error)
        return stream.event("error")


@dataclass(slots=True)
class _Stream:
    """A request while it is under way."""

    begun: RequestEvent
    first_text_at: float | None = None
    last_at: float | None = None
    parts: list[str] = field(default_factory=list)
    usage: dict[str, Any] = field(default_factory=dict)
    speculation: SpeculationCounts | None = None
    finish_reason: str | None = None
    throttled: int = 0
    error: str | None = None

    def read(self, chunk: dict[str, Any], now: float) -> None:
        """Take in one decoded `data:` line that came at `now`."""
        if "error" in chunk:
            error = chunk["error"]
            self.error = str(error.get("message", error) if isinstance(error, dict) else error)
        for choice in chunk.get("choices") or ():
            text = (choice.get("delta") or {}).get("content") or choice.get("text") or ""
            self.finish_reason = choice.get("finish_reason") or self.finish_reason
            if text:
                self.parts.append(text)
                self.first_text_at = self.first_text_at or now
            if text or choice.get("finish_reason"):
                self.last_at = now
        self.usage = chunk.get("usage") or self.usage
        block = (chunk.get("metrics") or {}).get("speculative_decoding")
        if block:
            self.speculation = SpeculationCounts(
                block["num_spec_steps"], block["num_draft_tokens"], block["num_accepted_draft_tokens"]
            )

    def event(self, status: Any) -> RequestEvent:
        ended_at = self.last_at if status == "ok" and self.last_at is not None else time.monotonic()
        return replace(
            self.begun,
            status=status,
            ended_at=ended_at,
            first_text_at=self.first_text_at,
            prompt_tokens=self.usage.get("prompt_tokens", 0),
            completion_tokens=self.usage.get("completion_tokens", 0),
            throttled=self.throttled,
            speculation=self.speculation,
            text="".join(self.parts),
            finish_reason=self.finish_reason,
            error=self.error,
        )


async def _attempt(client: httpx.AsyncClient, model: str, planned: PlannedRequest, stream: _Stream) -> float | None:
    """Read one answer into `stream`; seconds to wait before the next attempt when it was a 429, else None."""
    path, body = request_body(model, planned)
    async with client.stream("POST", path, json=body, headers={COHORT_HEADER: planned.cohort}) as answer:
        if answer.status_code == 429:
            return _retry_after_s(answer)
        if answer.status_code != 200:
            await answer.aread()
            stream.error = _error_of(answer)
            return None
        done = False
        async for line in answer.aiter_lines():
            if line.startswith("data:"):
                data = line[5:].strip()
                done = data == "[DONE]"
                if not done:
                    stream.read(json.loads(data), time.monotonic())
    if not done and stream.error is None:
        stream.error = "the stream ended without [DONE]"
    return None


def request_body(model: str, planned: PlannedRequest) -> tuple[str, dict[str, Any]]:
    """Path and JSON body of a planned request."""
    body: dict[str, Any] = {
        "model": model,
        "max_tokens": planned.max_tokens,
        "temperature": planned.temperature,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if planned.seed is not None:
        body["seed"] = planned.seed
    if planned.endpoint == "completions":
        return "/v1/completions", {**body, "prompt": planned.prompt}
    return "/v1/chat/completions", {**body, "messages": [{"role": "user", "content": planned.prompt}]}


def _client(url: str, api_key: str | None, concurrency: int) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        base_url=url.rstrip("/"),
        headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
        timeout=httpx.Timeout(SILENCE_TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
        limits=httpx.Limits(max_connections=concurrency + 1),
        # A proxy is for other machines: not for an endpoint on this one.
        trust_env=urlsplit(url).hostname not in ("127.0.0.1", "localhost", "::1"),
    )


def _retry_after_s(answer: httpx.Response) -> float:
    try:
        return min(max(float(answer.headers.get("retry-after", "1")), 0.05), MAX_RETRY_AFTER_S)
    except ValueError:
        return 1.0


def _error_of(answer: httpx.Response) -> str:
    """Status and, where there is one, the message of the OpenAI error object."""
    try:
        return f"HTTP {answer.status_code}: {answer.json()['error']['message']}"
    except (ValueError, LookupError, TypeError):
        return f"HTTP {answer.status_code}"


def _cause(error: BaseException) -> str:
    return str(error) or type(error).__name__
