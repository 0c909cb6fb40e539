"""Bodies of answers from what was generated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from workers.api_bodies import (
    ChatMessage,
    FunctionDelta,
    Metrics,
    SpeculativeDecoding,
    ToolCallBody,
    ToolCallDelta,
    Usage,
)
from workers.api_calls import CallDelta
from workers.api_choice import Piece, Scored
from workers.api_logprobs import chat_logprobs, text_logprobs
from workers.generation import Outcome
from workers.token_text import TokenText


def usage_of(outcomes: Sequence[Outcome], prompt_tokens: int, has_prediction: bool) -> Usage:
    """So far, of all choices that were generated. prompt_tokens: of each prompt once, however many choices it has."""
    completion = sum(outcome.completion_tokens for outcome in outcomes)
    usage: Usage = {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion,
        "total_tokens": prompt_tokens + completion,
        "prompt_tokens_details": {"cached_tokens": _cached_tokens(outcomes)},
    }
    if has_prediction:
        usage["completion_tokens_details"] = {
            "accepted_prediction_tokens": sum(outcome.prediction[0] for outcome in outcomes),
            "rejected_prediction_tokens": sum(outcome.prediction[1] for outcome in outcomes),
        }
    return usage


def _cached_tokens(outcomes: Sequence[Outcome]) -> int:
    """Of each prompt once: choices of one prompt find each other's, which says nothing of what was there before."""
    fewest: dict[tuple[int, ...], int] = {}
    for outcome in outcomes:
        prompt = outcome.reader.prompt_token_ids
        fewest[prompt] = min(fewest.get(prompt, outcome.cached_tokens), outcome.cached_tokens)
    return sum(fewest.values())


def speculation_of(outcomes: Sequence[Outcome], is_detailed: bool = False) -> Metrics | None:
    """None where no step drafted anything, and for several choices, whose steps cannot be told apart."""
    if len(outcomes) != 1:
        return None
    steps = [(drafted, accepted) for drafted, accepted in outcomes[0].steps if drafted > 0]
    if not steps:
        return None
    drafted, accepted = sum(d for d, _ in steps), sum(a for _, a in steps)
    record, most = outcomes[0].record, max(d for d, _ in steps)
    # A tree drafts more tokens than it is deep; the record knows how deep.
    deepest = max(most if record is None else min(record.max_k, most), max(a for _, a in steps))
    histogram = [0] * (deepest + 1)
    for _, a in steps:
        histogram[a] += 1
    block: SpeculativeDecoding = {
        "mean_acceptance_length": 1 + accepted / len(steps),
        "draft_acceptance_rate": accepted / drafted,
        "acceptance_histogram": histogram,
        "num_spec_steps": len(steps),
        "num_accepted_draft_tokens": accepted,
        "num_draft_tokens": drafted,
        "num_spec_tokens": deepest,
    }
    if is_detailed:
        block["per_step_accepted"] = [a for _, a in steps]
        block["per_step_drafted"] = [d for d, _ in steps]
    return {"speculative_decoding": block}


def _message(outcome: Outcome) -> ChatMessage:
    calls: list[ToolCallBody] = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in outcome.calls
    ]
    if not calls:
        return {"role": "assistant", "content": outcome.text, "refusal": None}
    return {"role": "assistant", "content": outcome.text or None, "refusal": None, "tool_calls": calls}


def _call_delta(delta: CallDelta) -> ToolCallDelta:
    if delta.id is None or delta.name is None:
        return {"index": delta.number, "function": {"arguments": delta.arguments}}
    function: FunctionDelta = {"name": delta.name, "arguments": delta.arguments}
    return {"index": delta.number, "id": delta.id, "type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class Envelope:
    """What every body of one answer shares.

    created: unix seconds. is_chat: which of the two dialects. prompt_tokens: of each prompt once. text: of tokens,
    where log-probabilities are shown.
    """

    id: str
    created: int
    model: str
    is_chat: bool
    service_tier: str | None
    prompt_tokens: int
    has_prediction: bool = False
    is_detailed: bool = False
    text: TokenText | None = None

    def complete(self, shown: Sequence[Outcome], generated: Sequence[Outcome]) -> dict[str, Any]:
        """The body of an answer that is not streamed; shown: the choices of it, the best of those generated."""
        choices = [self._choice(index, outcome) for index, outcome in enumerate(shown)]
        return self._body("chat.completion" if self.is_chat else "text_completion", choices) | self._totals(generated)

    def role(self, index: int) -> dict[str, Any]:
        """The first event of a chat choice."""
        return self._event(index, {"delta": {"role": "assistant", "content": ""}}, (), None)

    def piece(self, index: int, piece: Piece) -> list[dict[str, Any]]:
        """One event for its text, and one for each addition to a call; the first has the scores."""
        said: list[dict[str, Any]] = []
        if piece.text or not piece.calls:
            said.append({"delta": {"content": piece.text}} if self.is_chat else {"text": piece.text})
        said += ({"delta": {"tool_calls": [_call_delta(delta)]}} for delta in piece.calls)
        return [self._event(index, content, () if n else piece.scored, None) for n, content in enumerate(said)]

    def finish(self, index: int, reason: str) -> dict[str, Any]:
        return self._event(index, {"delta": {}} if self.is_chat else {"text": ""}, (), reason)

    def totals(self, outcomes: Sequence[Outcome]) -> dict[str, Any]:
        """The last event of a stream that asked for usage."""
        return self._body(self._chunk_object, []) | self._totals(outcomes)

    def usage(self, outcomes: Sequence[Outcome]) -> Usage:
        """So far."""
        return usage_of(outcomes, self.prompt_tokens, self.has_prediction)

    @property
    def _chunk_object(self) -> str:
        return "chat.completion.chunk" if self.is_chat else "text_completion"

    def _choice(self, index: int, outcome: Outcome) -> dict[str, Any]:
        said = {"message": _message(outcome)} if self.is_chat else {"text": outcome.text}
        scored = [token for piece in outcome.pieces for token in piece.scored]
        logprobs = self._logprobs(scored)
        return {"index": index, **said, "logprobs": logprobs, "finish_reason": outcome.shown_reason}

    def _event(
        self, index: int, content: dict[str, Any], scored: Sequence[Scored], reason: str | None
    ) -> dict[str, Any]:
        logprobs = self._logprobs(scored) if scored else None
        choice = {"index": index, **content, "logprobs": logprobs, "finish_reason": reason}
        return self._body(self._chunk_object, [choice])

    def _logprobs(self, scored: Sequence[Scored]) -> dict[str, Any] | None:
        """None where the client asked for none."""
        if self.text is None:
            return None
        return chat_logprobs(self.text, scored) if self.is_chat else text_logprobs(self.text, scored)

    def _body(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        body = {"id": self.id, "object": kind, "created": self.created, "model": self.model, "choices": choices}
        return body if self.service_tier is None else body | {"service_tier": self.service_tier}

    def _totals(self, outcomes: Sequence[Outcome]) -> dict[str, Any]:
        totals: dict[str, Any] = {"usage": self.usage(outcomes)}
        speculation = speculation_of(outcomes, self.is_detailed)
        return totals if speculation is None else totals | {"metrics": speculation}
