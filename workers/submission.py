"""What the engine takes of a request: everything it could not honour is refused by name, before any work."""

from __future__ import annotations

import math
from collections.abc import Sequence

from workers.sequence import MAX_LOGPROBS, MIN_REPETITION_PENALTY, EngineRequest, SamplingParams


def check_request(request: EngineRequest, context: int, vocab_size: int) -> None:
    """Raise ValueError, one line that names the field, for a request that a model of this size cannot serve."""
    sampling, prompt_length = request.sampling, len(request.prompt_token_ids)
    if not 0 < prompt_length < context:
        raise ValueError(f"prompt has {prompt_length} tokens; this model takes 1 to {context - 1}")
    fewest = 0 if sampling.prompt_logprobs is not None else 1
    if sampling.max_tokens < fewest or prompt_length + sampling.max_tokens > context:
        raise ValueError(
            f"max_tokens is {sampling.max_tokens}; after {prompt_length} prompt tokens it may be "
            f"{fewest} to {context - prompt_length}"
        )
    _check_numbers(sampling)
    _check_bias(sampling)
    named = {
        "prompt": request.prompt_token_ids,
        "prediction": request.prediction,
        "logit_bias": [token for token, _ in sampling.logit_bias],
        "stop_token_ids": sampling.stop_token_ids,
    }
    for name, tokens in named.items():
        _check_tokens(name, tokens, vocab_size)


def check_room(request: EngineRequest, kv_tokens: int) -> None:
    """Raise ValueError for a request that would not fit into a KV cache of so many tokens even if it were alone."""
    tokens = len(request.prompt_token_ids) + request.sampling.max_tokens
    if tokens > kv_tokens:
        raise ValueError(
            f"prompt and max_tokens come to {tokens} tokens; the KV cache holds {kv_tokens}: ask for fewer, or raise "
            "the setting kv_cache_tokens"
        )


def _check_numbers(sampling: SamplingParams) -> None:
    if not 0 <= sampling.temperature < math.inf:
        raise ValueError(f"temperature is {sampling.temperature}; it must be 0 or more, and 0 is greedy")
    if not 0 < sampling.top_p <= 1:
        raise ValueError(f"top_p is {sampling.top_p}; it must lie in (0, 1], and 1 is off")
    for name in ("top_k", "min_tokens"):
        value = getattr(sampling, name)
        if value < 0:
            raise ValueError(f"{name} is {value}; it must be 0 or more, and 0 is off")
    if not 0 <= sampling.min_p <= 1:
        raise ValueError(f"min_p is {sampling.min_p}; it must lie in [0, 1], and 0 is off")
    if not MIN_REPETITION_PENALTY <= sampling.repetition_penalty < math.inf:
        least = MIN_REPETITION_PENALTY
        raise ValueError(
            f"repetition_penalty is {sampling.repetition_penalty}; it must be {least} or more, and 1 is off"
        )
    for name in ("presence_penalty", "frequency_penalty"):
        value = getattr(sampling, name)
        if not math.isfinite(value):
            raise ValueError(f"{name} is {value}; it must be a number, and 0 is off")
    for name in ("logprobs", "prompt_logprobs"):
        value = getattr(sampling, name)
        if value is not None and not 0 <= value <= MAX_LOGPROBS:
            raise ValueError(f"{name} is {value}; it may be 0 to {MAX_LOGPROBS}")


def _check_bias(sampling: SamplingParams) -> None:
    biased = [token for token, _ in sampling.logit_bias]
    if len(set(biased)) < len(biased):
        raise ValueError("logit_bias names a token twice; give each once")
    if not all(math.isfinite(value) for _, value in sampling.logit_bias):
        raise ValueError("logit_bias has a value that is no number; correct it")


def _check_tokens(name: str, tokens: Sequence[int], vocab_size: int) -> None:
    """A tokenizer may know tokens that its model has no row for: looking one up would end the whole batch."""
    if not tokens:
        return
    outside = min(tokens) if min(tokens) < 0 else max(tokens)
    if not 0 <= outside < vocab_size:
        raise ValueError(f"{name} has the token {outside}; this model's are 0 to {vocab_size - 1}")
