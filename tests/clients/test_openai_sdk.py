"""The OpenAI SDK over HTTP, against the real model: synchronous, asynchronous, streaming."""

import asyncio
from typing import Any

import openai
import pytest
from openai.types import CompletionUsage

MODEL = "smollm2-135m-instruct"
HI: Any = [{"role": "user", "content": "What is the capital of France?"}]
ASKED: Any = {"model": MODEL, "messages": HI, "max_tokens": 16, "temperature": 0}


@pytest.fixture
def client(endpoint: Any) -> Any:
    with openai.OpenAI(base_url=endpoint.base_url, api_key="unused", max_retries=0) as client:
        yield client


def counted(usage: CompletionUsage | None) -> tuple[int, int, int]:
    """What both answers cost; how much of the prompt was still in the prefix cache is another request's doing."""
    assert usage is not None
    return usage.prompt_tokens, usage.completion_tokens, usage.total_tokens


def test_answers_streams_and_the_asynchronous_client_agree(client: openai.OpenAI, endpoint: Any) -> None:
    whole = client.chat.completions.create(**ASKED)
    parts = list(client.chat.completions.create(**ASKED, stream=True, stream_options={"include_usage": True}))

    async def ask() -> list[str]:
        async with openai.AsyncOpenAI(base_url=endpoint.base_url, api_key="unused", max_retries=0) as asynchronous:
            answers = [asynchronous.chat.completions.create(**ASKED) for _ in range(3)]
            return [answer.choices[0].message.content or "" for answer in await asyncio.gather(*answers)]

    text = whole.choices[0].message.content
    assert "Paris" in (text or "")
    assert "".join(part.choices[0].delta.content or "" for part in parts if part.choices) == text
    assert counted(parts[-1].usage) == counted(whole.usage)
    assert asyncio.run(ask()) == [text] * 3


def test_several_choices_with_log_probabilities(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(**{**ASKED, "temperature": 1}, n=3, seed=7, logprobs=True, top_logprobs=2)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert answer.usage is not None
    scored = [choice.logprobs.content for choice in answer.choices if choice.logprobs and choice.logprobs.content]
    assert sum(map(len, scored)) == answer.usage.completion_tokens


def test_predicted_outputs_are_counted_and_change_nothing(client: openai.OpenAI) -> None:
    plain = client.chat.completions.create(**ASKED).choices[0].message.content or ""
    predicted = client.chat.completions.create(**ASKED, prediction={"type": "content", "content": plain})
    assert predicted.choices[0].message.content == plain
    assert predicted.usage is not None
    assert predicted.usage.completion_tokens_details is not None
    assert predicted.usage.completion_tokens_details.accepted_prediction_tokens is not None


def test_an_error_of_the_endpoint_is_the_sdks_own(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(**{**ASKED, "model": "gpt-99"})
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(**ASKED, frequency_penalty=9)
    assert bad.value.param == "frequency_penalty"
