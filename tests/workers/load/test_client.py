import asyncio
import time
from pathlib import Path

import pytest

from workers.load.client import Bounds, LoadError, Run, send_load, served_model
from workers.load.events import RequestEvent, SpeculationCounts
from workers.load.mix import parse_mix, planned_requests

MIX = """
version: 1
cohorts:
  - {name: a, prompts: [hi], max_tokens: 9}
  - {name: b, prompts: [ho], endpoint: completions}
"""


def drive(endpoint, bounds: Bounds, concurrency: int = 1, run: Run | None = None, **how) -> list[RequestEvent]:  # type: ignore[no-untyped-def]
    run = run or Run()
    planned = planned_requests(parse_mix(MIX, "mix.yaml", Path()), how.pop("seed", None))
    asyncio.run(send_load(endpoint.url, "tiny", planned, concurrency, bounds, run, **how))
    return run.events


def one(endpoint) -> RequestEvent:  # type: ignore[no-untyped-def]
    (event,) = drive(endpoint, Bounds(30, requests=1))
    return event


def test_the_served_model_is_asked_for(endpoint) -> None:
    assert asyncio.run(served_model(endpoint.url)) == "tiny"


def test_an_endpoint_that_is_not_there_is_one_line() -> None:
    with pytest.raises(LoadError, match=r"^cannot reach http://127\.0\.0\.1:9 \(.*\); is `kadence serve` running.*$"):
        asyncio.run(served_model("http://127.0.0.1:9"))


def test_a_stream_is_read_into_text_tokens_and_speculation(endpoint) -> None:
    event = one(endpoint)
    assert (event.status, event.text, event.finish_reason) == ("ok", "Hello, world", "stop")
    assert (event.prompt_tokens, event.completion_tokens) == (4, 9)
    assert event.speculation == SpeculationCounts(spec_steps=2, draft_tokens=8, accepted_tokens=6)


def test_the_first_text_is_timed_and_not_the_empty_chunk_before_it(endpoint) -> None:
    endpoint.pause_s = 0.1
    event = one(endpoint)
    assert event.ttft_s is not None
    assert event.ttft_s >= 0.1
    assert event.tpot_s is not None
    assert event.tpot_s >= 0.15 / 8


def test_every_request_carries_its_cohort_and_asks_for_usage(endpoint) -> None:
    drive(endpoint, Bounds(30, requests=2))
    assert [headers["x-kadence-cohort"] for headers in endpoint.headers] == ["a", "b"]
    assert all(body["stream_options"] == {"include_usage": True} for body in endpoint.bodies)


def test_each_cohort_goes_to_its_endpoint(endpoint) -> None:
    drive(endpoint, Bounds(30, requests=2))
    assert endpoint.bodies[0]["messages"] == [{"role": "user", "content": "hi"}]
    assert endpoint.bodies[1]["prompt"] == "ho"


def test_both_endpoints_yield_the_same_text(endpoint) -> None:
    assert {event.text for event in drive(endpoint, Bounds(30, requests=2))} == {"Hello, world"}


def test_a_seed_is_sent_only_where_one_was_asked_for(endpoint) -> None:
    drive(endpoint, Bounds(30, requests=1))
    drive(endpoint, Bounds(30, requests=1), seed=11)
    assert [body.get("seed") for body in endpoint.bodies] == [None, 11]


def test_a_key_is_sent_as_a_bearer_token(endpoint) -> None:
    drive(endpoint, Bounds(30, requests=1), api_key="k")
    assert endpoint.headers[0]["authorization"] == "Bearer k"


def test_a_429_is_waited_out_and_counted_and_no_error(endpoint) -> None:
    endpoint.throttle = 3
    event = one(endpoint)
    assert (event.status, event.throttled) == ("ok", 3)
    assert event.ttft_s is not None
    assert event.ttft_s >= 0.15


def test_an_error_answer_is_counted_with_the_servers_words(endpoint) -> None:
    endpoint.error = (400, "max_tokens: too many")
    event = one(endpoint)
    assert (event.status, event.error) == ("error", "HTTP 400: max_tokens: too many")


def test_an_error_inside_a_stream_is_an_error(endpoint) -> None:
    endpoint.error_in_stream = "the worker died"
    event = one(endpoint)
    assert (event.status, event.error) == ("error", "the worker died")


def test_a_stream_that_breaks_off_is_an_error_and_keeps_its_text(endpoint) -> None:
    endpoint.break_off = True
    event = one(endpoint)
    assert (event.status, event.error, event.text) == ("error", "the stream ended without [DONE]", "Hel")


def test_no_more_requests_are_sent_than_asked_for(endpoint) -> None:
    assert len(drive(endpoint, Bounds(30, requests=7), concurrency=3)) == 7
    assert len(endpoint.bodies) == 7


def test_as_many_requests_run_at_once_as_asked_for(endpoint) -> None:
    endpoint.pause_s = 0.02
    drive(endpoint, Bounds(30, requests=12), concurrency=3)
    assert endpoint.most_at_once == 3


def test_a_run_ends_with_its_time_and_lets_what_runs_finish(endpoint) -> None:
    endpoint.pause_s = 0.1
    events = drive(endpoint, Bounds(0.15), concurrency=2)
    assert [event.status for event in events] == ["ok"] * 2


def test_what_does_not_finish_in_the_grace_after_the_end_is_cut_off(endpoint) -> None:
    endpoint.pause_s = 5.0
    begun = time.monotonic()
    (event,) = drive(endpoint, Bounds(0.1, drain_s=0.1))
    assert event.status == "cancelled"
    assert time.monotonic() - begun < 3


def test_stopping_a_run_keeps_what_it_has_seen(endpoint) -> None:
    async def stop_soon() -> list[RequestEvent]:
        run = Run()
        planned = planned_requests(parse_mix(MIX, "mix.yaml", Path()))
        asyncio.get_running_loop().call_later(0.4, run.stop.set)
        await send_load(endpoint.url, "tiny", planned, 1, Bounds(60), run)
        return run.events

    endpoint.pause_s = 0.05
    events = asyncio.run(stop_soon())
    assert events[0].status == "ok"
    assert events[-1].status == "cancelled"


def test_an_endpoint_that_only_fails_ends_the_run(endpoint) -> None:
    endpoint.error = (500, "out of order")
    run = Run()
    drive(endpoint, Bounds(60), concurrency=2, run=run)
    assert run.gone == "HTTP 500: out of order"
    assert len(run.events) < 20
