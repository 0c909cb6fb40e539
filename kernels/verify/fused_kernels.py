"""The four kernels of chain verification.

1. statistics of every (row, block of the vocabulary): maximum and sum of exponentials, or the best token
2. accept walk, one program a sequence: merges the statistics row by row and stops at the first rejection
3. a second look at rows that the walk reached: overlap mass, and the resampled token of the last row only
4. one program a sequence: merges the blocks of 3
"""

# Triton gives its functions neither types nor a place for them.
# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"

from __future__ import annotations

import triton
import triton.language as tl

from kernels.verify.fused_noise_kernel import gumbel_block, philox_words, unit
from kernels.verify.fused_rows import (
    BEST_SCORE,
    DRAFT_MAX,
    TARGET_MAX,
    best_token_of,
    load_score,
    load_scores,
    log_sum_exp,
    restricted,
    sequence_of,
    store_max_and_sum,
    threshold_of,
    token_at,
)
from kernels.verify.noise import Purpose
from kernels.verify.verdict import GREEDY_BELOW

_GREEDY_BELOW = tl.constexpr(GREEDY_BELOW)
_ACCEPT = tl.constexpr(int(Purpose.ACCEPT))
_RESAMPLE = tl.constexpr(int(Purpose.RESAMPLE))
_COUPLED = tl.constexpr(int(Purpose.COUPLED))


