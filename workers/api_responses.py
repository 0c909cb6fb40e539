"""The bodies of answers, in the shape of the OpenAI API."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NotRequired

from typing_extensions import TypedDict  # pydantic needs this one on Python 3.11

from controlplane.telemetry import RequestRecord
from workers.generation import Outcome


class Usage(TypedDict):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class SpeculativeDecoding(TypedDict):
    """Of the steps that drafted. num_spec_tokens: the deepest chain; acceptance_histogram: steps by accepted tokens."""

    mean_acceptance_length: float
    draft_acceptance_rate: float
    acceptance_histogram: list[int]
    num_spec_steps: int
    num_accepted_draft_tokens: int
    num_draft_tokens: int
    num_spec_tokens: int


class Metrics(TypedDict):
    speculative_decoding: SpeculativeDecoding


class ErrorDetail(TypedDict):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(TypedDict):
    error: ErrorDetail


class ChatMessage(TypedDict):
    role: str
    content: str
    refusal: None


class ChatChoice(TypedDict):
    index: int
    message: ChatMessage
    logprobs: None
    finish_reason: str


class TextChoice(TypedDict):
    index: int
    text: str
    logprobs: None
    finish_reason: str | None


class Body(TypedDict):
    id: str
    object: str
    created: int
    model: str
    service_tier: NotRequired[str]
    usage: NotRequired[Usage | None]
    metrics: NotRequired[Metrics]


class ChatCompletion(Body):
    choices: list[ChatChoice]


class Completion(Body):
    choices: list[TextChoice]


class ModelCard(TypedDict):
    id: str
    object: str
    created: int
    owned_by: str
    max_model_len: int


class ModelList(TypedDict):
    object: str
    data: list[ModelCard]


def usage_of(records: Sequence[RequestRecord | None]) -> Usage:
    prompt = sum(r.prompt_tokens for r in records if r)
    completion = sum(r.completion_tokens for r in records if r)
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def speculation_of(outcomes: Sequence[Outcome]) -> Metrics | None:
    """None where no step drafted anything, and for several choices, whose steps cannot be told apart."""
    if len(outcomes) != 1:
        return None
    steps = [(drafted, accepted) for drafted, accepted in outcomes[0].steps if drafted > 0]
    if not steps:
        return None
    drafted, accepted = sum(d for d, _ in steps), sum(a for _, a in steps)
    deepest = max(d for d, _ in steps)
    histogram = [0] * (deepest + 1)
    for _, a in steps:
        histogram[a] += 1
    return {
        "speculative_decoding": {
            "mean_acceptance_length": 1 + accepted / len(steps),
            "draft_acceptance_rate": accepted / drafted,
            "acceptance_histogram": histogram,
            "num_spec_steps": len(steps),
            "num_accepted_draft_tokens": accepted,
            "num_draft_tokens": drafted,
            "num_spec_tokens": deepest,
        }
    }


@dataclass(frozen=True, slots=True)
class Envelope:
    """What every body of one answer shares. created: unix seconds. is_chat: which of the two dialects."""

    id: str
    created: int
    model: str
    is_chat: bool
    service_tier: str | None

    def complete(self, outcomes: Sequence[Outcome]) -> dict[str, Any]:
        """The body of an answer that is not streamed."""
        choices = [self._choice(index, outcome) for index, outcome in enumerate(outcomes)]
        return self._body("chat.completion" if self.is_chat else "text_completion", choices) | _totals(outcomes)

    def role(self, index: int) -> dict[str, Any]:
        """The first event of a chat choice."""
        return self._event(index, {"delta": {"role": "assistant", "content": ""}}, None)

    def text(self, index: int, text: str) -> dict[str, Any]:
        return self._event(index, {"delta": {"content": text}} if self.is_chat else {"text": text}, None)

    def finish(self, index: int, reason: str) -> dict[str, Any]:
        return self._event(index, {"delta": {}} if self.is_chat else {"text": ""}, reason)

    def totals(self, outcomes: Sequence[Outcome]) -> dict[str, Any]:
        """The last event of a stream that asked for usage."""
        return self._body(self._chunk_object, []) | _totals(outcomes)

    @property
    def _chunk_object(self) -> str:
        return "chat.completion.chunk" if self.is_chat else "text_completion"

    def _choice(self, index: int, outcome: Outcome) -> dict[str, Any]:
        text = "".join(outcome.text)
        said = {"message": {"role": "assistant", "content": text, "refusal": None}} if self.is_chat else {"text": text}
        return {"index": index, **said, "logprobs": None, "finish_reason": outcome.finish_reason}

    def _event(self, index: int, content: dict[str, Any], reason: str | None) -> dict[str, Any]:
        choice = {"index": index, **content, "logprobs": None, "finish_reason": reason}
        return self._body(self._chunk_object, [choice])

    def _body(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        body = {"id": self.id, "object": kind, "created": self.created, "model": self.model, "choices": choices}
        return body if self.service_tier is None else body | {"service_tier": self.service_tier}


def _totals(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    totals: dict[str, Any] = {"usage": usage_of([o.record for o in outcomes])}
    speculation = speculation_of(outcomes)
    return totals if speculation is None else totals | {"metrics": speculation}
