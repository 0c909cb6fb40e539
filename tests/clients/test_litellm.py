"""LiteLLM as a proxy in front: what an organisation's gateway passes on, and what it makes of our errors."""

import json
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

MODEL = "smollm2-135m-instruct"
MASTER_KEY = f"sk-{secrets.token_hex(32)}"
"""It refuses to start without one."""
HI: Any = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def proxied(endpoint: Any, background: Any) -> Iterator[str]:
    """Base URL of a LiteLLM proxy whose only model is ours."""
    served = {"model": f"openai/{MODEL}", "api_base": endpoint.base_url, "api_key": "unused"}
    models = [{"model_name": "small", "litellm_params": served}]
    settings = {"num_retries": 0, "request_timeout": 60}

    def arguments(port: int, home: Path) -> list[str]:
        config = home / "config.yaml"
        described = {"model_list": models, "litellm_settings": settings, "general_settings": {"master_key": MASTER_KEY}}
        config.write_text(json.dumps(described))  # JSON is YAML
        return ["--config", str(config), "--host", "127.0.0.1", "--port", str(port), "--telemetry", "False"]

    with background("litellm", "litellm", arguments, "/health/liveliness") as url:
        yield url


@pytest.fixture
def client(proxied: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=proxied, api_key=MASTER_KEY, max_retries=0) as client:
        yield client


def test_the_proxy_passes_a_chat_and_its_usage_on(client: openai.OpenAI, endpoint: Any) -> None:
    asked = {"messages": HI, "max_tokens": 16, "temperature": 0}
    direct = openai.OpenAI(base_url=endpoint.base_url, api_key="unused").chat.completions.create(model=MODEL, **asked)
    answer = client.chat.completions.create(model="small", user="someone", **asked)
    assert answer.choices[0].message.content == direct.choices[0].message.content
    assert answer.usage is not None
    assert direct.usage is not None
    assert answer.usage.completion_tokens == direct.usage.completion_tokens


def test_the_proxy_passes_a_stream_on(client: openai.OpenAI) -> None:
    asked = {"messages": HI, "max_tokens": 16, "temperature": 0}
    whole = client.chat.completions.create(model="small", **asked)
    parts = list(
        client.chat.completions.create(model="small", stream=True, stream_options={"include_usage": True}, **asked)
    )
    text = "".join(part.choices[0].delta.content or "" for part in parts if part.choices)
    assert text == whole.choices[0].message.content
    assert [part.usage.completion_tokens for part in parts if part.usage][-1] == whole.usage.completion_tokens


def test_the_proxy_passes_a_text_completion_on(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="small", prompt="The capital of France is", max_tokens=8, temperature=0)
    assert "Paris" in answer.choices[0].text


def test_the_proxy_tells_our_errors_by_their_kind(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="presence_penalty"):
        client.chat.completions.create(model="small", messages=HI, presence_penalty=3)
    with pytest.raises(openai.BadRequestError, match="context"):
        client.chat.completions.create(model="small", messages=[{"role": "user", "content": "word " * 2000}])
