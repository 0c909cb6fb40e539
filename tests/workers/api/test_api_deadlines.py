"""Deadlines, a server that stops, and a worker that does not answer, as a client sees them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

import workers.generation
from workers.backend import Draining, Overloaded
from workers.deadlines import DEADLINE, STALLED

Ask = Callable[..., httpx.Response]


@pytest.fixture
def chat_within(ask: Ask) -> Ask:
    """A chat request that allows so many seconds."""

    def post(seconds: str, **fields: Any) -> httpx.Response:
        body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], **fields}
        return ask("POST", "/v1/chat/completions", json=body, headers={"x-kadence-timeout": seconds})

    return post


def allowed_s(backend: Any) -> float:
    deadline_at: float = backend.requests[-1].deadline_at
    return deadline_at - backend.requests[-1].created_at


def test_every_request_has_the_servers_deadline(chat: Ask, backend: Any) -> None:
    backend.request_timeout_s = 7.0
    chat()
    assert allowed_s(backend) == pytest.approx(7.0)


def test_a_client_may_allow_less_and_not_more(chat_within: Ask, backend: Any) -> None:
    found = [chat_within(seconds) and allowed_s(backend) for seconds in ("2.5", "100000")]
    assert found == pytest.approx([2.5, 600.0])


@pytest.mark.parametrize("said", ["0", "-1", "soon", "nan", "inf", "1e3", "", "99999999"])
def test_a_time_that_is_none_is_refused_by_name(chat_within: Ask, backend: Any, said: str) -> None:
    response = chat_within(said)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "x-kadence-timeout")
    assert backend.requests == []


def test_a_deadline_before_the_first_chunk_is_a_408_that_need_not_be_repeated(chat: Ask, backend: Any) -> None:
    backend.failure, backend.chunks_before = DEADLINE, 0
    response = chat(stream=True)
    assert (response.status_code, response.json()["error"]["code"]) == (408, "deadline_exceeded")
    assert response.headers["x-should-retry"] == "false"


def test_a_deadline_after_the_first_chunk_is_an_error_object_and_the_end(chat: Ask, backend: Any) -> None:
    backend.failure = DEADLINE
    response = chat(stream=True)
    *_, last, done, rest = response.text.split("\n\n")
    assert response.status_code == 200
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "deadline_exceeded"
    assert (done, rest) == ("data: [DONE]", "")


def test_an_answer_that_is_not_streamed_in_time_is_a_408(chat: Ask, backend: Any) -> None:
    backend.failure = DEADLINE
    assert chat().status_code == 408


def test_a_worker_that_does_not_answer_holds_nobody_beyond_the_deadline(
    chat_within: Ask, backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers.generation, "GRACE_S", 0.02)
    backend.stalls, backend.chunks_before = True, 0
    started = time.monotonic()
    assert chat_within("0.05", stream=True).status_code == 408
    assert time.monotonic() - started < 5
    assert backend.cancelled == [backend.requests[0].request_id]


def test_one_that_falls_silent_in_the_middle_is_an_error_object_and_the_end(
    chat_within: Ask, backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers.generation, "GRACE_S", 0.02)
    backend.stalls = True
    text = chat_within("0.2", stream=True).text
    assert '"deadline_exceeded"' in text.split("\n\n")[-3]
    assert text.endswith("data: [DONE]\n\n")


def test_a_request_that_got_no_further_says_so(chat: Ask, backend: Any) -> None:
    backend.failure, backend.chunks_before = STALLED, 0
    response = chat(stream=True)
    assert (response.status_code, "got no further" in response.text) == (503, True)


def test_one_that_had_to_make_room_is_a_429_with_the_queues_pace(chat: Ask, backend: Any) -> None:
    backend.refusal = Overloaded(7.2, "the request waited too long for its turn")
    response = chat(stream=True)
    assert (response.status_code, response.headers["retry-after"]) == (429, "8")
    assert "waited too long" in response.json()["error"]["message"]


def test_a_server_that_stops_takes_nothing_in_and_says_so(chat: Ask, backend: Any) -> None:
    backend.refusal = Draining()
    response = chat(stream=True)
    assert (response.status_code, response.headers["retry-after"]) == (503, "5")
    assert "stopping" in response.json()["error"]["message"]


def test_health_says_that_the_server_stops(ask: Ask, backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def stopping() -> bool:
        raise Draining

    monkeypatch.setattr(backend, "ready", stopping)
    response = ask("GET", "/health")
    assert (response.status_code, "stopping" in response.json()["error"]["message"]) == (503, True)
