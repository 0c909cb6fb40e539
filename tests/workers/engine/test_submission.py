"""What the engine cannot honour it refuses, in one line that names the field, before any work."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from workers.sequence import MAX_LOGPROBS
from workers.submission import check_request

CONTEXT, VOCAB = 64, 48


@pytest.mark.parametrize(
    ("field", "sampling"),
    [
        ("min_p", {"min_p": -0.1}),
        ("min_p", {"min_p": 1.1}),
        ("min_p", {"min_p": math.nan}),
        ("temperature", {"temperature": -0.1}),
        ("temperature", {"temperature": math.nan}),
        ("top_p", {"top_p": 0.0}),
        ("top_p", {"top_p": math.nan}),
        ("top_k", {"top_k": -1}),
        ("min_tokens", {"min_tokens": -1}),
        ("repetition_penalty", {"repetition_penalty": 0.0}),
        ("repetition_penalty", {"repetition_penalty": 1e-30}),
        ("repetition_penalty", {"repetition_penalty": -1.0}),
        ("repetition_penalty", {"repetition_penalty": math.inf}),
        ("repetition_penalty", {"repetition_penalty": math.nan}),
        ("presence_penalty", {"presence_penalty": math.nan}),
        ("frequency_penalty", {"frequency_penalty": -math.inf}),
        ("logprobs", {"logprobs": -1}),
        ("logprobs", {"logprobs": MAX_LOGPROBS + 1}),
        ("prompt_logprobs", {"prompt_logprobs": MAX_LOGPROBS + 1}),
        ("logit_bias", {"logit_bias": ((3, 1.0), (3, 2.0))}),
        ("logit_bias", {"logit_bias": ((3, math.nan),)}),
        ("logit_bias", {"logit_bias": ((VOCAB, 1.0),)}),
        ("logit_bias", {"logit_bias": ((-1, 1.0),)}),
        ("stop_token_ids", {"stop_token_ids": (3, VOCAB)}),
        ("max_tokens", {"max_tokens": 0}),
        ("max_tokens", {"max_tokens": -1, "prompt_logprobs": 0}),
        ("max_tokens", {"max_tokens": CONTEXT}),
    ],
)
def test_a_wish_out_of_range_is_named(ask, field, sampling) -> None:
    with pytest.raises(ValueError, match=rf"^{field} ") as raised:
        check_request(ask([3, 4], **sampling), CONTEXT, VOCAB)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("token", [-1, VOCAB])
@pytest.mark.parametrize("field", ["prompt", "prediction"])
def test_a_token_that_the_model_has_no_row_for_is_named(ask, field, token) -> None:
    """A tokenizer may know more of them; in a batch, looking one up would fail all."""
    request = ask([3, token] if field == "prompt" else [3, 4])
    with pytest.raises(ValueError, match=rf"^{field} has the token {token};"):
        check_request(replace(request, prediction=(token,) if field == "prediction" else ()), CONTEXT, VOCAB)


@pytest.mark.parametrize(
    "sampling",
    [
        {"min_p": 1.0, "repetition_penalty": 0.01, "presence_penalty": -2.0, "frequency_penalty": 2.0},
        {"logit_bias": ((0, -100.0), (VOCAB - 1, 100.0)), "stop_token_ids": (0, VOCAB - 1)},
        {"logprobs": MAX_LOGPROBS, "prompt_logprobs": 0},
        {"max_tokens": 0, "prompt_logprobs": 0},
        {"max_tokens": CONTEXT - 2},
    ],
)
def test_a_wish_in_range_is_taken(ask, sampling) -> None:
    check_request(ask([3, 4], **sampling), CONTEXT, VOCAB)


def test_what_is_refused_leaves_nothing_in_the_engine(make_engine, ask) -> None:
    engine = make_engine(2)
    with pytest.raises(ValueError, match="logit_bias has the token 48"):
        engine.submit(ask([3, 4], logit_bias=((48, 1.0),)))
    assert not engine.has_work
