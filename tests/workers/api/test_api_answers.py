"""What a good request gets, streamed and not."""

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

REPLY = "Hello 🎉 wörld, this is a reply."
TOKENS = len(REPLY.encode())
Post = Callable[..., httpx.Response]


def events(response: httpx.Response) -> list[dict[str, Any]]:
    """The events of a stream; fails where the format is not that of server-sent events ending in [DONE]."""
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/event-stream")
    *frames, done, rest = response.text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    assert all(f.startswith("data: ") and "\n" not in f for f in frames)
    return [json.loads(f.removeprefix("data: ")) for f in frames]


def test_a_chat_answer_has_the_shape_of_openai(chat: Post) -> None:
    body = chat().json()
    assert body["id"].startswith("chatcmpl-")
    assert (body["object"], body["model"]) == ("chat.completion", "tiny")
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": REPLY, "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]


def test_a_completion_has_the_shape_of_openai(complete: Post) -> None:
    body = complete().json()
    assert body["id"].startswith("cmpl-")
    assert body["object"] == "text_completion"
    assert body["choices"] == [{"index": 0, "text": REPLY, "logprobs": None, "finish_reason": "stop"}]


def test_usage_comes_from_the_workers_record(complete: Post) -> None:
    usage = complete(prompt="hello").json()["usage"]
    details = {"prompt_tokens_details": {"cached_tokens": 0}}
    assert usage == {"prompt_tokens": 5, "completion_tokens": TOKENS, "total_tokens": 5 + TOKENS, **details}


def test_usage_says_how_much_of_the_prompt_was_cached(complete: Post, backend: Any) -> None:
    backend.cached_tokens = [3]
    assert complete(prompt="hello").json()["usage"]["prompt_tokens_details"] == {"cached_tokens": 3}


