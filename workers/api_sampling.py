"""What a request asks of sampling, as the engine's values, once for each choice."""

from __future__ import annotations

import hashlib
from dataclasses import replace

from workers.api_errors import invalid
from workers.api_models import GenerationRequest
from workers.api_prompts import check_token_ids, too_long
from workers.backend import Backend
from workers.sequence import SamplingParams

DEFAULT_COMPLETION_TOKENS = 16  # as in the OpenAI API


def sampling_for(backend: Backend, asked: GenerationRequest, prompt_tokens: int, is_chat: bool) -> SamplingParams:
    """Of choice 0. Raises ApiError where the prompt and the tokens asked for do not fit the context."""
    limit = _limit(asked, prompt_tokens, backend.max_context, is_chat)
    if (asked.min_tokens or 0) > limit:
        raise invalid("min_tokens", f"min_tokens must not be more than max_tokens, which is {limit} here.")
    check_token_ids(backend, "logit_bias", [token_id for token_id, _ in asked.logit_bias])
    check_token_ids(backend, "stop_token_ids", asked.stop_token_ids)
    ranks = asked.candidates > asked.choices
    scored = asked.alternatives if asked.echoes else None
    return SamplingParams(
        max_tokens=limit,
        temperature=_or(asked.temperature, 1.0),
        top_p=_or(asked.top_p, 1.0),
        top_k=max(asked.top_k or 0, 0),
        min_p=_or(asked.min_p, 0.0),
        repetition_penalty=_or(asked.repetition_penalty, 1.0),
        presence_penalty=_or(asked.presence_penalty, 0.0),
        frequency_penalty=_or(asked.frequency_penalty, 0.0),
        logit_bias=asked.logit_bias,
        stop=asked.stop,
        stop_token_ids=asked.stop_token_ids,
        seed=asked.seed,
        ignore_eos=bool(asked.ignore_eos),
        min_tokens=asked.min_tokens or 0,
        logprobs=0 if asked.alternatives is None and ranks else asked.alternatives,
        # Without a token to generate, the prompt's log-probabilities are all that the engine is asked for.
        prompt_logprobs=0 if scored is None and limit == 0 else scored,
    )


def of_choice(sampling: SamplingParams, choice: int) -> SamplingParams:
    """The same for another choice of the prompt, with a seed of its own where the request has one."""
    return sampling if sampling.seed is None else replace(sampling, seed=seed_of(sampling.seed, choice))


def seed_of(seed: int, choice: int) -> int:
    """Choice 0 is what one choice alone would be; the others' seeds follow from the request's."""
    if choice == 0:
        return seed
    digest = hashlib.blake2b(f"{seed}/{choice}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def _limit(asked: GenerationRequest, prompt_tokens: int, max_context: int, is_chat: bool) -> int:
    """Completion tokens at most."""
    room = max_context - prompt_tokens
    if room < 1:
        raise too_long("messages" if is_chat else "prompt", prompt_tokens, max_context)
    if asked.limit is None:
        return room if is_chat else min(room, DEFAULT_COMPLETION_TOKENS)
    if asked.limit > room:
        message = (
            f"The prompt has {prompt_tokens} tokens, so that of the {max_context} of the context {room} are left; "
            f"lower max_tokens from {asked.limit}."
        )
        raise invalid("max_tokens", message, "context_length_exceeded")
    return asked.limit


def _or(value: float | None, default: float) -> float:
    return default if value is None else value
