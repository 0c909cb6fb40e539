"""The requests of the OpenAI dialect that are understood: their fields, types and ranges."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from workers.api_fields import (
    MAX_INT,
    NAME,
    Content,
    Count,
    LogitBias,
    Metadata,
    Prompts,
    Stop,
    StopTokens,
    ToolChoice,
    Unsigned,
)
from workers.sequence import MAX_LOGPROBS, MIN_REPETITION_PENALTY

MAX_CHOICES = 128
MAX_BEST_OF = 20  # as in the OpenAI API
MAX_REPETITION_PENALTY = 100

Name = Annotated[str, StringConstraints(pattern=f"^{NAME}$")]
Penalty = Annotated[float, Field(ge=-2, le=2, allow_inf_nan=False)]
Repetition = Annotated[float, Field(ge=MIN_REPETITION_PENALTY, le=MAX_REPETITION_PENALTY, allow_inf_nan=False)]
Tier = Literal["auto", "default", "flex", "scale", "priority", "fast"]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class StreamOptions(Strict):
    """continuous_usage_stats: usage so far with every event."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class Function(Strict):
    """A function by its name, and its arguments as JSON text."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=64)]
    arguments: str


class ToolCall(Strict):
    """One that an assistant made, in the history of a conversation."""

    id: Annotated[str, StringConstraints(max_length=512)]
    type: Literal["function"] = "function"
    function: Function


class Message(Strict):
    """One turn. content may be null only beside tool_calls; tool_call_id is for role "tool" alone, and needed there."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content | None = None
    tool_calls: Annotated[list[ToolCall], Field(fail_fast=True)] | None = None
    tool_call_id: Annotated[str, StringConstraints(max_length=512)] | None = None


# A body has room for a million wrong entries, each with an error of its own: the first one is enough.
Messages = Annotated[list[Message], Field(min_length=1, fail_fast=True)]


class Prediction(Strict):
    """Text that the client expects in the answer, for drafting; it never changes the answer."""

    type: Literal["content"]
    content: Content


class SchemaFormat(Strict):
    """What the answer's JSON must be valid against."""

    model_config = ConfigDict(serialize_by_alias=True, validate_by_name=False)

    name: Name
    description: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class ResponseFormat(Strict):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: SchemaFormat | None = None


class FunctionTool(Strict):
    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Strict):
    type: Literal["function"]
    function: FunctionTool


class GenerationRequest(Strict):
    """What both routes take; None is the same as leaving a field out."""

    model: Annotated[str, StringConstraints(min_length=1, max_length=512)]
    max_tokens: Count | None = None
    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=MAX_INT)] | None = None  # -1 is some servers' way of saying 0
    min_p: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None = None
    repetition_penalty: Repetition | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: LogitBias = ()
    stop: Stop = ()
    stop_token_ids: StopTokens = ()
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: Annotated[str, StringConstraints(max_length=512)] | None = None
    safety_identifier: Annotated[str, StringConstraints(max_length=128)] | None = None
    metadata: Metadata = Field(default_factory=dict)
    service_tier: Tier | None = None
    ignore_eos: bool | None = None
    min_tokens: Unsigned | None = None

    @property
    def limit(self) -> int | None:
        """Completion tokens asked for."""
        return self.max_tokens

    @property
    def choices(self) -> int:
        """Choices shown of each prompt."""
        return self.n or 1

    @property
    def candidates(self) -> int:
        """Choices generated of each prompt."""
        return self.choices

    @property
    def alternatives(self) -> int | None:
        """How many of the likeliest tokens are shown beside each token's log-probability; None: none are shown."""
        return None

    @property
    def echoes(self) -> bool:
        """Whether the prompt is part of what is shown."""
        return False

    @property
    def who(self) -> str | None:
        """The client's own user: `safety_identifier` is OpenAI's newer name of `user`."""
        return self.safety_identifier if self.user is None else self.user

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def counts_as_it_goes(self) -> bool:
        """Whether every event says what was used so far."""
        return self.include_usage and bool(self.stream_options and self.stream_options.continuous_usage_stats)


class ChatRequest(GenerationRequest):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "model": "smollm2-135m-instruct",
                    "messages": [{"role": "user", "content": "Write a haiku about rain."}],
                    "max_completion_tokens": 64,
                    "temperature": 0.7,
                    "stream": False,
                }
            ]
        }
    )

    messages: Messages
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    prediction: Prediction | None = None
    response_format: ResponseFormat | None = None
    tools: Annotated[list[Tool], Field(max_length=128, fail_fast=True)] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None

    @property
    def limit(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def alternatives(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None


class CompletionRequest(GenerationRequest):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"model": "smollm2-135m-instruct", "prompt": "Once upon a time", "max_tokens": 32, "logprobs": 2}
            ]
        }
    )

    prompt: Prompts
    max_tokens: Unsigned | None = None
    best_of: Annotated[int, Field(ge=1, le=MAX_BEST_OF)] | None = None
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None

    @property
    def candidates(self) -> int:
        return self.choices if self.best_of is None else self.best_of

    @property
    def alternatives(self) -> int | None:
        return self.logprobs

    @property
    def echoes(self) -> bool:
        return bool(self.echo)


class TokenizeRequest(Strict):
    """A prompt or messages, as one of the generating routes would take it."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"prompt": "Hello world"}]})

    model: Annotated[str, StringConstraints(min_length=1, max_length=512)] | None = None
    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(Strict):
    model_config = ConfigDict(json_schema_extra={"examples": [{"tokens": [1, 2, 3]}]})

    model: Annotated[str, StringConstraints(min_length=1, max_length=512)] | None = None
    tokens: Annotated[list[Unsigned], Field(fail_fast=True)]


class AlertOrder(Strict):
    clear: Annotated[str, StringConstraints(min_length=1, max_length=300)]
    reason: Annotated[str, StringConstraints(min_length=1, max_length=500)]


class KillSwitchRequest(Strict):
    mode: Literal["off", "fallback", "zero"]
    reason: Annotated[str, StringConstraints(min_length=1, max_length=500)]
