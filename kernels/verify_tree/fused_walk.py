"""The walk from the root, one program a sequence, and what follows it: a second look at rows that it reached.

walk: tries children row by row until none stands; resample: the token of the last row, and the mass that the last child
tried left; finish: merges the blocks of resample.
"""

# Triton gives its functions neither types nor a place for them.
# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"

from __future__ import annotations

import triton
import triton.language as tl

from kernels.verify.fused_noise_kernel import gumbel_block, philox_words, unit
from kernels.verify.fused_rows import best_token_of, load_scores, token_at
from kernels.verify.noise import Purpose
from kernels.verify.verdict import GREEDY_BELOW
from kernels.verify_tree.fused_rounds import (
    finite_or_zero,
    is_among,
    log_or_nothing,
    merged,
    overlap_of,
    plane_sum,
    residual_mass,
)
from kernels.verify_tree.fused_rows import DRAFT_MAX, NUM_CHILDREN, TARGET_MAX
from kernels.verify_tree.fused_tests import (
    CHANCE,
    END_FLOOR,
    END_LOG_LEFT,
    END_LOG_WEIGHT,
    LOG_OFFERED,
    LOG_RESIDUAL,
)

_GREEDY_BELOW = tl.constexpr(GREEDY_BELOW)
_ACCEPT = tl.constexpr(int(Purpose.ACCEPT))
_RESAMPLE = tl.constexpr(int(Purpose.RESAMPLE))


