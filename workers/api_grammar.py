"""What a chat's answer must parse as: `response_format` and `tools`, as the engine's grammar."""

from __future__ import annotations

from workers.api_errors import invalid
from workers.api_models import ChatRequest, GenerationRequest
from workers.sequence import GrammarSpec


def grammar_for(asked: GenerationRequest) -> GrammarSpec | None:
    """None where any text will do. Raises ApiError naming the field that asks for what cannot be had."""
    if not isinstance(asked, ChatRequest):
        return None
    if asked.tools:
        raise invalid("tools", "tools is not supported yet; leave it out.", "unsupported_parameter")
    if asked.response_format is not None and asked.response_format.type != "text":
        message = 'response_format is not supported yet; leave it out or send {"type": "text"}.'
        raise invalid("response_format", message, "unsupported_parameter")
    return None
