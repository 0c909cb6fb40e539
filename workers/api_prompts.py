"""Prompts to tokens: beside the event loop where they are long, and not at all where they could never fit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from workers.api_chat import Choice, render_chat
from workers.api_errors import ApiError, invalid
from workers.api_models import Message, Tool
from workers.backend import Backend
from workers.token_bound import token_bound

_LONG_TEXT = 4096  # characters from which reading or tokenising them would hold up the event loop
_MESSAGE_COST = 64  # characters that one more message costs a template about as much as
_TOOL_COST = 256

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Prompt:
    """token_ids: at least one. text: what the client wrote, None where it sent tokens or a conversation."""

    token_ids: tuple[int, ...]
    text: str | None = None


async def aside(size: int, work: Callable[[], T]) -> T:
    """The result of `work`, on another thread where its input of `size` characters would hold up all other clients."""
    return work() if size < _LONG_TEXT else await asyncio.to_thread(work)


def check_model(backend: Backend, model: str) -> None:
    """Raises ApiError (404)."""
    if model != backend.model_id:
        message = f"There is no such model here; this server has {backend.model_id}."
        raise ApiError(404, message, param="model", code="model_not_found")


def check_template(backend: Backend) -> None:
    """Raises ApiError where the model takes no conversations."""
    if not backend.has_chat_template:
        message = "This model has no chat template; use /v1/completions."
        raise ApiError(400, message, param="model", code="no_chat_template")


async def chat_prompt(
    backend: Backend, messages: Sequence[Message], tools: Sequence[Tool] = (), choice: Choice | None = None
) -> tuple[int, ...]:
    """Raises ApiError."""
    text = await chat_text(backend, messages, tools, choice)
    return await tokenise(backend, text, "messages", add_special_tokens=False)


async def chat_text(
    backend: Backend,
    messages: Sequence[Message],
    tools: Sequence[Tool] = (),
    choice: Choice | None = None,
    *,
    add_generation_prompt: bool = True,
) -> str:
    """What the template makes of a conversation; raises ApiError."""
    said = sum(len(m.content or "") for m in messages) + _TOOL_COST * len(tools)

    def render() -> str:
        return render_chat(backend, messages, tools, choice, add_generation_prompt=add_generation_prompt)

    return await aside(_MESSAGE_COST * len(messages) + said, render)


async def completion_prompts(backend: Backend, prompts: Sequence[str | tuple[int, ...]]) -> list[Prompt]:
    """Raises ApiError, for any of them before the first one is tokenised."""
    for prompt in prompts:
        if isinstance(prompt, str):
            refuse_what_cannot_fit(backend, prompt, "prompt")
        else:
            check_token_ids(backend, "prompt", prompt)
    return [
        Prompt(await tokenise(backend, prompt, "prompt", add_special_tokens=True), prompt)
        if isinstance(prompt, str)
        else Prompt(prompt)
        for prompt in prompts
    ]


def check_token_ids(backend: Backend, param: str, token_ids: Sequence[int]) -> None:
    """Raises ApiError naming `param` where the model has no such token."""
    vocabulary = len(backend.tokenizer)
    if token_ids and max(token_ids) >= vocabulary:
        raise invalid(param, f"{param} has a token id that is none of this model, 0 to {vocabulary - 1}.")


async def tokenise(backend: Backend, text: str, param: str, *, add_special_tokens: bool) -> tuple[int, ...]:
    """Token ids of a prompt; a chat template has written its special tokens itself. Raises ApiError."""

    def encode() -> list[int]:
        refuse_what_cannot_fit(backend, text, param)
        return list(backend.tokenizer.encode(text, add_special_tokens=add_special_tokens, verbose=False))

    token_ids = await aside(len(text), encode)
    if not token_ids:
        raise invalid(param, "The prompt has no tokens; send some text.")
    return tuple(token_ids)


def refuse_what_cannot_fit(backend: Backend, text: str, param: str) -> None:
    """Raises ApiError for a text that has too many tokens however it is cut, in milliseconds instead of seconds."""
    if len(text) >= backend.max_context and (bound := token_bound(backend.tokenizer)) is not None:
        at_least = bound.fewest(text)
        if at_least >= backend.max_context:
            raise too_long(param, f"at least {at_least}", backend.max_context)


def too_long(param: str, tokens: int | str, max_context: int) -> ApiError:
    """A 400 about a prompt that leaves no room for an answer."""
    message = f"The prompt has {tokens} tokens and the context of this model {max_context}; shorten the prompt."
    return invalid(param, message, "context_length_exceeded")
