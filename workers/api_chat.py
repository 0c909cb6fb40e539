"""A conversation to the text that the model's chat template makes of it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from jinja2 import TemplateError

from workers.api_errors import invalid
from workers.api_models import Message
from workers.backend import Backend


def render_chat(backend: Backend, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> str:
    """Raises ApiError naming the message that the template does not take."""
    turns = template_messages(template_of(backend.tokenizer), messages)
    try:
        return str(
            backend.tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=add_generation_prompt)
        )
    except (TemplateError, TypeError, AttributeError):  # templates find other faults than those they name
        raise invalid("messages", "The chat template of this model refuses these messages.") from None


def template_messages(template: str, messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The messages as `template` knows them; raises ApiError for a role or a field that it would leave out."""
    return [_template_message(template, i, message) for i, message in enumerate(messages)]


def _template_message(template: str, index: int, message: Message) -> dict[str, Any]:
    role: str = message.role
    if role == "developer" and not names(template, "developer"):
        role = "system"  # the same under OpenAI's older name
    if role == "tool" and not names(template, "tool"):
        raise _unsupported(f"messages[{index}].role", "has no messages of the role tool")
    said: dict[str, Any] = {"role": role, "content": message.content or ""}
    if message.tool_call_id is not None:
        said["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        if not names(template, "tool_calls"):
            raise _unsupported(f"messages[{index}].tool_calls", "has no tool calls")
        said["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.function.name, "arguments": arguments}}
            for n, call in enumerate(message.tool_calls)
            for arguments in [_arguments(call.function.arguments, f"messages[{index}].tool_calls[{n}]")]
        ]
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
        return json.loads(text)
    except (ValueError, RecursionError):
        raise invalid(f"{path}.function.arguments", f"{path}.function.arguments must be JSON text.") from None


def _unsupported(param: str, what: str) -> Exception:
    message = f"{param} is not supported here: the chat template of this model {what}."
    return invalid(param, message, "unsupported_parameter")
