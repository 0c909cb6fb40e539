"""One token of every row: for sequences without drafts, and for drafters."""

from __future__ import annotations

import torch

from kernels.filters.limits import limits_of
from kernels.launch import Backend, BackendUnavailable, choose_backend
from kernels.sample import naive
from kernels.sample.adjustments import LogitBias, TokenCounts, count_tokens, penalties_of
from kernels.sample.draws import Draws, Sampled
from kernels.verify.noise import Purpose

__all__ = ["BackendUnavailable", "LogitBias", "Purpose", "Sampled", "TokenCounts", "count_tokens", "sample"]


def sample(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    seeds: torch.Tensor,
    positions: torch.Tensor,
    *,
    coupled: torch.Tensor | None = None,
    purpose: Purpose = Purpose.RESAMPLE,
    top_k: torch.Tensor | None = None,
    top_p: torch.Tensor | None = None,
    min_p: torch.Tensor | None = None,
    repetition_penalty: torch.Tensor | None = None,
    presence_penalty: torch.Tensor | None = None,
    frequency_penalty: torch.Tensor | None = None,
    token_counts: TokenCounts | None = None,
    logit_bias: LogitBias | None = None,
    backend: Backend = "auto",
) -> Sampled:
    """Sample one token from each of B rows of logits, in mixed modes, reading an unfiltered row once.

    logits: [B, V] float32, bfloat16 or float16; -inf masks a token; each row needs a finite logit.
    temperature: [B] f32; under GREEDY_BELOW (0, say) the row is greedy: its argmax, ties to the lowest token.
    seeds, positions: [B] i64, key of the noise and absolute index of the token to be sampled.
    coupled: [B] bool; True takes the noise that a seeded target and its drafter share, False (and None) that of
    `purpose`: RESAMPLE for a target's row, which then takes the very token of `verify_chain` with no drafts, DRAFT for
    a drafter. top_k [B] i32, top_p, min_p [B] f32: as for `verify_chain`, on what the penalties leave.

    Before the temperature, in this order (off values 1, 0, 0; None is off for all rows):
    repetition_penalty r [B] f32, above 0: a logit of a token of prompt or output becomes logit * (1 / r) if positive,
    logit * r if not (Keskar et al. 2019, CTRL, as in transformers).
    frequency_penalty f, presence_penalty p [B] f32: a token with n > 0 occurrences in the output loses f * n + p.
    token_counts: the tokens that these need, from `count_tokens`. logit_bias: added last.

    Returns the tokens and their log-probabilities in the distribution that was sampled. Raises ValueError for arguments
    that do not fit together, BackendUnavailable for a named backend that cannot run.
    """
    draws = Draws(
        logits=logits,
        temperature=temperature,
        seeds=seeds,
        positions=positions,
        coupled=torch.zeros_like(temperature, dtype=torch.bool) if coupled is None else coupled,
        purpose=Purpose(purpose),
        limits=limits_of(top_k, top_p, min_p, temperature),
        penalties=penalties_of(repetition_penalty, presence_penalty, frequency_penalty, token_counts, temperature),
        logit_bias=logit_bias,
    )
    if choose_backend(backend, logits.device) == "naive":
        return naive.sample(draws)
    from kernels.sample import fused  # here, so that nobody imports Triton who does not run it

    return fused.sample(draws)