@triton.jit
def uniforms_of(seed, position, ranks):
    """The uniforms of the acceptance tests of children of these ranks, as `noise.uniforms` has them."""
    lane_0, lane_1, lane_2, lane_3 = philox_words(seed, position, _ACCEPT, (ranks // 4).to(tl.uint32))
    lane = ranks % 4
    return unit(tl.where(lane == 0, lane_0, tl.where(lane == 1, lane_1, tl.where(lane == 2, lane_2, lane_3))))


@triton.jit(do_not_specialize=["max_depth", "child_width", "place_stride", "test_stride", "num_blocks"])
def tree_walk_kernel(
    num_accepted_ptr,
    token_ptr,
    accepted_node_ptr,
    num_examined_ptr,
    accepted_rank_ptr,
    overlap_ptr,
    max_depth,
    test_ptr,
    test_stride,
    place_ptr,
    place_stride,
    child_ptr,
    child_token_ptr,
    child_width,
    best_score_ptr,
    best_token_ptr,
    cu_nodes_ptr,
    temperature_ptr,
    seed_ptr,
    position_ptr,
    coupled_ptr,
    num_blocks,
    BLOCKS: tl.constexpr,
    TREE_BLOCK: tl.constexpr,
):
    b = tl.program_id(0).to(tl.int64)
    start = tl.load(cu_nodes_ptr + b).to(tl.int64)
    is_greedy = tl.load(temperature_ptr + b) < _GREEDY_BELOW
    is_own_choice = is_greedy | (tl.load(coupled_ptr + b) != 0)
    seed = tl.load(seed_ptr + b)
    position = tl.load(position_ptr + b)
    ranks = tl.arange(0, TREE_BLOCK)

    node = start * 0 - 1
    depth = (start * 0).to(tl.int32)
    walking = depth >= 0
    while walking:
        row = start + b + 1 + node
        count = tl.load(place_ptr + NUM_CHILDREN * place_stride + row)
        is_child = ranks < count
        children = row * child_width + ranks
        # A token that rejection sampling owes is left at -1; the last kernel writes it.
        emitted = start * 0 - 1
        if is_own_choice:
            first_cell = row * num_blocks
            _score, own_token = best_token_of(best_score_ptr, best_token_ptr, first_cell, num_blocks, BLOCKS)
            emitted = own_token.to(tl.int64)
            stands = tl.load(child_token_ptr + children, mask=is_child, other=-1) == own_token
        else:
            log_offered = tl.load(test_ptr + LOG_OFFERED * test_stride + children, mask=is_child, other=0.0)
            log_residual = tl.load(test_ptr + LOG_RESIDUAL * test_stride + children, mask=is_child, other=0.0)
            # Strict, and false for a residual of 0 whatever is offered.
            stands = tl.log(uniforms_of(seed, position + depth, ranks)) + log_offered < log_residual
        rank = tl.min(tl.where(stands & is_child, ranks, count), 0)
        walking = rank < count
        examined = tl.where(walking, rank + 1, count)

        nodes = tl.load(child_ptr + children, mask=is_child, other=0)
        if is_greedy:
            overlap = (ranks == rank).to(tl.float32)
        else:
            overlap = tl.load(test_ptr + CHANCE * test_stride + children, mask=is_child, other=0.0)
        tl.store(overlap_ptr + start + nodes, overlap, mask=ranks < examined)
        if depth < max_depth:
            tl.store(num_examined_ptr + b * max_depth + depth, examined)
        if walking:
            node = tl.load(child_ptr + row * child_width + rank).to(tl.int64)
            emitted = tl.load(child_token_ptr + row * child_width + rank).to(tl.int64)
            tl.store(accepted_node_ptr + b * max_depth + depth, node.to(tl.int32))
            tl.store(accepted_rank_ptr + b * max_depth + depth, rank)
        tl.store(token_ptr + b * (max_depth + 1) + depth, emitted)
        if walking:
            depth += 1
            # False only where a tree is deeper than the caller said, which leaves no room for its tokens.
            walking = depth <= max_depth
    tl.store(num_accepted_ptr + b, tl.minimum(depth, max_depth))


@triton.jit
def measured_rank(is_coupled, count, examined):
    """Which child of a row that the walk reached has its overlap from resample, -1 for none; needs draft logits.

    The last child of a row: no round has looked at what it leaves. Of a coupled row the first, since it has no rounds.
    """
    rank = tl.where(is_coupled, 0, count - 1)
    return tl.where((count > 0) & (is_coupled | (examined == count)), rank, -1)


@triton.jit(
    do_not_specialize=["max_depth", "child_width", "place_stride", "plane_stride", "end_stride", "score_stride",
                       "num_blocks"]
)  # fmt: skip
def tree_resample_kernel(
    before_ptr,
    score_ptr,
    best_token_ptr,
    score_stride,
    num_accepted_ptr,
    accepted_node_ptr,
    max_depth,
    num_examined_ptr,
    end_ptr,
    end_stride,
    place_ptr,
    place_stride,
    child_token_ptr,
    child_width,
    statistics_ptr,
    plane_stride,
    target_ptr,
    target_stride,
    draft_ptr,
    draft_stride,
    cu_nodes_ptr,
    temperature_ptr,
    inverse_temperature_ptr,
    seed_ptr,
    position_ptr,
    coupled_ptr,
    vocab_size,
    num_blocks,
    HAS_DRAFT_LOGITS: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    seat = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    b = seat // (max_depth + 1)
    depth = (seat % (max_depth + 1)).to(tl.int32)
    accepted = tl.load(num_accepted_ptr + b)
    if (depth <= accepted) & (tl.load(temperature_ptr + b) >= _GREEDY_BELOW):
        is_coupled = tl.load(coupled_ptr + b) != 0
        resamples = (depth == accepted) & (is_coupled == 0)
        node = depth * 0 - 1
        if depth > 0:
            node = tl.load(accepted_node_ptr + b * max_depth + depth - 1)
        row = tl.load(cu_nodes_ptr + b).to(tl.int64) + b + 1 + node
        count = tl.load(place_ptr + NUM_CHILDREN * place_stride + row)
        measured = -1
        if HAS_DRAFT_LOGITS:
            examined = tl.load(num_examined_ptr + b * max_depth + depth, mask=depth < max_depth, other=0)
            measured = measured_rank(is_coupled, count, examined)
        if resamples | (measured >= 0):
            first_cell = row * num_blocks
            child_tokens = child_token_ptr + row * child_width
            first_token = block * BLOCK
            tokens = first_token + tl.arange(0, BLOCK)
            inverse_temperature = tl.load(inverse_temperature_ptr + b)
            scores = load_scores(target_ptr + row * target_stride, tokens, vocab_size, inverse_temperature)
            if HAS_DRAFT_LOGITS:
                log_residual = tl.full((BLOCK,), float("-inf"), tl.float32)
                if count > 0:
                    target_planes = statistics_ptr + TARGET_MAX * plane_stride + first_cell
                    high, log_sum = merged(target_planes, target_planes + plane_stride, num_blocks, BLOCKS)
                    draft_planes = statistics_ptr + DRAFT_MAX * plane_stride + first_cell
                    draft_high, _log_sum = merged(draft_planes, draft_planes + plane_stride, num_blocks, BLOCKS)
                    draft_scores = load_scores(draft_ptr + row * draft_stride, tokens, vocab_size, inverse_temperature)
                    draft_scores -= finite_or_zero(draft_high)
                    log_weight = tl.load(end_ptr + END_LOG_WEIGHT * end_stride + row)
                    floor = tl.load(end_ptr + END_FLOOR * end_stride + row)
                    mass = residual_mass((scores - high) - log_sum, draft_scores, log_weight, floor)
                    mass = tl.where(is_among(tokens, child_tokens, measured), 0.0, mass)
                    tl.store(before_ptr + seat * num_blocks + block, tl.sum(mass, 0))
                    log_residual = log_or_nothing(mass)
            else:
                log_residual = scores
            if resamples:
                log_residual = tl.where(is_among(tokens, child_tokens, count), float("-inf"), log_residual)
                noise = gumbel_block(
                    tl.load(seed_ptr + b), tl.load(position_ptr + b) + depth, _RESAMPLE, first_token, BLOCK
                )
                # Both candidates, because only all blocks together show that the residual is empty.
                whole_score, whole_index = tl.max(
                    scores + noise, 0, return_indices=True, return_indices_tie_break_left=True
                )
                best, index = tl.max(log_residual + noise, 0, return_indices=True, return_indices_tie_break_left=True)
                cell = b * num_blocks + block
                tl.store(score_ptr + cell, best)
                tl.store(best_token_ptr + cell, token_at(first_token, index, vocab_size))
                tl.store(score_ptr + score_stride + cell, whole_score)
                tl.store(best_token_ptr + score_stride + cell, token_at(first_token, whole_index, vocab_size))


@triton.jit(do_not_specialize=["max_depth", "child_width", "place_stride", "end_stride", "score_stride", "num_blocks"])
def tree_finish_kernel(
    token_ptr,
    overlap_ptr,
    num_accepted_ptr,
    accepted_node_ptr,
    max_depth,
    num_examined_ptr,
    end_ptr,
    end_stride,
    before_ptr,
    place_ptr,
    place_stride,
    child_ptr,
    child_width,
    score_ptr,
    best_token_ptr,
    score_stride,
    cu_nodes_ptr,
    temperature_ptr,
    coupled_ptr,
    num_blocks,
    HAS_DRAFT_LOGITS: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    b = tl.program_id(0).to(tl.int64)
    accepted = tl.load(num_accepted_ptr + b)
    is_coupled = tl.load(coupled_ptr + b) != 0
    if tl.load(temperature_ptr + b) >= _GREEDY_BELOW:
        if HAS_DRAFT_LOGITS:
            start = tl.load(cu_nodes_ptr + b).to(tl.int64)
            node = accepted * 0 - 1
            for depth in range(accepted + 1):
                row = start + b + 1 + node
                count = tl.load(place_ptr + NUM_CHILDREN * place_stride + row)
                examined = tl.load(num_examined_ptr + b * max_depth + depth, mask=depth < max_depth, other=0)
                measured = measured_rank(is_coupled, count, examined)
                if measured >= 0:
                    before = plane_sum(before_ptr + (b * (max_depth + 1) + depth) * num_blocks, num_blocks, BLOCKS)
                    log_left = tl.load(end_ptr + END_LOG_LEFT * end_stride + row)
                    child = tl.load(child_ptr + row * child_width + measured)
                    tl.store(overlap_ptr + start + child, overlap_of(before, log_left))
                if depth < accepted:
                    node = tl.load(accepted_node_ptr + b * max_depth + depth)
        if is_coupled == 0:
            best, token = best_token_of(score_ptr, best_token_ptr, b * num_blocks, num_blocks, BLOCKS)
            if best == float("-inf"):
                whole_scores, whole_tokens = score_ptr + score_stride, best_token_ptr + score_stride
                best, token = best_token_of(whole_scores, whole_tokens, b * num_blocks, num_blocks, BLOCKS)
            tl.store(token_ptr + b * (max_depth + 1) + accepted, token.to(tl.int64))
