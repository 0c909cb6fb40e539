"""A line for every request, of what was done for it and never of what it said; and its span."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs

from workers.backend import WorkerError

Ask = Callable[..., httpx.Response]


@pytest.fixture
def logged() -> Iterator[list[Any]]:
    with capture_logs() as lines:
        yield lines


def line_of(logged: list[Any]) -> dict[str, Any]:
    (line,) = [line for line in logged if line["event"] == "request"]
    return dict(line)


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_has_one_line_with_who_asked_and_what_it_took(complete: Ask, logged: list[Any], stream: bool) -> None:
    response = complete(stream=stream, n=2)
    line = line_of(logged)
    known = ("route", "status", "cohort", "stream", "choices", "prompt_tokens", "finish_reasons", "method")
    assert {name: line[name] for name in known} == {
        "route": "/v1/completions", "status": 200, "cohort": "default", "stream": stream, "choices": 2,
        "prompt_tokens": 4, "finish_reasons": ("stop", "stop"), "method": "POST",
    }  # fmt: skip
    assert line["request_id"] == response.headers["x-request-id"]
    assert line["completion_tokens"] > line["accepted_tokens"] > 0
    assert line["duration_ms"] >= line["processing_ms"] >= 0
    assert line["ttft_s"] >= 0


def test_a_request_that_is_refused_has_the_reason_in_its_line(complete: Ask, logged: list[Any]) -> None:
    complete(temperature=-1)
    line = line_of(logged)
    assert (line["status"], line["error"], line["log_level"]) == (400, "invalid_value", "info")
    assert "cohort" not in line


def test_a_request_that_fails_has_its_line(complete: Ask, backend: Any, logged: list[Any]) -> None:
    backend.refusal = WorkerError("gone")
    complete()
    assert (line_of(logged)["status"], line_of(logged)["error"]) == (503, "service_unavailable")


def test_what_is_asked_for_again_and_again_is_for_debugging_only(ask: Ask, logged: list[Any]) -> None:
    for path in ("/health", "/metrics"):
        ask("GET", path)
    assert {line["log_level"] for line in logged if line["event"] == "request"} == {"debug"}


def test_no_text_of_a_client_is_in_a_line(ask: Ask, backend: Any, logged: list[Any]) -> None:
    headers = {
        "authorization": "Bearer CANARY",
        "x-note": "CANARY",
        "x-request-id": "CANARY\tx",
        "user-agent": "CANARY",
    }
    body = {
        "model": "tiny", "prompt": "CANARY", "user": "CANARY", "metadata": {"CANARY": "CANARY"}, "stop": "CANARY",
        "max_tokens": 50,
    }  # fmt: skip
    ask("POST", "/v1/completions", json=body, headers=headers)
    ask("POST", "/v1/completions", json={**body, "CANARY": 1}, headers=headers)
    ask("POST", "/v1/completions", json={**body, "model": "CANARY"}, headers=headers)
    ask("GET", "/v1/models/CANARY?CANARY=CANARY", headers=headers)
    ask("GET", "/CANARY", headers=headers)
    ask("CANARY-METHOD", "/v1/models", headers=headers)
    assert len(logged) >= 6
    assert "CANARY" not in str(logged)
    assert backend.reply not in str(logged)


def test_the_line_of_a_stream_whose_client_left_says_that_it_is_unfinished(
    base_url: str, backend: Any, logged: list[Any]
) -> None:
    backend.stalls = True
    body = {"model": "tiny", "prompt": "a", "stream": True}
    with httpx.Client() as http, http.stream("POST", f"{base_url}/v1/completions", json=body) as response:
        next(response.iter_lines())

    async def wait() -> None:
        for _ in range(500):
            if any(line["event"] == "request" for line in logged):
                return
            await asyncio.sleep(0.01)

    asyncio.run(wait())
    assert line_of(logged)["finish_reasons"] == ("unfinished",)
