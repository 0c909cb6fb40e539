"""A conversation, and the tools that go with it, to the text that the model's chat template makes of them."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from jinja2 import TemplateError
from pydantic_core import from_json

from workers.api_errors import invalid
from workers.api_models import Message, Tool
from workers.api_tools import BEGIN, END, preamble, signatures, takes_tools
from workers.backend import Backend

Choice = tuple[str, str | None]


def render_chat(
    backend: Backend,
    messages: Sequence[Message],
    tools: Sequence[Tool] = (),
    choice: Choice | None = None,
    *,
    add_generation_prompt: bool = True,
) -> str:
    """tools: those that the model is told of; choice: as in `tool_choice`.

    Raises ApiError naming the message that the template does not take.
    """
    template = template_of(backend.tokenizer)
    turns = template_messages(template, messages)
    told: dict[str, Any] = {}
    if tools and takes_tools(template):
        told = {"tools": signatures(tools)}
    elif tools:
        turns = _with_preamble(turns, preamble(tools, choice))
    try:
        return str(
            backend.tokenizer.apply_chat_template(
                turns, tokenize=False, add_generation_prompt=add_generation_prompt, **told
            )
        )
    except (TemplateError, TypeError, AttributeError):  # templates find other faults than those they name
        raise invalid("messages", "The chat template of this model refuses these messages.") from None


def template_messages(template: str, messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The messages as `template` knows them. What it would leave out of calls and their results is written as text:
    calls as the model writes them, results as the user's turn.
    """
    turns: list[dict[str, Any]] = []
    for i, message in enumerate(messages):
        turn = _template_message(template, i, message)
        # Templates want turns to alternate: the results of several calls are one.
        if message.role == "tool" and turn["role"] == "user" and i and messages[i - 1].role == "tool":
            turns[-1]["content"] += "\n" + turn["content"]
        else:
            turns.append(turn)
    return turns


def _with_preamble(turns: list[dict[str, Any]], text: str) -> list[dict[str, Any]]:
    first = turns[0]
    if first["role"] == "system":
        return [{**first, "content": f"{first['content']}\n\n{text}"}, *turns[1:]]
    return [{"role": "system", "content": text}, *turns]


def _template_message(template: str, index: int, message: Message) -> dict[str, Any]:
    role: str = message.role
    if role == "developer" and not names(template, "developer"):
        role = "system"  # the same under OpenAI's older name
    if role == "tool" and not names(template, "tool"):
        return {"role": "user", "content": f"<tool_response>\n{message.content}\n</tool_response>"}
    said: dict[str, Any] = {"role": role, "content": message.content or ""}
    if message.tool_call_id is not None:
        said["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        calls = [
            (call.id, {"name": call.function.name, "arguments": arguments})
            for n, call in enumerate(message.tool_calls)
            for arguments in [_arguments(call.function.arguments, f"messages[{index}].tool_calls[{n}]")]
        ]
        if names(template, "tool_calls"):
            said["tool_calls"] = [{"id": id, "type": "function", "function": function} for id, function in calls]
        else:
            written = [f"{BEGIN}\n{json.dumps(function, ensure_ascii=False)}\n{END}" for _, function in calls]
            said["content"] = "\n".join([said["content"], *written] if said["content"] else written)
    return said


def names(template: str, word: str) -> bool:
    """Whether a template has the word as a string or as an attribute."""
    return re.search(rf"""(['"]){word}\1|\.{word}\b""", template) is not None


def template_of(tokenizer: Any) -> str:
    """The text of the default chat template."""
    template = tokenizer.chat_template
    return str(template.get("default", "") if isinstance(template, dict) else template or "")


def _arguments(text: str, path: str) -> Any:
    """Templates write arguments as JSON by themselves."""
    try:
        return from_json(text, allow_inf_nan=False)  # unlike json it refuses half of a surrogate pair: no text has one
    except ValueError:
        raise invalid(f"{path}.function.arguments", f"{path}.function.arguments must be JSON text.") from None
