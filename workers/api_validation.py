"""Bodies to requests: everything is checked before any work; the first fault is one sentence that names its field."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from workers.api_errors import ApiError, invalid
from workers.api_models import AlertOrder, ChatRequest, CompletionRequest, GenerationRequest, KillSwitchRequest

_Values = Mapping[str, tuple[Any, ...]]
# Fields of the dialect that are not supported yet, with the values (besides null) that ask for nothing.
_NEUTRAL: _Values = {
    "n": (1,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "min_p": (0,),
    "logit_bias": ({},),
    "prompt_cache_key": (),
    "safety_identifier": (),
    "store": (False,),
}
_NEUTRAL_CHAT: _Values = {
    **_NEUTRAL,
    "logprobs": (False,),
    "top_logprobs": (0,),
    "response_format": ({"type": "text"},),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (False, True),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "prediction": (),
    "modalities": (["text"],),
    "audio": (),
    "reasoning_effort": ("none",),
    "verbosity": ("medium",),
    "web_search_options": (),
}
_NEUTRAL_COMPLETION: _Values = {
    **_NEUTRAL,
    "logprobs": (),
    "echo": (False,),
    "best_of": (1,),
    "suffix": ("",),
}
_NEUTRAL_MESSAGE: _Values = {
    "name": (),
    "refusal": (),
    "tool_calls": ([],),
    "function_call": (),
    "audio": (),
    "annotations": ([],),
}
_NEUTRAL_STREAM_OPTIONS: _Values = {"include_obfuscation": (False,)}


def parse_chat(body: bytes) -> ChatRequest:
    """Raises ApiError."""
    data = _without_neutral(parse_object(body), _NEUTRAL_CHAT)
    if isinstance(messages := data.get("messages"), list):
        data["messages"] = [
            _without_neutral(m, _NEUTRAL_MESSAGE, f"messages[{i}].") if isinstance(m, dict) else m
            for i, m in enumerate(messages)
        ]
    request = _validate(ChatRequest, data)
    if request.max_tokens is not None and request.max_completion_tokens not in (None, request.max_tokens):
        raise invalid("max_tokens", "max_tokens and max_completion_tokens differ; send only max_completion_tokens.")
    return _consistent(request)


def parse_completion(body: bytes) -> CompletionRequest:
    """Raises ApiError."""
    return _consistent(_validate(CompletionRequest, _without_neutral(parse_object(body), _NEUTRAL_COMPLETION)))


def parse_kill_switch(body: bytes) -> KillSwitchRequest:
    """Raises ApiError."""
    return _validate(KillSwitchRequest, parse_object(body))


def parse_alert_order(body: bytes) -> AlertOrder:
    """Raises ApiError."""
    return _validate(AlertOrder, parse_object(body))


def parse_object(body: bytes) -> dict[str, Any]:
    """The JSON object in `body`; raises ApiError."""
    try:
        data = from_json(body, allow_inf_nan=False)
    except ValueError:
        raise invalid(None, "The body is not valid JSON in UTF-8.", "invalid_json") from None
    if not isinstance(data, dict):
        raise invalid(None, "The body must be a JSON object.", "invalid_type")
    return data


_Request = TypeVar("_Request", bound=GenerationRequest)
_Model = TypeVar("_Model", bound=BaseModel)


def _consistent(request: _Request) -> _Request:
    if request.stream_options is not None and not request.stream:
        raise invalid("stream_options", "stream_options needs stream to be true.")
    if request.min_tokens and request.limit is not None and request.min_tokens > request.limit:
        raise invalid("min_tokens", "min_tokens must not be more than max_tokens.")
    return request


def _without_neutral(data: dict[str, Any], neutral: _Values, path: str = "") -> dict[str, Any]:
    """`data` without unsupported fields that ask for nothing; raises ApiError for one that asks for something."""
    supported = {}
    for key, value in data.items():
        if key not in neutral:
            supported[key] = value
        elif value is not None and not any(_same(value, allowed) for allowed in neutral[key]):
            raise invalid(f"{path}{key}", f"{path}{key} is not supported yet; leave it out.", "unsupported_parameter")
    if isinstance(options := supported.get("stream_options"), dict) and not path:
        supported["stream_options"] = _without_neutral(options, _NEUTRAL_STREAM_OPTIONS, "stream_options.")
    return supported


def _same(value: Any, neutral: Any) -> bool:
    return bool(value == neutral) and isinstance(value, bool) == isinstance(neutral, bool)


def _validate(model: type[_Model], data: dict[str, Any]) -> _Model:
    try:
        return model.model_validate(data)
    except ValidationError as error:
        # Pydantic's errors hold the input; the chain would bring it into logs.
        first = min(error.errors(include_url=False), key=lambda e: e["type"] != "extra_forbidden")
    raise _api_error(first["type"], first["loc"], first["msg"], first.get("ctx", {}))


_SENTENCES = {
    "missing": "is required",
    "string_type": "must be a string",
    "int_type": "must be an integer",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "list_type": "must be a list",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "finite_number": "must be a finite number",
    "greater_than_equal": "must be at least {ge}",
    "greater_than": "must be more than {gt}",
    "less_than_equal": "must be at most {le}",
    "less_than": "must be less than {lt}",
    "string_too_short": "must not be empty",
    "string_too_long": "must have at most {max_length} characters",
    "too_short": "must not be empty",
    "literal_error": "must be {expected}",
}


def _api_error(kind: str, loc: tuple[int | str, ...], message: str, context: Mapping[str, Any]) -> ApiError:
    param = _path(loc)
    match kind:
        case "extra_forbidden":
            return invalid(param, f"Unknown field {param}; leave it out.", "unknown_parameter")
        case "missing":
            return invalid(param, f"{param} is required.", "missing_required_parameter")
        case "sentence":
            return invalid(param, f"{param} {message}.")
        case _:
            sentence = _SENTENCES.get(kind, "is not valid").format_map(context)
            return invalid(param, f"{param} {sentence}.", "invalid_type" if kind.endswith("_type") else "invalid_value")


def _path(loc: tuple[int | str, ...]) -> str:
    path = ""
    for part in loc:
        if isinstance(part, int):
            path += f"[{part}]"
        else:
            # An unknown key is the client's own text: shown only where it is a plain word.
            word = part if re.fullmatch(r"[A-Za-z0-9_.\-]{1,64}", part) else "(unreadable name)"
            path += f".{word}" if path else word
    return path
