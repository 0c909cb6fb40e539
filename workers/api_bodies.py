"""The shapes of answers, as the OpenAI API has them: what the OpenAPI document shows."""

from __future__ import annotations

from typing import NotRequired

from typing_extensions import TypedDict  # pydantic needs this one on Python 3.11

from workers.api_logprobs import ChatLogprobs, TextLogprobs


class CompletionTokensDetails(TypedDict):
    """Of a request with a prediction: its tokens that were drafted and kept, and those drafted in vain."""

    accepted_prediction_tokens: int
    rejected_prediction_tokens: int


class PromptTokensDetails(TypedDict):
    """Prompt tokens that the prefix cache had; of each prompt once, as the choice had them that found fewest."""

    cached_tokens: int


class Usage(TypedDict):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: NotRequired[CompletionTokensDetails]


class SpeculativeDecoding(TypedDict):
    """Of the steps that drafted. num_spec_tokens: the deepest draft, of a tree its levels.

    acceptance_histogram: steps by accepted tokens. per_step_*: one entry a step, where the request asked for details.
    """

    mean_acceptance_length: float
    draft_acceptance_rate: float
    acceptance_histogram: list[int]
    num_spec_steps: int
    num_accepted_draft_tokens: int
    num_draft_tokens: int
    num_spec_tokens: int
    per_step_accepted: NotRequired[list[int]]
    per_step_drafted: NotRequired[list[int]]


class Metrics(TypedDict):
    speculative_decoding: SpeculativeDecoding


class ErrorDetail(TypedDict):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(TypedDict):
    error: ErrorDetail


class CalledFunction(TypedDict):
    """arguments: JSON text."""

    name: str
    arguments: str


class ToolCallBody(TypedDict):
    id: str
    type: str
    function: CalledFunction


class FunctionDelta(TypedDict):
    name: NotRequired[str]
    arguments: str


class ToolCallDelta(TypedDict):
    """Of call number `index`: id, type and name first, then pieces of its arguments."""

    index: int
    id: NotRequired[str]
    type: NotRequired[str]
    function: FunctionDelta


class ChatMessage(TypedDict):
    """content: null in an answer that only calls tools."""

    role: str
    content: str | None
    refusal: None
    tool_calls: NotRequired[list[ToolCallBody]]


class ChatChoice(TypedDict):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: str


class TextChoice(TypedDict):
    index: int
    text: str
    logprobs: TextLogprobs | None
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


class ChatDelta(TypedDict):
    role: NotRequired[str]
    content: NotRequired[str]
    tool_calls: NotRequired[list[ToolCallDelta]]


class ChatChunkChoice(TypedDict):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: str | None


class ChatCompletionChunk(Body):
    """One event of a streamed chat."""

    choices: list[ChatChunkChoice]


class Tokens(TypedDict):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class Detokenized(TypedDict):
    prompt: str


class ModelCard(TypedDict):
    id: str
    object: str
    created: int
    owned_by: str
    max_model_len: int


class ModelList(TypedDict):
    object: str
    data: list[ModelCard]
