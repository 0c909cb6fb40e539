"""The requests of the OpenAI dialect that are understood: their fields, types and ranges."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, WithJsonSchema
from pydantic_core import PydanticCustomError

MAX_STOPS = 4
MAX_STOP_CHARACTERS = 1000
MAX_PROMPTS = 64
MAX_INT = 2**31 - 1

Prompt = str | tuple[int, ...]


def _checked(check: Callable[[Any], bool], sentence: str, convert: Callable[[Any], Any]) -> BeforeValidator:
    """Pydantic reports every branch of a union on its own; one sentence on the whole says more."""

    def validate(value: Any) -> Any:
        if not check(value):
            raise PydanticCustomError("sentence", "{sentence}", {"sentence": sentence})
        return convert(value)

    return BeforeValidator(validate)


def _is_stop(value: Any) -> bool:
    stops = [value] if isinstance(value, str) else value
    if stops is None:
        return True
    return (
        isinstance(stops, list)
        and len(stops) <= MAX_STOPS
        and all(isinstance(s, str) and 0 < len(s) <= MAX_STOP_CHARACTERS for s in stops)
    )


def _is_metadata(value: Any) -> bool:
    return value is None or (
        isinstance(value, dict)
        and len(value) <= 16
        and all(len(k) <= 64 and isinstance(v, str) and len(v) <= 512 for k, v in value.items())
    )


def _is_content(value: Any) -> bool:
    if isinstance(value, list):
        return bool(value) and all(
            isinstance(part, dict)
            and part.keys() == {"type", "text"}
            and part["type"] == "text"
            and isinstance(part["text"], str)
            for part in value
        )
    return isinstance(value, str)


def _is_prompt(value: Any) -> bool:
    if isinstance(value, str):
        return value != ""
    if not isinstance(value, list) or not value:
        return False
    if _is_token_ids(value):
        return True
    return len(value) <= MAX_PROMPTS and (
        all(isinstance(p, str) and p for p in value) or all(_is_token_ids(p) for p in value)
    )


def _is_token_ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(i) is int and 0 <= i <= MAX_INT for i in value)


def _prompts(value: Any) -> tuple[Prompt, ...]:
    if isinstance(value, str):
        return (value,)
    if _is_token_ids(value):
        return (tuple(value),)
    return tuple(p if isinstance(p, str) else tuple(p) for p in value)


_STRINGS = {"type": "array", "items": {"type": "string"}}
_TOKENS = {"type": "array", "items": {"type": "integer", "minimum": 0}}

Stop = Annotated[
    tuple[str, ...],
    _checked(
        _is_stop,
        f"must be a string or a list of up to {MAX_STOPS} strings, of 1 to {MAX_STOP_CHARACTERS} characters each",
        lambda v: (v,) if isinstance(v, str) else tuple(v or ()),
    ),
    WithJsonSchema({"anyOf": [{"type": "string"}, {**_STRINGS, "maxItems": MAX_STOPS}, {"type": "null"}]}),
]
Metadata = Annotated[
    dict[str, str],
    _checked(
        _is_metadata,
        "must be an object of up to 16 strings, with keys of up to 64 and values of up to 512 characters",
        lambda v: v or {},
    ),
    WithJsonSchema({"type": ["object", "null"], "additionalProperties": {"type": "string"}, "maxProperties": 16}),
]
Content = Annotated[
    str,
    _checked(
        _is_content,
        'must be a string or a non-empty list of parts {"type": "text", "text": "..."}; other parts are not supported',
        lambda v: v if isinstance(v, str) else "\n".join(part["text"] for part in v),
    ),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string"},
                {
                    "type": "array",
                    "minItems": 1,
                    "items": {
                        "type": "object",
                        "required": ["type", "text"],
                        "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
                    },
                },
            ]
        }
    ),
]
Prompts = Annotated[
    tuple[Prompt, ...],
    _checked(
        _is_prompt,
        f"must be a non-empty string, a list of token ids, or a list of up to {MAX_PROMPTS} of either",
        _prompts,
    ),
    WithJsonSchema(
        {
            "anyOf": [{"type": "string"}, _STRINGS, _TOKENS, {"type": "array", "items": _TOKENS}],
        }
    ),
]
Count = Annotated[int, Field(ge=1, le=MAX_INT)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class StreamOptions(_Strict):
    include_usage: bool | None = None


class Message(_Strict):
    role: Literal["system", "user", "assistant"]
    content: Content


class GenerationRequest(_Strict):
    """What both routes take; None is the same as leaving a field out."""

    model: Annotated[str, StringConstraints(min_length=1, max_length=512)]
    max_tokens: Count | None = None
    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] | None = None
    top_k: Annotated[int, Field(ge=0, le=MAX_INT)] | None = None
    stop: Stop = ()
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: Annotated[str, StringConstraints(max_length=512)] | None = None
    metadata: Metadata = Field(default_factory=dict)
    service_tier: Literal["auto", "default", "flex", "scale", "priority", "fast"] | None = None
    ignore_eos: bool | None = None
    min_tokens: Annotated[int, Field(ge=0, le=MAX_INT)] | None = None

    @property
    def limit(self) -> int | None:
        """Completion tokens asked for."""
        return self.max_tokens

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)


class ChatRequest(GenerationRequest):
    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Count | None = None

    @property
    def limit(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


class CompletionRequest(GenerationRequest):
    prompt: Prompts


class AlertOrder(_Strict):
    clear: Annotated[str, StringConstraints(min_length=1, max_length=300)]
    reason: Annotated[str, StringConstraints(min_length=1, max_length=500)]


class KillSwitchRequest(_Strict):
    mode: Literal["off", "fallback", "zero"]
    reason: Annotated[str, StringConstraints(min_length=1, max_length=500)]
