"""Fields that are not supported, of the OpenAI API and of what other servers add to it, where they ask for nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workers.api_errors import invalid

Values = Mapping[str, tuple[Any, ...]]
# By field: the values, besides null, that ask for nothing.
NEUTRAL: Values = {
    "prompt_cache_key": (),
    "prompt_cache_retention": (),
    "store": (False,),
    "use_beam_search": (False,),
    "length_penalty": (1,),
    "include_stop_str_in_output": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "truncate_prompt_tokens": (),
    "priority": (0,),
}
NEUTRAL_CHAT: Values = {
    **NEUTRAL,
    "best_of": (1,),
    "echo": (False,),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
    "reasoning_effort": ("none",),
    "verbosity": ("medium",),
    "web_search_options": (),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "add_special_tokens": (False,),
    "chat_template": (),
    "chat_template_kwargs": ({},),
}
NEUTRAL_COMPLETION: Values = {
    **NEUTRAL,
    "suffix": ("",),
    "add_special_tokens": (True,),
}
NEUTRAL_MESSAGE: Values = {
    "name": (),
    "refusal": (),
    "function_call": (),
    "audio": (),
    "annotations": ([],),
    "reasoning_content": ("",),
}
NEUTRAL_STREAM_OPTIONS: Values = {"include_obfuscation": (False,)}


def neutral_schemas(neutral: Values) -> dict[str, Any]:
    """JSON schemas of the fields, for the OpenAPI document."""
    return {
        name: {"enum": [*allowed, None], "description": "Not supported; accepted where it asks for nothing."}
        for name, allowed in neutral.items()
    }


def without_neutral(data: dict[str, Any], neutral: Values, path: str = "") -> dict[str, Any]:
    """`data` without unsupported fields that ask for nothing; raises ApiError for one that asks for something."""
    supported = {}
    for key, value in data.items():
        if key not in neutral:
            supported[key] = value
        elif value is not None and not any(_same(value, allowed) for allowed in neutral[key]):
            raise invalid(f"{path}{key}", f"{path}{key} is not supported yet; leave it out.", "unsupported_parameter")
    if isinstance(options := supported.get("stream_options"), dict) and not path:
        supported["stream_options"] = without_neutral(options, NEUTRAL_STREAM_OPTIONS, "stream_options.")
    return supported


def _same(value: Any, neutral: Any) -> bool:
    return bool(value == neutral) and isinstance(value, bool) == isinstance(neutral, bool)
