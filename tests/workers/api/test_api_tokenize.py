"""Text to tokens and back, in the shape of vLLM's routes."""

from collections.abc import Callable
from typing import Any

import httpx
import pytest

Ask = Callable[..., httpx.Response]
HI = [{"role": "user", "content": "hi"}]


def test_a_prompt_is_tokenised_as_a_completion_would_be(ask: Ask, backend: Any) -> None:
    body = ask("POST", "/tokenize", json={"model": "tiny", "prompt": "wörld"}).json()
    assert body["tokens"] == backend.tokenizer.encode("wörld")
    assert (body["count"], body["max_model_len"], body["token_strs"]) == (6, 200, None)


def test_messages_are_tokenised_as_a_chat_would_be(ask: Ask, chat: Ask, backend: Any) -> None:
    tokens = ask("POST", "/tokenize", json={"messages": HI}).json()["tokens"]
    chat()
    assert tokens == list(backend.requests[0].prompt_token_ids)


def test_the_turn_of_the_assistant_can_be_left_out(ask: Ask, backend: Any) -> None:
    tokens = ask("POST", "/tokenize", json={"messages": HI, "add_generation_prompt": True}).json()["tokens"]
    assert backend.tokenizer.decode(tokens) == "<user>hi<assistant>"


def test_tokens_are_named_on_demand(ask: Ask) -> None:
    body = ask("POST", "/tokenize", json={"prompt": "a b", "return_token_strs": True}).json()
    assert body["token_strs"] == ["a", "Ġ", "b"]


def test_a_prompt_over_the_context_is_counted_and_not_refused(ask: Ask) -> None:
    assert ask("POST", "/tokenize", json={"prompt": "x" * 300}).json()["count"] == 300


def test_an_empty_prompt_has_no_tokens(ask: Ask) -> None:
    assert ask("POST", "/tokenize", json={"prompt": ""}).json()["tokens"] == []


@pytest.mark.parametrize("text", ["Hello 🎉 wörld", ""])
def test_tokens_give_back_their_text(ask: Ask, text: str) -> None:
    tokens = ask("POST", "/tokenize", json={"prompt": text}).json()["tokens"]
    assert ask("POST", "/detokenize", json={"model": "tiny", "tokens": tokens}).json() == {"prompt": text}


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("/tokenize", {}, 400, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": HI}, 400, "prompt"),
        ("/tokenize", {"prompt": ["a"]}, 400, "prompt"),
        ("/tokenize", {"messages": [{"role": "tool", "content": "x"}]}, 400, "messages[0].tool_call_id"),
        ("/tokenize", {"prompt": "a", "model": "other"}, 404, "model"),
        ("/tokenize", {"prompt": "a", "colour": 1}, 400, "colour"),
        ("/detokenize", {}, 400, "tokens"),
        ("/detokenize", {"tokens": [-1]}, 400, "tokens[0]"),
        ("/detokenize", {"tokens": [100_000]}, 400, "tokens"),
        ("/detokenize", {"tokens": "a"}, 400, "tokens"),
        ("/detokenize", {"tokens": [1], "model": "other"}, 404, "model"),
    ],
)
def test_a_bad_field_is_named(ask: Ask, path: str, body: dict[str, Any], status: int, param: str) -> None:
    response = ask("POST", path, json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (status, param)
