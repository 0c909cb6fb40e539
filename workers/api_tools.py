"""Tools: how a prompt tells the model of them, and the grammar that its calls follow.

A call is `<tool_call>`, a line {"name": ..., "arguments": {...}} and `</tool_call>`, as in the templates of Qwen and
Hermes. A template that knows no tools, or writes calls in another way, gets them in the system message instead.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from workers.api_errors import invalid
from workers.api_models import ChatRequest, FunctionTool, Tool
from workers.grammar_text import embedded_schema

BEGIN, END = "<tool_call>", "</tool_call>"
CALLS_MOST = 16
"""Calls in one answer: a small model that may go on would do so until its tokens are used up."""
NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}

_PREAMBLE = """\
You may call functions. These are their signatures, one a line:
<tools>
{signatures}
</tools>
To call one, answer with its name and its arguments as JSON within <tool_call></tool_call> tags, like this:
<tool_call>
{{"name": <function name>, "arguments": <object of arguments>}}
</tool_call>{demand}"""


def offered(asked: ChatRequest) -> list[Tool]:
    """The tools that the model is told of: none where none may be called."""
    return [] if asked.tool_choice == ("none", None) else list(asked.tools or ())


def takes_tools(template: str) -> bool:
    """Whether a chat template lists tools by itself, and in the notation that is read here."""
    return re.search(r"\btools\b", template) is not None and BEGIN in template


def signatures(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """As templates take them."""
    return [{"type": "function", "function": tool.function.model_dump(exclude_none=True)} for tool in tools]


def preamble(tools: Sequence[Tool], choice: tuple[str, str | None] | None) -> str:
    """What the system message says of tools where the template says nothing."""
    mode, name = choice or ("auto", None)
    demands = {"required": "\nAnswer with at least one call.", "function": f"\nAnswer with a call of {name}."}
    lines = "\n".join(json.dumps(signature, ensure_ascii=False) for signature in signatures(tools))
    return _PREAMBLE.format(signatures=lines, demand=demands.get(mode, ""))


def parameters(function: FunctionTool, path: str) -> dict[str, Any]:
    """The JSON schema of a function's arguments. Raises ApiError for one that is not of an object."""
    if not function.parameters:
        return NO_PARAMETERS
    if function.parameters.get("type", "object") != "object":
        raise invalid(f"{path}.type", f'{path}.type must be "object": arguments have names.')
    return {"type": "object", **function.parameters}


def tools_grammar(asked: ChatRequest, schemas: Sequence[dict[str, Any]], content: dict[str, Any] | None) -> str:
    """What an answer with tools may be, in Lark's notation; schemas: of each tool's arguments.

    content: the schema of an answer without calls, None where that may be any text. Text may come before the first
    call and not behind one.
    """
    mode, name = asked.tool_choice or ("auto", None)
    usable = [i for i, tool in enumerate(asked.tools or ()) if name is None or tool.function.name == name]
    is_single = mode == "function" or asked.parallel_tool_calls is False
    more = "" if is_single else f" (NEXT call){{0,{CALLS_MOST - 1}}}"
    rules = [
        "%llguidance {}",
        f"call: {' | '.join(f'call_{i}' for i in usable)}",
        f"BEGIN: {_quoted(BEGIN)}",
        f"NEXT: {_quoted(chr(10) + BEGIN)}",
    ]
    if mode in ("required", "function"):
        rules.append(f"start: BEGIN call{more}")
    elif content is not None:
        rules += [f"start: content | BEGIN call{more}", f"content: {embedded_schema(content)}"]
    else:
        # The lexer ends the lazy one at the first tag, so that no text without a call has one.
        rules += [
            f"start: TEXT | text_and_begin call{more}",
            "TEXT: /(.|\\n)*/",
            f"text_and_begin[lazy]: /(.|\\n)*{BEGIN}/",
        ]
    for i in usable:
        assert asked.tools is not None
        head = f'\n{{"name": "{asked.tools[i].function.name}", "arguments": '
        rules.append(f"call_{i}: {_quoted(head)} {embedded_schema(schemas[i])} {_quoted('}' + chr(10) + END)}")
    return "\n".join(rules)


def _quoted(text: str) -> str:
    return json.dumps(text)
