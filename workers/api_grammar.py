"""What a chat's answer must parse as: `response_format` and `tools`, as the engine's grammar."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import Any

from workers.api_errors import ApiError, invalid
from workers.api_models import ChatRequest, GenerationRequest, ResponseFormat
from workers.api_tools import BEGIN, END, offered, parameters, tools_grammar
from workers.backend import Backend
from workers.grammar_text import schema_fault
from workers.sequence import GrammarSpec
from workers.token_text import token_text

SCHEMA = "response_format.json_schema.schema"
CHECKED_MOST = 512
"""Schemas whose verdict is kept."""
_REASON_MOST = 200  # characters


def grammar_cost(asked: GenerationRequest) -> int:
    """Characters of text that takes about as long to read as the schemas of a request take to check."""
    if not isinstance(asked, ChatRequest):
        return 0
    schemas = [tool.function.parameters for tool in asked.tools or ()]
    if asked.response_format is not None and asked.response_format.json_schema is not None:
        schemas.append(asked.response_format.json_schema.schema_)
    return 20 * sum(len(json.dumps(schema)) for schema in schemas if schema)


def grammar_for(backend: Backend, asked: GenerationRequest) -> GrammarSpec | None:
    """None where any text will do. Raises ApiError naming the field that asks for what cannot be had."""
    if not isinstance(asked, ChatRequest):
        return None
    content = _format_schema(asked.response_format)
    tools = offered(asked)
    if not tools:
        if content is None:
            return None
        if asked.response_format is not None and asked.response_format.type == "json_object":
            return GrammarSpec("json_object")
        return GrammarSpec("json_schema", _text(content))
    _check_tags(backend)
    schemas = []
    for i, tool in enumerate(tools):
        path = f"tools[{i}].function.parameters"
        schemas.append(parameters(tool.function, path))
        _check(schemas[-1], path)
    return GrammarSpec("grammar", tools_grammar(asked, schemas, content))


def _format_schema(wish: ResponseFormat | None) -> dict[str, Any] | None:
    """What an answer must be valid against; None for any text. Raises ApiError."""
    if wish is None or wish.type == "text":
        return None
    if wish.json_schema is None:
        return {"type": "object"}
    schema = wish.json_schema.schema_
    if schema is None:
        raise invalid(SCHEMA, f"{SCHEMA} is required.", "missing_required_parameter")
    _check(schema, SCHEMA)
    return schema


def _check(schema: dict[str, Any], path: str) -> None:
    try:
        fault = _fault(_text(schema))
    except ValueError:  # 1e400 is JSON, and no number of anybody's
        fault = "", "a number in it is out of range"
    if fault is not None:
        where, reason = fault
        param = path + _readable(where)
        raise invalid(param, f"{param} cannot be honoured: {reason[:_REASON_MOST]}.", "unsupported_schema")


@lru_cache(CHECKED_MOST)
def _fault(text: str) -> tuple[str, str] | None:
    try:
        return schema_fault(json.loads(text))
    except RecursionError:
        return "", "it is nested too deeply"


def _text(schema: dict[str, Any]) -> str:
    """The order of properties is kept: answers have theirs in it. Raises ValueError for a number that is none."""
    return json.dumps(schema, ensure_ascii=False, allow_nan=False)


def _readable(path: str) -> str:
    """Names of properties are the client's own text: shown only where they are plain."""
    plain = r"\.[A-Za-z0-9_$\-]{1,64}|\[[0-9]+\]"
    return path if re.fullmatch(f"({plain})*", path) else " (a part of it)"


def _check_tags(backend: Backend) -> None:
    """Raises ApiError where the model's own tags are tokens that never show in a text."""
    text = token_text(backend.tokenizer)
    if text.hides(BEGIN) or text.hides(END):
        raise _no_tools()


def _no_tools() -> ApiError:
    message = "tools is not supported with this model, whose calls are special tokens; leave it out."
    return invalid("tools", message, "unsupported_parameter")
