"""A real client over a real socket, and clients that leave."""

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from workers.api import create_app
from workers.backend import Overloaded

REPLY = "Hello 🎉 wörld, this is a reply."
HI: Any = [{"role": "user", "content": "hi"}]


@pytest.fixture
def client(base_url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{base_url}/v1", api_key="team-ide", max_retries=0) as client:
        yield client


def test_the_openai_client_chats(client: openai.OpenAI, backend: Any) -> None:
    answer = client.chat.completions.create(model="tiny", messages=HI, temperature=0, seed=1, stop=["never"])
    assert answer.choices[0].message.content == REPLY
    assert answer.usage is not None
    assert answer.usage.completion_tokens == len(REPLY.encode())
    assert answer.model_extra is not None
    assert answer.model_extra["metrics"]["speculative_decoding"]["num_spec_tokens"] == 4
    assert backend.requests[0].cohort == "code"


def test_the_openai_client_streams_a_chat(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="tiny", messages=HI, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == REPLY
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == len(REPLY.encode())


def test_the_openai_client_completes(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="tiny", prompt=["a", "b"], max_tokens=5)
    assert [c.text for c in answer.choices] == ["Hello", "Hello"]


def test_the_openai_client_streams_a_completion(client: openai.OpenAI) -> None:
    stream = client.completions.create(model="tiny", prompt="a", max_tokens=50, stream=True)
    assert "".join(c.choices[0].text for c in stream) == REPLY


def test_the_openai_client_lists_models(client: openai.OpenAI) -> None:
    assert [m.id for m in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").id == "tiny"


def test_the_openai_client_raises_its_own_errors(client: openai.OpenAI, backend: Any) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model="tiny", messages=HI, presence_penalty=3)
    assert bad.value.param == "presence_penalty"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")
    backend.refusal = Overloaded(1)
    with pytest.raises(openai.RateLimitError):
        client.chat.completions.create(model="tiny", messages=HI)


def test_the_openai_client_sees_an_error_in_a_stream(client: openai.OpenAI, backend: Any) -> None:
    backend.failure = "broken"
    with pytest.raises(openai.APIError, match="worker failed"):
        list(client.completions.create(model="tiny", prompt="a", max_tokens=50, stream=True))


def test_the_openai_client_asks_for_all_that_it_has_fields_for(client: openai.OpenAI, backend: Any) -> None:
    answer = client.chat.completions.create(
        model="tiny",
        messages=[{"role": "developer", "content": "d"}, *HI],
        n=2,
        logprobs=True,
        top_logprobs=3,
        logit_bias={"5": -100},
        frequency_penalty=0.5,
        presence_penalty=-0.5,
        seed=1,
        max_completion_tokens=50,
        service_tier="auto",
        metadata={"team": "x"},
        safety_identifier="u",
        store=False,
        prediction={"type": "content", "content": "Hello"},
        response_format={"type": "text"},
        extra_body={"top_k": 5, "min_p": 0.1, "repetition_penalty": 1.1, "ignore_eos": True, "min_tokens": 2},
    )
    assert [choice.message.content for choice in answer.choices] == [REPLY, REPLY]
    scored = answer.choices[0].logprobs
    assert scored is not None
    assert scored.content is not None
    assert len(scored.content[0].top_logprobs) == 3
    assert bytes(b for token in scored.content for b in token.bytes or ()).decode() == REPLY
    assert answer.usage is not None
    assert answer.usage.completion_tokens_details is not None
    assert backend.requests[0].sampling.min_p == 0.1


def test_the_openai_client_reads_echoed_log_probabilities(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="tiny", prompt="a", max_tokens=5, echo=True, logprobs=2, best_of=2)
    (choice,) = answer.choices
    assert choice.text == "aHello"
    assert choice.logprobs is not None
    assert choice.logprobs.tokens == list("aHello")
    assert choice.logprobs.text_offset == list(range(6))


def test_the_asynchronous_openai_client_streams_several_choices_at_once(base_url: str) -> None:
    async def ask(client: openai.AsyncOpenAI) -> dict[int, str]:
        texts: dict[int, str] = {}
        stream = await client.chat.completions.create(
            model="tiny", messages=HI, n=2, stream=True, stream_options={"include_usage": True}, logprobs=True
        )
        async for chunk in stream:
            for choice in chunk.choices:
                texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
        return texts

    async def ask_all() -> list[dict[int, str]]:
        async with openai.AsyncOpenAI(base_url=f"{base_url}/v1", api_key="x", max_retries=0) as client:
            return await asyncio.gather(*(ask(client) for _ in range(4)))

    assert asyncio.run(ask_all()) == [{0: REPLY, 1: REPLY}] * 4


def test_the_openai_clients_stream_helper_gathers_the_whole_answer(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model="tiny", messages=HI, logprobs=True) as stream:
        for _ in stream:
            pass
        whole = stream.get_final_completion()
    assert whole.choices[0].message.content == REPLY
    assert whole.choices[0].finish_reason == "stop"
    assert whole.choices[0].logprobs is not None


def wait_for(cancelled: list[str], count: int) -> None:
    deadline = time.monotonic() + 5
    while len(cancelled) < count and time.monotonic() < deadline:
        time.sleep(0.01)


def test_a_client_that_leaves_a_stream_is_cancelled(base_url: str, backend: Any) -> None:
    backend.stalls = True
    body = {"model": "tiny", "prompt": "a", "stream": True}
    with httpx.Client() as http, http.stream("POST", f"{base_url}/v1/completions", json=body) as response:
        next(response.iter_lines())
    wait_for(backend.cancelled, 1)
    assert backend.cancelled == [backend.requests[0].request_id]


@pytest.mark.parametrize(("stream", "chunks_before"), [(False, 2), (True, 0)])
def test_a_client_that_stops_waiting_is_cancelled(
    base_url: str, backend: Any, stream: bool, chunks_before: int
) -> None:
    backend.stalls, backend.chunks_before = True, chunks_before
    body = {"model": "tiny", "prompt": ["a", "b"], "stream": stream}
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{base_url}/v1/completions", json=body, timeout=0.3)
    wait_for(backend.cancelled, 2)
    assert sorted(backend.cancelled) == sorted(r.request_id for r in backend.requests)


def test_a_stream_that_ends_well_cancels_nothing(client: openai.OpenAI, backend: Any) -> None:
    list(client.completions.create(model="tiny", prompt="a", max_tokens=50, stream=True))
    assert backend.cancelled == []


@pytest.mark.parametrize("leaves_by", ["send fails", "task is cancelled", "leaves before the first event"])
def test_however_a_server_tells_it_the_request_is_cancelled(backend: Any, leaves_by: str) -> None:
    """Servers differ: a failing send, a cancelled task, or a disconnect message."""
    backend.stalls = True
    body = b'{"model": "tiny", "prompt": "a", "stream": true}'
    scope = {
        "type": "http", "asgi": {"version": "3.0", "spec_version": "2.4"}, "http_version": "1.1", "method": "POST",
        "path": "/v1/completions", "raw_path": b"/v1/completions", "query_string": b"", "root_path": "",
        "scheme": "http", "headers": [(b"content-type", b"application/json")],
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2),
    }  # fmt: skip

    async def serve() -> None:
        messages = [{"type": "http.request", "body": body, "more_body": False}]
        started, first_event = asyncio.Event(), asyncio.Event()

        async def receive() -> Any:
            if messages:
                return messages.pop()
            await (started if leaves_by == "leaves before the first event" else asyncio.Event()).wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            started.set()
            if message["type"] == "http.response.body":
                first_event.set()
                if leaves_by == "send fails":
                    raise OSError("connection reset")

        task = asyncio.ensure_future(create_app(backend)(scope, receive, send))
        if leaves_by == "task is cancelled":
            await first_event.wait()
            task.cancel()
        await asyncio.wait_for(asyncio.gather(task, return_exceptions=True), 5)
        for _ in range(10):
            await asyncio.sleep(0)

    asyncio.run(serve())
    assert backend.cancelled == [backend.requests[0].request_id]
