"""The three kernels of block verification: they decide the unseeded rows in place of the accept walk.

1. one program a sequence: normalisers of every draft position, and the joint scale before each row
2. the mass that the scaled target has above the draft, by (row, block of the vocabulary); with draft logits only
3. one program a sequence: the longest prefix that passes
"""

# Triton gives its functions neither types nor a place for them.
# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"

from __future__ import annotations

import triton
import triton.language as tl

from kernels.verify.fused_noise_kernel import philox_words, unit
from kernels.verify.fused_rows import (
    DRAFT_MAX,
    load_score,
    load_scores,
    log_sum_exp,
    restricted,
    sequence_of,
    threshold_of,
)
from kernels.verify.noise import Purpose
from kernels.verify.verdict import GREEDY_BELOW

_GREEDY_BELOW = tl.constexpr(GREEDY_BELOW)
_ACCEPT = tl.constexpr(int(Purpose.ACCEPT))


@triton.jit
def _is_unseeded(b, temperature_ptr, coupled_ptr):
    return (tl.load(temperature_ptr + b) >= _GREEDY_BELOW) & (tl.load(coupled_ptr + b) == 0)


@triton.jit(do_not_specialize=["normaliser_stride", "plane_stride", "has_thresholds"])
def verify_block_scale_kernel(
    scale_ptr,
    mass_ptr,
    overlap_ptr,
    normaliser_ptr,
    normaliser_stride,
    statistics_ptr,
    target_ptr,
    target_stride,
    threshold_ptr,
    has_thresholds,
    draft_token_ptr,
    draft_ptr,
    draft_stride,
    cu_draft_ptr,
    temperature_ptr,
    inverse_temperature_ptr,
    coupled_ptr,
    vocab_size,
    num_blocks,
    plane_stride,
    HAS_DRAFT_LOGITS: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    b = tl.program_id(0).to(tl.int64)
    if _is_unseeded(b, temperature_ptr, coupled_ptr):
        start = tl.load(cu_draft_ptr + b).to(tl.int64)
        k = tl.load(cu_draft_ptr + b + 1).to(tl.int64) - start
        inverse_temperature = tl.load(inverse_temperature_ptr + b)
        scale = inverse_temperature * 0.0 + 1.0
        for j in range(k):
            row = start + b + j
            tl.store(scale_ptr + row, scale)
            draft = tl.load(draft_token_ptr + start + j)
            normaliser = log_sum_exp(statistics_ptr, plane_stride, row * num_blocks, num_blocks, BLOCKS)
            tl.store(normaliser_ptr + row, normaliser)
            score = load_score(target_ptr + row * target_stride, draft, vocab_size, inverse_temperature)
            score = restricted(score, threshold_of(threshold_ptr, row, has_thresholds))
            # A masked token ends the block, whatever the draft gave it (also 0, which would make the ratio NaN).
            is_masked = score == float("-inf")
            log_ratio = tl.where(is_masked, 0.0, score) - normaliser
            if HAS_DRAFT_LOGITS:
                draft_planes = statistics_ptr + DRAFT_MAX * plane_stride
                normaliser = log_sum_exp(draft_planes, plane_stride, row * num_blocks, num_blocks, BLOCKS)
                tl.store(normaliser_ptr + normaliser_stride + row, normaliser)
                draft_row = draft_ptr + (start + j) * draft_stride
                log_ratio -= load_score(draft_row, draft, vocab_size, inverse_temperature) - normaliser
            else:
                # Above a one-hot draft the scaled target has all its mass but the draft token's.
                target_prob = tl.where(is_masked, 0.0, tl.exp(log_ratio))
                tl.store(mass_ptr + row * num_blocks, scale * (1.0 - target_prob))
                tl.store(overlap_ptr + start + j, target_prob)
            # Finite, so that a scale of 0 stays 0 behind a token that the draft gave nothing.
            ratio = tl.exp(tl.minimum(log_ratio, 80.0))
            scale = tl.where(is_masked, 0.0, tl.minimum(scale * ratio, 1.0))
        tl.store(scale_ptr + start + b + k, scale)


@triton.jit(do_not_specialize=["batch", "normaliser_stride", "has_thresholds"])
def verify_block_mass_kernel(
    mass_ptr,
    scale_ptr,
    normaliser_ptr,
    normaliser_stride,
    target_ptr,
    target_stride,
    threshold_ptr,
    has_thresholds,
    draft_ptr,
    draft_stride,
    cu_draft_ptr,
    temperature_ptr,
    inverse_temperature_ptr,
    coupled_ptr,
    batch,
    vocab_size,
    num_blocks,
    BLOCK: tl.constexpr,
    BATCH_BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    b = sequence_of(row, cu_draft_ptr, batch, BATCH_BLOCK)
    is_bonus = row == tl.load(cu_draft_ptr + b + 1).to(tl.int64) + b
    is_first = row == tl.load(cu_draft_ptr + b).to(tl.int64) + b
    if _is_unseeded(b, temperature_ptr, coupled_ptr) & (is_bonus == 0) & (is_first == 0):
        tokens = block * BLOCK + tl.arange(0, BLOCK)
        inverse_temperature = tl.load(inverse_temperature_ptr + b)
        scores = load_scores(target_ptr + row * target_stride, tokens, vocab_size, inverse_temperature)
        scores = restricted(scores, threshold_of(threshold_ptr, row, has_thresholds))
        target_probs = tl.exp(scores - tl.load(normaliser_ptr + row))
        draft_scores = load_scores(draft_ptr + (row - b) * draft_stride, tokens, vocab_size, inverse_temperature)
        draft_probs = tl.exp(draft_scores - tl.load(normaliser_ptr + normaliser_stride + row))
        above = tl.maximum(tl.load(scale_ptr + row) * target_probs - draft_probs, 0.0)
        tl.store(mass_ptr + row * num_blocks + block, tl.sum(above, 0))


@triton.jit(do_not_specialize=["token_stride"])
def verify_block_accept_kernel(
    num_accepted_ptr,
    token_ptr,
    token_stride,
    overlap_ptr,
    scale_ptr,
    mass_ptr,
    draft_token_ptr,
    cu_draft_ptr,
    temperature_ptr,
    seed_ptr,
    position_ptr,
    coupled_ptr,
    num_blocks,
    HAS_DRAFT_LOGITS: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    b = tl.program_id(0).to(tl.int64)
    if _is_unseeded(b, temperature_ptr, coupled_ptr):
        start = tl.load(cu_draft_ptr + b).to(tl.int64)
        k = tl.load(cu_draft_ptr + b + 1).to(tl.int64) - start
        seed = tl.load(seed_ptr + b)
        position = tl.load(position_ptr + b)
        i = tl.arange(0, BLOCKS)
        accepted = k * 0
        for j in range(1, k + 1):
            row = start + b + j
            scale = tl.load(scale_ptr + row)
            word, _word_1, _word_2, _word_3 = philox_words(seed, position + j - 1, _ACCEPT, (k * 0).to(tl.uint32))
            if j < k:
                if HAS_DRAFT_LOGITS:
                    cells = mass_ptr + row * num_blocks + i
                    mass = tl.sum(tl.load(cells, mask=i < num_blocks, other=0.0), 0)
                else:
                    mass = tl.load(mass_ptr + row * num_blocks)
                passes = unit(word) * (mass + (1.0 - scale)) < mass
            else:
                passes = unit(word) < scale
            accepted = tl.where(passes, j, accepted)
        for j in range(accepted):
            tl.store(token_ptr + b * token_stride + j, tl.load(draft_token_ptr + start + j))
        for j in range(accepted + 1, k):
            tl.store(overlap_ptr + start + j, float("nan"))
        tl.store(num_accepted_ptr + b, accepted.to(tl.int32))