@triton.jit(do_not_specialize=["batch", "plane_stride", "has_thresholds"])
def verify_statistics_kernel(
    statistics_ptr,
    best_token_ptr,
    target_ptr,
    target_stride,
    threshold_ptr,
    has_thresholds,
    draft_ptr,
    draft_stride,
    cu_draft_ptr,
    temperature_ptr,
    inverse_temperature_ptr,
    seed_ptr,
    position_ptr,
    coupled_ptr,
    batch,
    vocab_size,
    num_blocks,
    plane_stride,
    HAS_DRAFT_LOGITS: tl.constexpr,
    BLOCK: tl.constexpr,
    BATCH_BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    b = sequence_of(row, cu_draft_ptr, batch, BATCH_BLOCK)
    start = tl.load(cu_draft_ptr + b).to(tl.int64)
    j = row - start - b
    is_last = row == tl.load(cu_draft_ptr + b + 1).to(tl.int64) + b
    is_greedy = tl.load(temperature_ptr + b) < _GREEDY_BELOW
    is_coupled = tl.load(coupled_ptr + b) != 0
    first_token = block * BLOCK
    tokens = first_token + tl.arange(0, BLOCK)
    cell = row * num_blocks + block
    target_row = target_ptr + row * target_stride

    if is_greedy:
        logits = load_scores(target_row, tokens, vocab_size, 1.0)
        best, index = tl.max(logits, 0, return_indices=True, return_indices_tie_break_left=True)
        tl.store(statistics_ptr + BEST_SCORE * plane_stride + cell, best)
        tl.store(best_token_ptr + cell, token_at(first_token, index, vocab_size))
    elif is_coupled or (is_last == 0):
        inverse_temperature = tl.load(inverse_temperature_ptr + b)
        scores = load_scores(target_row, tokens, vocab_size, inverse_temperature)
        scores = restricted(scores, threshold_of(threshold_ptr, row, has_thresholds))
        if is_coupled:
            position = tl.load(position_ptr + b) + j
            noise = gumbel_block(tl.load(seed_ptr + b), position, _COUPLED, first_token, BLOCK)
            best, index = tl.max(scores + noise, 0, return_indices=True, return_indices_tie_break_left=True)
            tl.store(statistics_ptr + BEST_SCORE * plane_stride + cell, best)
            tl.store(best_token_ptr + cell, token_at(first_token, index, vocab_size))
        if is_last == 0:
            store_max_and_sum(statistics_ptr + TARGET_MAX * plane_stride, plane_stride, cell, scores)
            if HAS_DRAFT_LOGITS:
                draft_row = draft_ptr + (row - b) * draft_stride
                draft_scores = load_scores(draft_row, tokens, vocab_size, inverse_temperature)
                store_max_and_sum(statistics_ptr + DRAFT_MAX * plane_stride, plane_stride, cell, draft_scores)


@triton.jit(
    do_not_specialize=["normaliser_stride", "plane_stride", "width", "token_stride", "has_thresholds", "walks_unseeded"]
)
def verify_accept_kernel(
    num_accepted_ptr,
    token_ptr,
    token_stride,
    overlap_ptr,
    normaliser_ptr,
    normaliser_stride,
    statistics_ptr,
    best_token_ptr,
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
    seed_ptr,
    position_ptr,
    coupled_ptr,
    vocab_size,
    num_blocks,
    plane_stride,
    width,
    walks_unseeded,
    HAS_DRAFT_LOGITS: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    b = tl.program_id(0).to(tl.int64)
    start = tl.load(cu_draft_ptr + b).to(tl.int64)
    k = tl.load(cu_draft_ptr + b + 1).to(tl.int64) - start
    is_greedy = tl.load(temperature_ptr + b) < _GREEDY_BELOW
    is_own_choice = is_greedy | (tl.load(coupled_ptr + b) != 0)
    inverse_temperature = tl.load(inverse_temperature_ptr + b)
    seed = tl.load(seed_ptr + b)
    position = tl.load(position_ptr + b)

    token_row = token_ptr + b * token_stride
    for column in range(width):
        tl.store(token_row + column, -1)
    for j in range(k):
        tl.store(overlap_ptr + start + j, float("nan"))
    accepted = k * 0
    walking = (k > 0) & (is_own_choice | (walks_unseeded != 0))
    while walking:
        row = start + b + accepted
        draft = tl.load(draft_token_ptr + start + accepted)
        first_cell = row * num_blocks
        overlap = 0.0
        log_target = float("-inf")
        log_draft = 0.0
        if is_greedy == 0:
            normaliser = log_sum_exp(statistics_ptr, plane_stride, first_cell, num_blocks, BLOCKS)
            tl.store(normaliser_ptr + row, normaliser)
            score = load_score(target_ptr + row * target_stride, draft, vocab_size, inverse_temperature)
            score = restricted(score, threshold_of(threshold_ptr, row, has_thresholds))
            log_target = score - normaliser
            overlap = tl.exp(log_target)
            if HAS_DRAFT_LOGITS:
                draft_planes = statistics_ptr + DRAFT_MAX * plane_stride
                normaliser = log_sum_exp(draft_planes, plane_stride, first_cell, num_blocks, BLOCKS)
                tl.store(normaliser_ptr + normaliser_stride + row, normaliser)
                draft_row = draft_ptr + (start + accepted) * draft_stride
                log_draft = load_score(draft_row, draft, vocab_size, inverse_temperature) - normaliser
        if is_own_choice:
            best_planes = statistics_ptr + BEST_SCORE * plane_stride
            _score, token = best_token_of(best_planes, best_token_ptr, first_cell, num_blocks, BLOCKS)
            walking = token == draft
            if is_greedy:
                overlap = walking.to(tl.float32)
            if walking == 0:
                tl.store(token_row + accepted, token.to(tl.int64))
        else:
            word, _word_1, _word_2, _word_3 = philox_words(
                seed, position + accepted, _ACCEPT, (accepted * 0).to(tl.uint32)
            )
            # Strict, and false for a target probability of 0 whatever the draft's is.
            walking = tl.log(unit(word)) + log_draft < log_target
        tl.store(overlap_ptr + start + accepted, overlap)
        if walking:
            tl.store(token_row + accepted, draft)
            accepted += 1
            walking = accepted < k
    tl.store(num_accepted_ptr + b, accepted.to(tl.int32))
    # A recovered or bonus token that rejection sampling owes is left at -1 here; the last kernel writes it.
    if is_own_choice & (accepted == k):
        best_planes = statistics_ptr + BEST_SCORE * plane_stride
        _score, token = best_token_of(best_planes, best_token_ptr, (start + b + k) * num_blocks, num_blocks, BLOCKS)
        tl.store(token_row + k, token.to(tl.int64))


@triton.jit(do_not_specialize=["batch", "score_stride", "normaliser_stride", "has_thresholds", "has_scales"])
def verify_resample_kernel(
    partial_overlap_ptr,
    score_ptr,
    best_token_ptr,
    score_stride,
    num_accepted_ptr,
    scale_ptr,
    has_scales,
    normaliser_ptr,
    normaliser_stride,
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
    seed_ptr,
    position_ptr,
    coupled_ptr,
    batch,
    vocab_size,
    num_blocks,
    HAS_DRAFT_LOGITS: tl.constexpr,
    BLOCK: tl.constexpr,
    BATCH_BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    b = sequence_of(row, cu_draft_ptr, batch, BATCH_BLOCK)
    start = tl.load(cu_draft_ptr + b).to(tl.int64)
    j = row - start - b
    is_bonus = row == tl.load(cu_draft_ptr + b + 1).to(tl.int64) + b
    is_greedy = tl.load(temperature_ptr + b) < _GREEDY_BELOW
    accepted = tl.load(num_accepted_ptr + b)
    resamples = (j == accepted) & (tl.load(coupled_ptr + b) == 0)
    measures = (j <= accepted) & (is_bonus == 0) & HAS_DRAFT_LOGITS

    if (is_greedy == 0) & (resamples | measures):
        first_token = block * BLOCK
        tokens = first_token + tl.arange(0, BLOCK)
        cell = row * num_blocks + block
        inverse_temperature = tl.load(inverse_temperature_ptr + b)
        scores = load_scores(target_ptr + row * target_stride, tokens, vocab_size, inverse_temperature)
        scores = restricted(scores, threshold_of(threshold_ptr, row, has_thresholds))
        residual = tl.zeros((BLOCK,), tl.float32)
        if is_bonus == 0:
            target_probs = tl.exp(scores - tl.load(normaliser_ptr + row))
            if HAS_DRAFT_LOGITS:
                draft_row = draft_ptr + (row - b) * draft_stride
                draft_scores = load_scores(draft_row, tokens, vocab_size, inverse_temperature)
                draft_probs = tl.exp(draft_scores - tl.load(normaliser_ptr + normaliser_stride + row))
                # 1 but for block verification, whose walk left a scale before every row that it decided.
                is_scaled = (has_scales != 0) & (tl.load(coupled_ptr + b) == 0)
                scale = tl.load(scale_ptr + row, mask=is_scaled, other=1.0)
                tl.store(partial_overlap_ptr + cell, tl.sum(tl.minimum(target_probs, draft_probs / scale), 0))
                residual = tl.maximum(scale * target_probs - draft_probs, 0.0)
            else:
                draft = tl.load(draft_token_ptr + row - b)
                residual = tl.where(tokens == draft, 0.0, target_probs)
        if resamples:
            noise = gumbel_block(tl.load(seed_ptr + b), tl.load(position_ptr + b) + j, _RESAMPLE, first_token, BLOCK)
            # Both candidates, because only all blocks together show that the residual is empty.
            whole_score, whole_index = tl.max(
                scores + noise, 0, return_indices=True, return_indices_tie_break_left=True
            )
            log_residual = tl.where(residual > 0.0, tl.log(tl.where(residual > 0.0, residual, 1.0)), float("-inf"))
            best, index = tl.max(log_residual + noise, 0, return_indices=True, return_indices_tie_break_left=True)
            seat = b * num_blocks + block
            tl.store(score_ptr + seat, best)
            tl.store(best_token_ptr + seat, token_at(first_token, index, vocab_size))
            tl.store(score_ptr + score_stride + seat, whole_score)
            tl.store(best_token_ptr + score_stride + seat, token_at(first_token, whole_index, vocab_size))


@triton.jit(do_not_specialize=["token_stride", "score_stride"])
def verify_finish_kernel(
    token_ptr,
    token_stride,
    overlap_ptr,
    partial_overlap_ptr,
    score_ptr,
    best_token_ptr,
    score_stride,
    num_accepted_ptr,
    cu_draft_ptr,
    temperature_ptr,
    coupled_ptr,
    num_blocks,
    HAS_DRAFT_LOGITS: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    b = tl.program_id(0).to(tl.int64)
    start = tl.load(cu_draft_ptr + b).to(tl.int64)
    k = tl.load(cu_draft_ptr + b + 1).to(tl.int64) - start
    accepted = tl.load(num_accepted_ptr + b).to(tl.int64)
    if tl.load(temperature_ptr + b) >= _GREEDY_BELOW:
        if HAS_DRAFT_LOGITS:
            i = tl.arange(0, BLOCKS)
            for j in range(tl.minimum(accepted + 1, k)):
                cells = partial_overlap_ptr + (start + b + j) * num_blocks + i
                mass = tl.sum(tl.load(cells, mask=i < num_blocks, other=0.0), 0)
                tl.store(overlap_ptr + start + j, tl.minimum(mass, 1.0))
        if tl.load(coupled_ptr + b) == 0:
            best, token = best_token_of(score_ptr, best_token_ptr, b * num_blocks, num_blocks, BLOCKS)
            if best == float("-inf"):
                whole_scores, whole_tokens = score_ptr + score_stride, best_token_ptr + score_stride
                best, token = best_token_of(whole_scores, whole_tokens, b * num_blocks, num_blocks, BLOCKS)
            tl.store(token_ptr + b * token_stride + accepted, token)