def test_a_prompt_that_several_choices_share_is_cached_as_far_as_it_was_before_them(
    complete: Post, backend: Any
) -> None:
    """They find each other's, which is nothing that the client was spared."""
    backend.cached_tokens = [0, 4]
    assert complete(prompt="hello", n=2).json()["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}


def test_cached_tokens_of_several_prompts_are_added(complete: Post, backend: Any) -> None:
    backend.cached_tokens = [3, 4]
    assert complete(prompt=["hello", "world"]).json()["usage"]["prompt_tokens_details"] == {"cached_tokens": 7}


def test_max_tokens_ends_with_length(complete: Post) -> None:
    choice = complete(max_tokens=5).json()["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("Hello", "length")


def test_completions_default_to_16_tokens(complete: Post, backend: Any) -> None:
    complete(max_tokens=None)
    assert backend.requests[0].sampling.max_tokens == 16


def test_chat_defaults_to_the_rest_of_the_context(chat: Post, backend: Any) -> None:
    chat()
    request = backend.requests[0]
    assert request.sampling.max_tokens == 200 - len(request.prompt_token_ids)


def test_a_stop_string_ends_the_text_before_it(complete: Post) -> None:
    choice = complete(stop=["this", "never"]).json()["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("Hello 🎉 wörld, ", "stop")


def test_sampling_fields_reach_the_engine(complete: Post, backend: Any) -> None:
    fields = {"temperature": 0, "top_p": 0.5, "top_k": 7, "seed": -3, "ignore_eos": True, "min_tokens": 4, "stop": "x"}
    complete(**fields)
    sampling = backend.requests[0].sampling
    assert {name: getattr(sampling, name) for name in fields} == {**fields, "stop": ("x",)}


def test_max_completion_tokens_counts_for_chat(chat: Post, backend: Any) -> None:
    chat(max_completion_tokens=9)
    assert backend.requests[0].sampling.max_tokens == 9


def test_text_parts_are_joined_by_line_breaks(chat: Post, backend: Any) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    chat(messages=[{"role": "system", "content": "s"}, {"role": "user", "content": parts}])
    assert backend.tokenizer.decode(backend.requests[0].prompt_token_ids) == "<system>s<user>a\nb<assistant>"


def test_an_answer_can_be_sent_back_as_history(chat: Post) -> None:
    message = chat().json()["choices"][0]["message"]
    user = {"role": "user", "content": "again"}
    assert chat(messages=[user, message, user]).status_code == 200


@pytest.mark.parametrize(
    ("prompt", "sizes"), [("ab", [2]), (["ab", "c"], [2, 1]), ([1, 2, 3], [3]), ([[1, 2], [3]], [2, 1])]
)
def test_every_form_of_prompt_gives_a_choice_each(
    complete: Post, backend: Any, prompt: object, sizes: list[int]
) -> None:
    body = complete(prompt=prompt).json()
    assert [c["index"] for c in body["choices"]] == list(range(len(sizes)))
    assert [len(r.prompt_token_ids) for r in backend.requests] == sizes
    assert body["usage"]["prompt_tokens"] == sum(sizes)
    assert len({r.request_id for r in backend.requests}) == len(sizes)


@pytest.mark.parametrize(
    "neutral",
    [
        {"presence_penalty": 0, "frequency_penalty": 0.0, "n": 1, "logit_bias": {}, "logprobs": False, "tools": []},
        {"response_format": {"type": "text"}, "tool_choice": "none", "prediction": None, "store": False},
        {"best_of": 1, "echo": False, "top_k": -1, "chat_template_kwargs": {}, "reasoning_effort": "none"},
        {"temperature": None, "stop": None, "max_tokens": None, "user": None, "metadata": None, "stream": None},
    ],
)
def test_neutral_values_of_unsupported_fields_are_accepted(chat: Post, neutral: dict[str, Any]) -> None:
    assert chat(**neutral).status_code == 200


def test_the_service_tier_is_echoed(chat: Post) -> None:
    assert chat(service_tier="flex").json()["service_tier"] == "flex"
    assert "service_tier" not in chat().json()


def test_a_chat_stream_begins_with_the_role_and_ends_with_the_reason(chat: Post) -> None:
    chunks = events(chat(stream=True))
    assert {c["object"] for c in chunks} == {"chat.completion.chunk"}
    assert len({c["id"] for c in chunks}) == 1
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert chunks[-1]["choices"][0] == {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in chunks) == REPLY
    assert all("usage" not in c for c in chunks)


def test_a_completion_stream_gives_the_same_text(complete: Post) -> None:
    chunks = events(complete(stream=True))
    assert "".join(c["choices"][0]["text"] for c in chunks) == REPLY
    assert [c["choices"][0]["finish_reason"] for c in chunks[-2:]] == [None, "stop"]


def test_usage_in_a_stream_comes_once_and_last_and_only_when_asked(complete: Post) -> None:
    *chunks, last = events(complete(stream=True, stream_options={"include_usage": True}))
    assert all(c["usage"] is None and c["choices"] for c in chunks)
    assert last["choices"] == []
    whole = complete().json()
    assert (last["usage"], last["metrics"]) == (whole["usage"], whole["metrics"])


def test_the_choices_of_a_stream_are_told_apart_by_index(complete: Post) -> None:
    texts: dict[int, str] = {}
    for chunk in events(complete(prompt=["a", "b"], stream=True)):
        (choice,) = chunk["choices"]
        texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
    assert texts == {0: REPLY, 1: REPLY}


def test_an_event_is_ascii_so_that_no_client_cuts_it_at_a_unicode_line_end(complete: Post, backend: Any) -> None:
    backend.reply = "a\u2028b\x85c"
    response = complete(stream=True)
    assert response.text.isascii()
    assert "".join(c["choices"][0]["text"] for c in events(response)) == backend.reply


def test_the_speculation_block_agrees_with_itself_and_the_usage(complete: Post, backend: Any) -> None:
    body = complete().json()
    block = body["metrics"]["speculative_decoding"]
    histogram = block["acceptance_histogram"]
    assert len(histogram) == block["num_spec_tokens"] + 1 == 4 + 1
    assert sum(histogram) == block["num_spec_steps"] > 0
    assert sum(i * n for i, n in enumerate(histogram)) == block["num_accepted_draft_tokens"]
    assert block["mean_acceptance_length"] == 1 + block["num_accepted_draft_tokens"] / block["num_spec_steps"]
    assert block["draft_acceptance_rate"] == block["num_accepted_draft_tokens"] / block["num_draft_tokens"]


def test_plain_steps_are_not_in_the_speculation_block(complete: Post, backend: Any) -> None:
    backend.rounds = ((0, 0), (2, 1))
    histogram = complete(max_tokens=8).json()["metrics"]["speculative_decoding"]["acceptance_histogram"]
    assert histogram == [0, 2, 0]


def test_without_a_drafting_step_there_is_no_speculation_block(complete: Post, backend: Any) -> None:
    backend.rounds = ((0, 0),)
    assert "metrics" not in complete().json()


def test_several_choices_have_no_speculation_block(complete: Post) -> None:
    assert "metrics" not in complete(prompt=["a", "b"]).json()


@pytest.mark.parametrize(
    ("headers", "fields", "cohort", "tenant"),
    [
        ({"authorization": "Bearer team-ide"}, {}, "code", "team-ide"),
        ({"authorization": "Bearer sk-a-real-secret"}, {}, "default", None),
        ({"authorization": "Basic team-ide"}, {}, "default", None),
        ({"x-kadence-cohort": "trusted"}, {}, "trusted", None),
        ({}, {"service_tier": "flex"}, "flex", None),
        ({}, {}, "default", None),
    ],
)
def test_the_policy_decides_the_cohort(
    ask: Post, backend: Any, headers: dict[str, str], fields: dict[str, str], cohort: str, tenant: str | None
) -> None:
    ask("POST", "/v1/completions", json={"model": "tiny", "prompt": "a", **fields}, headers=headers)
    assert (backend.requests[0].cohort, backend.requests[0].tenant) == (cohort, tenant)
