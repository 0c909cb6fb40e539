"""Workers that come with the load, on real Ray Serve; and how an endpoint with streams that run is stopped."""

from __future__ import annotations

import json
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.model, pytest.mark.timeout(600)]

COMMAND = "serve"
SETTINGS = {"min_replicas": 1, "max_replicas": 2, "max_sequences": 2, "queue_limit": 8}
WORKER = "ray::ServeReplica:kadence:Worker"
STREAMS = 6
BODY = {
    "model": "smollm2-135m-instruct",
    "prompt": "One, two",
    "temperature": 0.7,
    "seed": 1,
    "ignore_eos": True,
    "stream": True,
    "stream_options": {"include_usage": True},
}


def stream(url: str, max_tokens: int) -> tuple[str, int, str]:
    """(text, completion tokens, last line) of an answer."""
    text, tokens, last = "", 0, ""
    with httpx.stream("POST", f"{url}/v1/completions", json={**BODY, "max_tokens": max_tokens}, timeout=300) as answer:
        assert answer.status_code == 200, answer.read()
        for line in answer.iter_lines():
            if line and line != "data: [DONE]":
                event: dict[str, Any] = json.loads(line.removeprefix("data: "))
                text += "".join(choice["text"] for choice in event["choices"])
                tokens = (event.get("usage") or {}).get("completion_tokens", tokens)
            last = line or last
    return text, tokens, last


def workers(kadence: Any) -> int:
    return sum(WORKER in line for line in kadence.descendants().values())


def taken_in(kadence: Any) -> float:
    return kadence.metric("kadence_running_sequences") + kadence.metric("kadence_waiting_requests")


def test_more_requests_than_places_bring_another_worker_and_every_stream_has_all_of_its_text(
    kadence, eventually
) -> None:
    assert workers(kadence) == 1
    with ThreadPoolExecutor(STREAMS) as pool:
        asked = [pool.submit(stream, kadence.url, 400) for _ in range(STREAMS)]
        eventually(lambda: workers(kadence) == 2, within=120)
        eventually(lambda: kadence.metric("kadence_workers") == 2, within=120)
        answers = [each.result() for each in asked]
    assert {(tokens, last) for _, tokens, last in answers} == {(400, "data: [DONE]")}


def test_a_seeded_text_is_the_same_from_both_workers(kadence) -> None:
    with ThreadPoolExecutor(STREAMS) as pool:
        answers = list(pool.map(lambda _: stream(kadence.url, 24), range(STREAMS)))
    assert len({text for text, _, _ in answers}) == 1


def test_sigterm_lets_the_streams_of_every_worker_end_and_leaves_no_process(kadence, eventually) -> None:
    """Last: it ends the module's system."""
    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(stream, kadence.url, 200) for _ in range(4)]
        eventually(lambda: taken_in(kadence) == 4, within=60)
        kadence.process.send_signal(signal.SIGTERM)
        answers = [each.result() for each in asked]
    assert {(tokens, last) for _, tokens, last in answers} == {(200, "data: [DONE]")}
    assert kadence.process.wait(60) == 0
    assert not kadence.descendants()
