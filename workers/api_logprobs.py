"""Log-probabilities in the two shapes of the OpenAI API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from typing_extensions import TypedDict  # pydantic needs this one on Python 3.11

from workers.api_choice import Scored
from workers.token_text import TokenText

LEAST_LOGPROB = -9999.0
"""JSON has no minus infinity: what stands for a probability of 0, as in the OpenAI API."""


class TopLogprob(TypedDict):
    token: str
    logprob: float
    bytes: list[int] | None


class ContentLogprob(TypedDict):
    token: str
    logprob: float
    bytes: list[int] | None
    top_logprobs: list[TopLogprob]


class ChatLogprobs(TypedDict):
    content: list[ContentLogprob]
    refusal: None


class TextLogprobs(TypedDict):
    """Lists of the same length. text_offset: the character of the choice's text at which a token begins."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


def chat_logprobs(text: TokenText, scored: Sequence[Scored]) -> dict[str, Any]:
    """ChatLogprobs of generated tokens; a special token has no bytes, half a character shows them escaped."""
    content = [
        _entry(text, token.token_id, token.logprob or 0.0)
        | {"top_logprobs": [_entry(text, token_id, logprob) for token_id, logprob in token.top]}
        for token in scored
    ]
    return {"content": content, "refusal": None}


def text_logprobs(text: TokenText, scored: Sequence[Scored]) -> dict[str, Any]:
    """TextLogprobs; the chosen token is always among the top ones, as one more where it is none of them."""
    return {
        "tokens": [_plain(text, token.token_id) for token in scored],
        "token_logprobs": [None if t.logprob is None else max(t.logprob, LEAST_LOGPROB) for t in scored],
        "top_logprobs": [_top(text, token) for token in scored],
        "text_offset": [token.offset for token in scored],
    }


def _entry(text: TokenText, token_id: int, logprob: float) -> dict[str, Any]:
    shown = text.shown(token_id)
    return {
        "token": text.escaped(token_id) if shown is None else shown,
        "logprob": max(logprob, LEAST_LOGPROB),
        "bytes": None if text.is_special(token_id) else list(text.bytes_of(token_id)),
    }


def _top(text: TokenText, token: Scored) -> dict[str, float] | None:
    if token.logprob is None:
        return None
    # Two tokens may look alike; the likelier one stands for both.
    likely: dict[str, float] = {}
    for token_id, logprob in (*token.top, (token.token_id, token.logprob)):
        likely.setdefault(_plain(text, token_id), max(logprob, LEAST_LOGPROB))
    return likely


def _plain(text: TokenText, token_id: int) -> str:
    shown = text.shown(token_id)
    return f"bytes:{text.escaped(token_id)}" if shown is None else shown
