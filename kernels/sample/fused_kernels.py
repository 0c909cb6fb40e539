"""The kernels of sampling.

1. for penalised and biased rows alone: a float32 copy, then the few logits that change
2. every (row, block of the vocabulary): best token under the noise, maximum and sum of exponentials
3. one program a row: merges the blocks
"""

# Triton gives its functions neither types nor a place for them.
# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"

from __future__ import annotations

import triton
import triton.language as tl

from kernels.filters.fused_kernels import load_adjusted_scores
from kernels.verify.fused_noise_kernel import gumbel_block
from kernels.verify.fused_rows import (
    best_token_of,
    load_score,
    load_scores,
    log_sum_exp,
    restricted,
    store_max_and_sum,
    threshold_of,
    token_at,
)
from kernels.verify.noise import Purpose
from kernels.verify.verdict import GREEDY_BELOW

_GREEDY_BELOW = tl.constexpr(GREEDY_BELOW)
_COUPLED = tl.constexpr(int(Purpose.COUPLED))


@triton.jit
def sample_copy_kernel(adjusted_ptr, logit_ptr, logit_stride, is_adjusted_ptr, vocab_size, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    if tl.load(is_adjusted_ptr + row) != 0:
        tokens = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        logits = load_scores(logit_ptr + row * logit_stride, tokens, vocab_size, 1.0)
        tl.store(adjusted_ptr + row * vocab_size + tokens, logits, mask=tokens < vocab_size)


@triton.jit
def sample_penalise_kernel(
    adjusted_ptr,
    logit_ptr,
    logit_stride,
    is_adjusted_ptr,
    token_ptr,
    occurrence_ptr,
    cu_ptr,
    repetition_ptr,
    inverse_repetition_ptr,
    presence_ptr,
    frequency_ptr,
    vocab_size,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    if tl.load(is_adjusted_ptr + row) != 0:
        repetition, inverse_repetition = tl.load(repetition_ptr + row), tl.load(inverse_repetition_ptr + row)
        presence, frequency = tl.load(presence_ptr + row), tl.load(frequency_ptr + row)
        end = tl.load(cu_ptr + row + 1)
        for first in range(tl.load(cu_ptr + row), end, BLOCK):
            i = first + tl.arange(0, BLOCK)
            tokens = tl.load(token_ptr + i, mask=i < end, other=0)
            inside = (i < end) & (tokens >= 0) & (tokens < vocab_size)
            occurrences = tl.load(occurrence_ptr + i, mask=i < end, other=0)
            logits = tl.load(logit_ptr + row * logit_stride + tokens, mask=inside, other=0.0).to(tl.float32)
            logits = tl.where(logits > 0.0, logits * inverse_repetition, logits * repetition)
            logits = logits - frequency * occurrences.to(tl.float32)
            logits = tl.where(occurrences > 0, logits - presence, logits)
            tl.store(adjusted_ptr + row * vocab_size + tokens, logits, mask=inside)


@triton.jit
def sample_bias_kernel(adjusted_ptr, is_adjusted_ptr, token_ptr, bias_ptr, cu_ptr, vocab_size, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    if tl.load(is_adjusted_ptr + row) != 0:
        end = tl.load(cu_ptr + row + 1)
        for first in range(tl.load(cu_ptr + row), end, BLOCK):
            i = first + tl.arange(0, BLOCK)
            tokens = tl.load(token_ptr + i, mask=i < end, other=0)
            inside = (i < end) & (tokens >= 0) & (tokens < vocab_size)
            seats = adjusted_ptr + row * vocab_size + tokens
            bias = tl.load(bias_ptr + i, mask=inside, other=0.0)
            tl.store(seats, tl.load(seats, mask=inside, other=0.0) + bias, mask=inside)


@triton.jit(do_not_specialize=["has_thresholds", "purpose", "plane_stride"])
def sample_blocks_kernel(
    best_score_ptr,
    best_token_ptr,
    statistics_ptr,
    plane_stride,
    logit_ptr,
    logit_stride,
    adjusted_ptr,
    is_adjusted_ptr,
    threshold_ptr,
    has_thresholds,
    temperature_ptr,
    inverse_temperature_ptr,
    seed_ptr,
    position_ptr,
    coupled_ptr,
    purpose,
    vocab_size,
    num_blocks,
    HAS_ADJUSTED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    first_token = block * BLOCK
    tokens = first_token + tl.arange(0, BLOCK)
    cell = row * num_blocks + block
    is_greedy = tl.load(temperature_ptr + row) < _GREEDY_BELOW
    scale = tl.where(is_greedy, 1.0, tl.load(inverse_temperature_ptr + row))
    scores = load_adjusted_scores(
        row, tokens, logit_ptr, logit_stride, adjusted_ptr, is_adjusted_ptr, vocab_size, scale, HAS_ADJUSTED
    )
    scores = restricted(scores, threshold_of(threshold_ptr, row, has_thresholds))
    store_max_and_sum(statistics_ptr, plane_stride, cell, scores)
    if is_greedy == 0:
        stream = tl.where(tl.load(coupled_ptr + row) != 0, _COUPLED, purpose)
        scores += gumbel_block(tl.load(seed_ptr + row), tl.load(position_ptr + row), stream, first_token, BLOCK)
    best, index = tl.max(scores, 0, return_indices=True, return_indices_tie_break_left=True)
    tl.store(best_score_ptr + cell, best)
    tl.store(best_token_ptr + cell, token_at(first_token, index, vocab_size))


@triton.jit(do_not_specialize=["plane_stride"])
def sample_finish_kernel(
    token_ptr,
    logprob_ptr,
    best_score_ptr,
    best_token_ptr,
    statistics_ptr,
    plane_stride,
    logit_ptr,
    logit_stride,
    adjusted_ptr,
    is_adjusted_ptr,
    temperature_ptr,
    inverse_temperature_ptr,
    vocab_size,
    num_blocks,
    HAS_ADJUSTED: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    scale = tl.load(inverse_temperature_ptr + row)
    scale = tl.where(tl.load(temperature_ptr + row) < _GREEDY_BELOW, 1.0, scale)
    _best, token = best_token_of(best_score_ptr, best_token_ptr, row * num_blocks, num_blocks, BLOCKS)
    is_adjusted = False
    if HAS_ADJUSTED:
        is_adjusted = tl.load(is_adjusted_ptr + row) != 0
    if is_adjusted:
        score = load_score(adjusted_ptr + row * vocab_size, token, vocab_size, scale)
    else:
        score = load_score(logit_ptr + row * logit_stride, token, vocab_size, scale)
    tl.store(token_ptr + row, token.to(tl.int64))
    normaliser = log_sum_exp(statistics_ptr, plane_stride, row * num_blocks, num_blocks, BLOCKS)
    tl.store(logprob_ptr + row, score - normaliser)
