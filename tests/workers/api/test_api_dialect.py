"""Choices, echo and log-probabilities: what the OpenAI API gives beside plain text."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from statistics import mean
from typing import Any

import httpx
import pytest

from controlplane.policy import parse_policy
from workers.sequence import EngineRequest, TokenLogprob

REPLY = "Hello 🎉 wörld, this is a reply."
Post = Callable[..., httpx.Response]


def events(response: httpx.Response) -> list[dict[str, Any]]:
    assert response.status_code == 200, response.text
    *frames, done, rest = response.text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    return [json.loads(f.removeprefix("data: ")) for f in frames]


def by_seed(request: EngineRequest) -> str:
    return f"seed {request.sampling.seed}"


# Sampling fields


FIELDS: dict[str, Any] = {
    "min_p": 0.25,
    "repetition_penalty": 1.5,
    "presence_penalty": -0.5,
    "frequency_penalty": 2,
    "stop_token_ids": [7, 9],
}


@pytest.mark.parametrize("name", FIELDS)
def test_a_sampling_field_reaches_the_engine(chat: Post, complete: Post, backend: Any, name: str) -> None:
    for post in (chat, complete):
        assert post(**{name: FIELDS[name]}).status_code == 200
    wanted = tuple(FIELDS[name]) if isinstance(FIELDS[name], list) else FIELDS[name]
    assert [getattr(r.sampling, name) for r in backend.requests] == [wanted, wanted]


def test_a_field_that_is_null_is_as_if_left_out(complete: Post, backend: Any) -> None:
    names = [*FIELDS, "logit_bias", "n", "best_of", "echo", "logprobs", "stop", "seed", "top_k", "stream_options"]
    complete(**dict.fromkeys(names))
    complete()
    assert backend.requests[0].sampling == backend.requests[1].sampling


def test_biases_are_sorted_pairs_of_token_and_bias(complete: Post, backend: Any) -> None:
    complete(logit_bias={"70": -100, "5": 1.5})
    assert backend.requests[0].sampling.logit_bias == ((5, 1.5), (70, -100.0))


def test_the_service_tier_reaches_the_engine_and_auto_is_answered_with_the_one_used(chat: Post, backend: Any) -> None:
    assert chat(service_tier="auto").json()["service_tier"] == "default"
    assert backend.requests[0].service_tier == "auto"


def test_a_safety_identifier_stands_for_the_user_in_a_policy(chat: Post, backend: Any) -> None:
    backend.policy_now = parse_policy(backend.policy_now.text.replace("service_tier: [flex]", "user: [bob]"))
    chat(safety_identifier="bob")
    assert backend.requests[0].cohort == "flex"


# Choices


def test_n_choices_come_in_order_and_share_one_prompt_in_the_usage(chat: Post, backend: Any) -> None:
    body = chat(n=3, max_tokens=5).json()
    assert [c["index"] for c in body["choices"]] == [0, 1, 2]
    assert body["usage"]["completion_tokens"] == 15
    assert body["usage"]["prompt_tokens"] == len(backend.requests[0].prompt_token_ids)


def test_choice_0_of_a_seeded_request_is_what_one_choice_alone_would_be(complete: Post, backend: Any) -> None:
    backend.reply_to = by_seed
    several = [c["text"] for c in complete(n=3, seed=-5).json()["choices"]]
    assert several[0] == complete(seed=-5).json()["choices"][0]["text"] == "seed -5"
    assert len(set(several)) == 3
    assert several == [c["text"] for c in complete(n=3, seed=-5).json()["choices"]]


def test_the_choices_of_a_prompt_do_not_depend_on_the_others_beside_it(complete: Post, backend: Any) -> None:
    backend.reply_to = by_seed
    texts = [c["text"] for c in complete(prompt=["a", "b"], n=2, seed=1).json()["choices"]]
    assert texts[:2] == texts[2:]


def test_without_a_seed_no_choice_has_one(complete: Post, backend: Any) -> None:
    complete(n=2)
    assert [r.sampling.seed for r in backend.requests] == [None, None]


def test_best_of_shows_the_likeliest_by_token_and_bills_all(complete: Post, backend: Any) -> None:
    replies = ["ab", "c", "pqr", "zzzz"]
    backend.reply_to = lambda request: replies[len(backend.requests) - 1]
    one_by_one = [complete(prompt="x", logprobs=0).json()["choices"][0] for _ in replies]
    means = {c["text"]: mean(c["logprobs"]["token_logprobs"]) for c in one_by_one}
    assert len(set(means.values())) == len(replies)
    backend.requests.clear()
    body = complete(best_of=4, n=2).json()
    assert [c["text"] for c in body["choices"]] == sorted(replies, key=means.__getitem__, reverse=True)[:2]
    assert body["usage"]["completion_tokens"] == sum(map(len, replies))
    assert body["choices"][0]["logprobs"] is None
    assert [r.sampling.logprobs for r in backend.requests] == [0] * 4


def test_best_of_as_many_as_are_shown_ranks_nothing(complete: Post, backend: Any) -> None:
    backend.reply_to = lambda request: "opp"[len(backend.requests) - 1]
    assert [c["text"] for c in complete(best_of=3, n=3, stream=False).json()["choices"]] == ["o", "p", "p"]


# Echo


@pytest.mark.parametrize("prompt", ["héllo ", list("héllo ".encode())])
def test_echo_puts_the_prompt_before_the_completion(complete: Post, backend: Any, prompt: Any) -> None:
    if isinstance(prompt, list):
        prompt = backend.tokenizer.encode("héllo ")
    assert complete(prompt=prompt, echo=True).json()["choices"][0]["text"] == "héllo " + REPLY
    streamed = events(complete(prompt=prompt, echo=True, stream=True))
    assert "".join(c["choices"][0]["text"] for c in streamed) == "héllo " + REPLY


def test_echo_with_no_tokens_scores_the_prompt(complete: Post, backend: Any) -> None:
    backend.reply = ""
    (choice,) = complete(prompt="hé", echo=True, max_tokens=0, logprobs=1).json()["choices"]
    assert choice["text"] == "hé"
    assert backend.requests[0].sampling.max_tokens == 0
    assert choice["logprobs"]["tokens"] == ["h", "bytes:\\xc3", "bytes:\\xa9"]
    assert choice["logprobs"]["token_logprobs"][0] is None
    assert choice["logprobs"]["top_logprobs"][0] is None
    assert choice["logprobs"]["text_offset"] == [0, 1, 1]


def test_echo_without_logprobs_shows_none(complete: Post, backend: Any) -> None:
    backend.reply = ""
    (choice,) = complete(prompt="hi", echo=True, max_tokens=0).json()["choices"]
    assert (choice["text"], choice["logprobs"]) == ("hi", None)


def test_each_of_several_prompts_is_echoed_in_its_own_choices(complete: Post) -> None:
    choices = complete(prompt=["a", "b"], n=2, echo=True, max_tokens=5).json()["choices"]
    assert [c["text"] for c in choices] == ["aHello", "aHello", "bHello", "bHello"]


# Log-probabilities


def test_chat_logprobs_have_the_shape_of_openai(chat: Post) -> None:
    logprobs = chat(logprobs=True, top_logprobs=2, max_tokens=5).json()["choices"][0]["logprobs"]
    assert logprobs["refusal"] is None
    assert "".join(entry["token"] for entry in logprobs["content"]) == "Hello"
    first = logprobs["content"][0]
    assert first.keys() == {"token", "logprob", "bytes", "top_logprobs"}
    assert first["bytes"] == [ord("H")]
    assert [len(entry["top_logprobs"]) for entry in logprobs["content"]] == [2] * 5
    assert first["top_logprobs"][0]["logprob"] > first["top_logprobs"][1]["logprob"]


def test_the_bytes_of_chat_logprobs_spell_the_text(chat: Post) -> None:
    content = chat(logprobs=True).json()["choices"][0]["logprobs"]["content"]
    assert bytes(b for entry in content for b in entry["bytes"]).decode() == REPLY
    assert [e["token"] for e in content if e["bytes"][0] > 127][:2] == ["\\xf0", "\\x9f"]


def test_logprobs_true_alone_names_no_alternatives(chat: Post, backend: Any) -> None:
    content = chat(logprobs=True).json()["choices"][0]["logprobs"]["content"]
    assert all(entry["top_logprobs"] == [] for entry in content)
    assert backend.requests[0].sampling.logprobs == 0


def test_completion_logprobs_always_name_the_chosen_token(complete: Post) -> None:
    logprobs = complete(logprobs=2, max_tokens=5).json()["choices"][0]["logprobs"]
    assert logprobs.keys() == {"tokens", "token_logprobs", "top_logprobs", "text_offset"}
    assert logprobs["tokens"] == list("Hello")
    assert logprobs["text_offset"] == [0, 1, 2, 3, 4]
    for token, logprob, top in zip(*list(logprobs.values())[:3], strict=True):
        assert top[token] == logprob
        assert len(top) == 3


def test_a_text_offset_is_where_the_token_begins_in_the_text(complete: Post) -> None:
    (choice,) = complete(prompt="hé ", echo=True, logprobs=0).json()["choices"]
    text, logprobs = choice["text"], choice["logprobs"]
    ends = [*logprobs["text_offset"][1:], len(text)]
    for token, start, end in zip(logprobs["tokens"], logprobs["text_offset"], ends, strict=True):
        assert token.startswith("bytes:") or text[start:end] == token


def test_a_probability_of_zero_is_still_json(complete: Post, backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    original = backend.generate

    async def generate(request: EngineRequest) -> Any:
        async for chunk in original(request):
            yield replace(chunk, logprobs=tuple(TokenLogprob(t.token_id, -math.inf) for t in chunk.logprobs))

    monkeypatch.setattr(backend, "generate", generate)
    assert set(complete(logprobs=0).json()["choices"][0]["logprobs"]["token_logprobs"]) == {-9999.0}


@pytest.mark.parametrize("stop", [None, ["this"], ["rld, thOs", "is a"]])
def test_streamed_logprobs_go_with_the_text_beside_them(complete: Post, stop: Any) -> None:
    whole = complete(logprobs=1, stop=stop).json()["choices"][0]
    choices = [event["choices"][0] for event in events(complete(logprobs=1, stop=stop, stream=True))]
    joined: dict[str, list[Any]] = {name: [] for name in whole["logprobs"]}
    shown = 0
    for choice in choices:
        scored = choice["logprobs"]
        starts = scored["text_offset"] if scored else []
        if choice["finish_reason"] is None and choice is not choices[-2]:
            assert all(shown <= start < shown + len(choice["text"]) for start in starts)
        shown += len(choice["text"])
        for name in joined:
            joined[name] += scored[name] if scored else []
    assert joined == whole["logprobs"]
    assert "".join(choice["text"] for choice in choices) == whole["text"]


def test_a_stop_string_leaves_the_scores_of_all_tokens(complete: Post) -> None:
    (choice,) = complete(logprobs=0, stop="wör").json()["choices"]
    assert choice["text"] == "Hello 🎉 "
    assert choice["logprobs"]["tokens"][-4:] == ["w", "bytes:\\xc3", "bytes:\\xb6", "r"]


# Streams


def test_every_event_has_one_choice_and_a_step_is_one_message(complete: Post) -> None:
    chunks = events(complete(n=3, stream=True))
    assert all(len(chunk["choices"]) == 1 for chunk in chunks)
    texts = {i: "".join(c["choices"][0]["text"] for c in chunks if c["choices"][0]["index"] == i) for i in range(3)}
    assert texts == dict.fromkeys(range(3), REPLY)


def test_a_stream_does_not_wait_for_the_first_tokens_of_all_choices(base_url: str, backend: Any) -> None:
    backend.slow = (1,)
    body = {"model": "tiny", "prompt": ["a", "b"], "stream": True, "max_tokens": 50}
    text = ""
    with httpx.stream("POST", f"{base_url}/v1/completions", json=body, timeout=10) as response:
        for line in response.iter_lines():
            if line:
                (choice,) = json.loads(line.removeprefix("data: "))["choices"]
                assert choice["index"] == 0
                text += choice["text"]
                if choice["finish_reason"]:
                    break
    assert text == REPLY


def test_continuous_usage_grows_to_what_the_last_event_says(chat: Post) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = events(chat(stream=True, stream_options=options))
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert 0 < counts[0] < counts[-1] == counts[-2] == len(REPLY.encode())


@pytest.mark.parametrize("stop", [None, "ö", "🎉🎉x"])
@pytest.mark.parametrize("rounds", [((0, 0),), ((1, 1),), ((4, 3), (2, 0)), ((8, 6),)])
def test_no_event_has_half_a_character(complete: Post, backend: Any, rounds: Any, stop: Any) -> None:
    backend.reply, backend.rounds = "a🎉🎉é 世界", rounds
    choices = [event["choices"][0] for event in events(complete(stream=True, stop=stop, n=2))]
    assert not [choice for choice in choices if "\ufffd" in choice["text"]]
    for index in range(2):
        assert "".join(choice["text"] for choice in choices if choice["index"] == index) == backend.reply


# Predictions and details


def test_a_prediction_is_tokenised_and_counted_only_then(chat: Post, backend: Any) -> None:
    parts = [{"type": "text", "text": "ab"}, {"type": "text", "text": "c"}]
    usage = chat(prediction={"type": "content", "content": parts}).json()["usage"]
    assert backend.tokenizer.decode(backend.requests[0].prediction) == "ab\nc"
    assert usage["completion_tokens_details"].keys() == {"accepted_prediction_tokens", "rejected_prediction_tokens"}
    assert "completion_tokens_details" not in chat().json()["usage"]


def test_the_speculation_block_lists_its_steps_on_demand(ask: Post) -> None:
    body = {"model": "tiny", "prompt": "hi", "max_tokens": 50}
    answer = ask("POST", "/v1/completions", json=body, headers={"x-kadence-metrics": "detailed"}).json()
    block = answer["metrics"]["speculative_decoding"]
    assert sum(block["per_step_accepted"]) == block["num_accepted_draft_tokens"]
    assert sum(block["per_step_drafted"]) == block["num_draft_tokens"]
    assert len(block["per_step_drafted"]) == block["num_spec_steps"]
    assert "per_step_drafted" not in ask("POST", "/v1/completions", json=body).json()["metrics"]["speculative_decoding"]


# Roles


def test_a_developer_is_the_system_to_a_template_that_knows_none(chat: Post, backend: Any) -> None:
    chat(messages=[{"role": "developer", "content": "d"}, {"role": "user", "content": "u"}])
    assert backend.tokenizer.decode(backend.requests[0].prompt_token_ids) == "<system>d<user>u<assistant>"


TOOL_TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}{% if m.role == 'tool' %} {{ m.tool_call_id }}{% endif %}>{{ m.content }}"
    "{% for c in m.tool_calls %}[{{ c.function.name }} {{ c.function.arguments.city }}]{% endfor %}{% endfor %}"
)


def test_a_template_with_tools_gets_calls_and_their_results(
    chat: Post, backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend.tokenizer, "chat_template", TOOL_TEMPLATE)
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
    chat(
        messages=[
            {"role": "user", "content": "u"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "sun"},
        ]
    )
    rendered = backend.tokenizer.decode(backend.requests[0].prompt_token_ids)
    assert rendered == "<user>u<assistant>[weather Rome]<tool c1>sun"
