"""Bodies to requests: everything is checked before any work; the first fault is one sentence that names its field."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from workers.api_errors import ApiError, invalid
from workers.api_models import (
    AlertOrder,
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    GenerationRequest,
    KillSwitchRequest,
    Message,
    ResponseFormat,
    TokenizeRequest,
)
from workers.api_neutral import NEUTRAL_CHAT, NEUTRAL_COMPLETION, NEUTRAL_MESSAGE, without_neutral

MOST_NAMES = 500
MOST_NAMES_IN_ALL = 20_000
MOST_BIASES = 32_768


def parse_chat(body: bytes) -> ChatRequest:
    """Raises ApiError."""
    request = _validate(ChatRequest, _plain_messages(without_neutral(parse_object(body), NEUTRAL_CHAT)))
    if request.max_tokens is not None and request.max_completion_tokens not in (None, request.max_tokens):
        raise invalid("max_tokens", "max_tokens and max_completion_tokens differ; send only max_completion_tokens.")
    if request.top_logprobs and not request.logprobs:
        raise invalid("top_logprobs", "top_logprobs needs logprobs to be true.")
    check_messages(request.messages)
    _check_format(request.response_format)
    _check_tools(request)
    return _consistent(request)


def parse_completion(body: bytes) -> CompletionRequest:
    """Raises ApiError."""
    data = without_neutral(parse_object(body), NEUTRAL_COMPLETION)
    if data.get("logprobs") is False:  # the chat dialect's way of asking for none
        del data["logprobs"]
    request = _validate(CompletionRequest, data)
    if request.candidates < request.choices:
        raise invalid("best_of", "best_of must not be less than n.")
    if request.candidates > request.choices and request.stream:
        raise invalid("best_of", "best_of of more than n cannot be streamed: the best is known only at the end.")
    if request.max_tokens == 0 and not request.echo:
        raise invalid("max_tokens", "max_tokens must be at least 1, or 0 with echo true to score the prompt.")
    return _consistent(request)


def parse_tokenize(body: bytes) -> TokenizeRequest:
    """Raises ApiError."""
    request = _validate(TokenizeRequest, _plain_messages(parse_object(body)))
    if (request.prompt is None) == (request.messages is None):
        raise invalid("prompt", "Send either prompt or messages.", "missing_required_parameter")
    check_messages(request.messages or ())
    return request


def parse_detokenize(body: bytes) -> DetokenizeRequest:
    """Raises ApiError."""
    return _validate(DetokenizeRequest, parse_object(body))


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
        json.loads(body, object_pairs_hook=_Keys().check, parse_float=float)
    except _NamedTwice as twice:
        name = _path((twice.key,))
        raise invalid(name, f"{name} is in the body twice; send it once.", "duplicate_key") from None
    except _TooMany as many:
        raise invalid(None, f"The body has over {many.most} {many.of}.", "invalid_value") from None
    except ValueError:
        raise invalid(None, "The body is not valid JSON in UTF-8.", "invalid_json") from None
    if not isinstance(data, dict):
        raise invalid(None, "The body must be a JSON object.", "invalid_type")
    if len(data) > MOST_NAMES:
        raise invalid(None, f"The body has over {MOST_NAMES} fields.", "invalid_value")
    return data


_Request = TypeVar("_Request", bound=GenerationRequest)
_Model = TypeVar("_Model", bound=BaseModel)


def _consistent(request: _Request) -> _Request:
    if request.stream_options is not None and not request.stream:
        raise invalid("stream_options", "stream_options needs stream to be true.")
    options = request.stream_options
    if options is not None and options.continuous_usage_stats and not options.include_usage:
        param = "stream_options.continuous_usage_stats"
        raise invalid(param, f"{param} needs stream_options.include_usage to be true.")
    if request.min_tokens and request.limit is not None and request.min_tokens > request.limit:
        raise invalid("min_tokens", "min_tokens must not be more than max_tokens.")
    return request


class _NamedTwice(Exception):
    def __init__(self, key: str) -> None:
        super().__init__()
        self.key = key


class _TooMany(Exception):
    def __init__(self, most: int, of: str) -> None:
        super().__init__()
        self.most, self.of = most, of


class _Keys:
    """Of one body. Each unknown name costs an error of the validator, and a body could have a hundred thousand."""

    def __init__(self) -> None:
        self._seen = self._biases = 0

    def check(self, pairs: list[tuple[str, Any]]) -> None:
        """Parsers differ on which of two equal keys holds, so that a proxy may have checked the other one."""
        if len(keys := {key for key, _ in pairs}) < len(pairs):
            for key, _ in pairs:
                if key not in keys:
                    raise _NamedTwice(key)
                keys.remove(key)
        if len(pairs) > MOST_NAMES and all(key.isdigit() for key in keys):  # a logit_bias
            self._biases += len(pairs)
            if self._biases > MOST_BIASES:
                raise _TooMany(MOST_BIASES, "token ids as names")
            return
        self._seen += len(pairs)
        if len(pairs) > MOST_NAMES:
            raise _TooMany(MOST_NAMES, "fields in one object")
        if self._seen > MOST_NAMES_IN_ALL:
            raise _TooMany(MOST_NAMES_IN_ALL, "fields in all objects together")


def _plain_messages(data: dict[str, Any]) -> dict[str, Any]:
    """Raises ApiError for what a message asks that is not supported."""
    if not isinstance(messages := data.get("messages"), list):
        return data
    return data | {
        "messages": [
            without_neutral(m, NEUTRAL_MESSAGE, f"messages[{i}].") if isinstance(m, dict) else m
            for i, m in enumerate(messages)
        ]
    }


def check_messages(messages: Sequence[Message]) -> None:
    """Raises ApiError for the first whose parts do not go together."""
    for i, message in enumerate(messages):
        if message.tool_calls and message.role != "assistant":
            raise invalid(f"messages[{i}].tool_calls", f"messages[{i}].tool_calls is for the role assistant alone.")
        if message.content is None and not message.tool_calls:
            param = f"messages[{i}].content"
            raise invalid(param, f"{param} is required.", "missing_required_parameter")
        if (message.role == "tool") != (message.tool_call_id is not None):
            param = f"messages[{i}].tool_call_id"
            if message.role == "tool":
                raise invalid(param, f"{param} is required with the role tool.", "missing_required_parameter")
            raise invalid(param, f"{param} is for the role tool alone.")


def _check_format(wish: ResponseFormat | None) -> None:
    if wish is None or (wish.type == "json_schema") == (wish.json_schema is not None):
        return
    param = "response_format.json_schema"
    if wish.json_schema is None:
        raise invalid(param, f"{param} is required with the type json_schema.", "missing_required_parameter")
    raise invalid(param, f"{param} is for the type json_schema alone.")


def _check_tools(request: ChatRequest) -> None:
    names = [tool.function.name for tool in request.tools or ()]
    if len(set(names)) < len(names):
        raise invalid("tools", "tools must not have two functions of the same name.")
    mode, name = request.tool_choice or ("auto", None)
    if mode not in ("none", "auto") and not names:
        raise invalid("tool_choice", "tool_choice needs tools.")
    if name is not None and name not in names:
        raise invalid("tool_choice", "tool_choice must name a function of tools.")


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
    "too_long": "must have at most {max_length} entries",
    "string_pattern_mismatch": "must be 1 to 64 letters, digits, _ or -",
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
