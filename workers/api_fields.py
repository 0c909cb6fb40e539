"""Types of fields whose check is one sentence on the whole, with the JSON schema that says the same."""

from __future__ import annotations

import re
from collections.abc import Callable
from math import isfinite
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

MAX_STOPS = 4
MAX_STOP_CHARACTERS = 1000
MAX_PROMPTS = 64
MAX_STOP_TOKENS = 128
MAX_BIAS = 100
MAX_INT = 2**31 - 1

NAME = "[a-zA-Z0-9_-]{1,64}"  # of a function or a schema

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


def _is_logit_bias(value: Any) -> bool:
    return value is None or (
        isinstance(value, dict)
        and all(_is_token_key(key) and _is_number(bias) and abs(bias) <= MAX_BIAS for key, bias in value.items())
        and len({int(key) for key in value}) == len(value)
    )


def _is_token_key(key: Any) -> bool:
    return isinstance(key, str) and key.isascii() and key.isdigit() and len(key) <= 10 and int(key) <= MAX_INT


def _is_number(value: Any) -> bool:
    """No float holds some integers of JSON, so that only floats are asked whether they are finite."""
    return type(value) is int or (type(value) is float and isfinite(value))


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


def _is_tool_choice(value: Any) -> bool:
    if isinstance(value, dict):
        function = value.get("function")
        return (
            value.keys() == {"type", "function"}
            and value["type"] == "function"
            and isinstance(function, dict)
            and function.keys() == {"name"}
            and isinstance(function["name"], str)
            and re.fullmatch(NAME, function["name"]) is not None
        )
    return value in ("none", "auto", "required")


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
    return isinstance(value, list) and set(map(type, value)) == {int} and min(value) >= 0 and max(value) <= MAX_INT


def _prompts(value: Any) -> tuple[Prompt, ...]:
    if isinstance(value, str):
        return (value,)
    if isinstance(value[0], int):
        return (tuple(value),)
    return tuple(p if isinstance(p, str) else tuple(p) for p in value)


_TEXT = {"type": "string", "minLength": 1}
_STOP = {**_TEXT, "maxLength": MAX_STOP_CHARACTERS}
_TOKENS = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": MAX_INT}}
_PROMPT_TOKENS = {**_TOKENS, "minItems": 1}

Stop = Annotated[
    tuple[str, ...],
    _checked(
        _is_stop,
        f"must be a string or a list of up to {MAX_STOPS} strings, of 1 to {MAX_STOP_CHARACTERS} characters each",
        lambda v: (v,) if isinstance(v, str) else tuple(v or ()),
    ),
    WithJsonSchema({"anyOf": [_STOP, {"type": "array", "items": _STOP, "maxItems": MAX_STOPS}, {"type": "null"}]}),
]
Metadata = Annotated[
    dict[str, str],
    _checked(
        _is_metadata,
        "must be an object of up to 16 strings, with keys of up to 64 and values of up to 512 characters",
        lambda v: v or {},
    ),
    WithJsonSchema(
        {
            "type": ["object", "null"],
            "propertyNames": {"maxLength": 64},
            "additionalProperties": {"type": "string", "maxLength": 512},
            "maxProperties": 16,
        }
    ),
]
LogitBias = Annotated[
    tuple[tuple[int, float], ...],
    _checked(
        _is_logit_bias,
        f"must be an object from token ids, as strings of digits, to numbers from -{MAX_BIAS} to {MAX_BIAS}",
        lambda v: tuple(sorted((int(key), float(bias)) for key, bias in (v or {}).items())),
    ),
    WithJsonSchema(
        {
            "type": ["object", "null"],
            "propertyNames": {"pattern": "^(0|[1-9][0-9]{0,8})$"},
            "additionalProperties": {"type": "number", "minimum": -MAX_BIAS, "maximum": MAX_BIAS},
        }
    ),
]
StopTokens = Annotated[
    tuple[int, ...],
    _checked(
        lambda v: v is None or v == [] or (_is_token_ids(v) and len(v) <= MAX_STOP_TOKENS),
        f"must be a list of up to {MAX_STOP_TOKENS} token ids",
        lambda v: tuple(dict.fromkeys(v or ())),
    ),
    WithJsonSchema({"anyOf": [{**_TOKENS, "maxItems": MAX_STOP_TOKENS}, {"type": "null"}]}),
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
                        "additionalProperties": False,
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
            "anyOf": [
                _TEXT,
                {"type": "array", "items": _TEXT, "minItems": 1, "maxItems": MAX_PROMPTS},
                _PROMPT_TOKENS,
                {"type": "array", "items": _PROMPT_TOKENS, "minItems": 1, "maxItems": MAX_PROMPTS},
            ],
        }
    ),
]
ToolChoice = Annotated[
    tuple[str, str | None],
    _checked(
        _is_tool_choice,
        'must be "none", "auto", "required" or {"type": "function", "function": {"name": "..."}}',
        lambda v: (v, None) if isinstance(v, str) else ("function", v["function"]["name"]),
    ),
    WithJsonSchema(
        {
            "anyOf": [
                {"enum": ["none", "auto", "required"]},
                {
                    "type": "object",
                    "required": ["type", "function"],
                    "properties": {
                        "type": {"const": "function"},
                        "function": {
                            "type": "object",
                            "required": ["name"],
                            "properties": {"name": {"type": "string", "pattern": f"^{NAME}$"}},
                            "additionalProperties": False,
                        },
                    },
                    "additionalProperties": False,
                },
            ]
        }
    ),
]
"""Which tool is called: "none", "auto", "required", or "function" and its name."""
Count = Annotated[int, Field(ge=1, le=MAX_INT)]
Unsigned = Annotated[int, Field(ge=0, le=MAX_INT)]
