"""Kernels over all rows of a batch of trees: their place in the tree, and what must be known of their logits.

topology: one program a row of every sequence; statistics and rounds: one program a (row, block of the vocabulary).
"""

# Triton gives its functions neither types nor a place for them.
# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"

from __future__ import annotations

import triton
import triton.language as tl

from kernels.verify.fused_noise_kernel import gumbel_block
from kernels.verify.fused_rows import load_scores, store_max_and_sum, token_at
from kernels.verify.noise import Purpose
from kernels.verify.verdict import GREEDY_BELOW
from kernels.verify_tree.fused_rounds import (
    BEFORE,
    DRAFT_MAX_LEFT,
    FLOOR,
    LEFT,
    LOG_WEIGHT,
    ROUND_PLANES,
    SCALAR_PLANES,
    after_rejection,
    finite_or_zero,
    is_among,
    log_or_nothing,
    merged,
    plane_sum,
    residual_mass,
)

# Planes of the block statistics [STATISTIC_PLANES, rows, blocks]; a sum of exponentials follows its maximum.
TARGET_MAX = tl.constexpr(0)
DRAFT_MAX = tl.constexpr(2)
BEST_SCORE = tl.constexpr(4)
STATISTIC_PLANES = 5
# Planes of the places [PLACE_PLANES, rows].
OWNER = tl.constexpr(0)
DEPTH = tl.constexpr(1)
NUM_CHILDREN = tl.constexpr(2)
PLACE_PLANES = 3
_ROUND_PLANES = tl.constexpr(ROUND_PLANES)
_SCALAR_PLANES = tl.constexpr(SCALAR_PLANES)
_GREEDY_BELOW = tl.constexpr(GREEDY_BELOW)
_COUPLED = tl.constexpr(int(Purpose.COUPLED))


@triton.jit(do_not_specialize=["place_stride", "max_depth", "max_children", "child_width"])
def tree_topology_kernel(
    place_ptr,
    place_stride,
    child_ptr,
    child_token_ptr,
    child_width,
    overlap_ptr,
    num_accepted_ptr,
    token_ptr,
    accepted_node_ptr,
    num_examined_ptr,
    accepted_rank_ptr,
    parent_ptr,
    draft_token_ptr,
    cu_nodes_ptr,
    max_depth,
    max_children,
    TREE_BLOCK: tl.constexpr,
):
    """Find each row's children, and fill the outputs with what stands where the walk does not come."""
    b = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1)
    if i <= max_depth:
        tl.store(token_ptr + b * (max_depth + 1) + i, -1)
    if i < max_depth:
        tl.store(accepted_node_ptr + b * max_depth + i, -1)
        tl.store(num_examined_ptr + b * max_depth + i, 0)
        tl.store(accepted_rank_ptr + b * max_depth + i, -1)
    start = tl.load(cu_nodes_ptr + b).to(tl.int64)
    num_nodes = (tl.load(cu_nodes_ptr + b + 1) - start).to(tl.int32)
    if i <= num_nodes:
        row = start + b + i
        node = i - 1
        nodes = tl.arange(0, TREE_BLOCK)
        parents = tl.load(parent_ptr + start + nodes, mask=nodes < num_nodes, other=-2)
        is_child = parents == node
        rank = tl.cumsum(is_child.to(tl.int32), 0) - 1
        kept = is_child & (rank < max_children)
        tl.store(child_ptr + row * child_width + rank, nodes, mask=kept)
        tokens = tl.load(draft_token_ptr + start + nodes, mask=kept, other=-1)
        tl.store(child_token_ptr + row * child_width + rank, tokens.to(tl.int32), mask=kept)
        depth = node * 0
        above = node
        while (above >= 0) & (depth < max_depth):
            above = tl.load(parent_ptr + start + above)
            depth += 1
        tl.store(place_ptr + OWNER * place_stride + row, b.to(tl.int32))
        tl.store(place_ptr + DEPTH * place_stride + row, depth)
        tl.store(place_ptr + NUM_CHILDREN * place_stride + row, tl.sum(kept.to(tl.int32), 0))
        if node >= 0:
            tl.store(overlap_ptr + start + node, float("nan"))


@triton.jit(do_not_specialize=["place_stride", "plane_stride", "num_blocks"])
def tree_statistics_kernel(
    statistics_ptr,
    plane_stride,
    best_token_ptr,
    place_ptr,
    place_stride,
    target_ptr,
    target_stride,
    draft_ptr,
    draft_stride,
    temperature_ptr,
    inverse_temperature_ptr,
    seed_ptr,
    position_ptr,
    coupled_ptr,
    vocab_size,
    num_blocks,
    HAS_DRAFT_LOGITS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Maximum and sum of exponentials of rows with children; the best token of greedy and coupled rows."""
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    b = tl.load(place_ptr + OWNER * place_stride + row)
    has_children = tl.load(place_ptr + NUM_CHILDREN * place_stride + row) > 0
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
    elif is_coupled | has_children:
        inverse_temperature = tl.load(inverse_temperature_ptr + b)
        scores = load_scores(target_row, tokens, vocab_size, inverse_temperature)
        if is_coupled:
            position = tl.load(position_ptr + b) + tl.load(place_ptr + DEPTH * place_stride + row)
            noise = gumbel_block(tl.load(seed_ptr + b), position, _COUPLED, first_token, BLOCK)
            best, index = tl.max(scores + noise, 0, return_indices=True, return_indices_tie_break_left=True)
            tl.store(statistics_ptr + BEST_SCORE * plane_stride + cell, best)
            tl.store(best_token_ptr + cell, token_at(first_token, index, vocab_size))
        if has_children:
            store_max_and_sum(statistics_ptr + TARGET_MAX * plane_stride, plane_stride, cell, scores)
            if HAS_DRAFT_LOGITS:
                draft_scores = load_scores(draft_ptr + row * draft_stride, tokens, vocab_size, inverse_temperature)
                store_max_and_sum(statistics_ptr + DRAFT_MAX * plane_stride, plane_stride, cell, draft_scores)


@triton.jit(
    do_not_specialize=["rejected", "place_stride", "plane_stride", "scalar_stride", "num_blocks", "child_width"]
)
def tree_round_kernel(
    rounds_ptr,
    scalars_ptr,
    scalar_stride,
    rejected,
    statistics_ptr,
    plane_stride,
    place_ptr,
    place_stride,
    child_token_ptr,
    child_width,
    target_ptr,
    target_stride,
    draft_ptr,
    draft_stride,
    temperature_ptr,
    inverse_temperature_ptr,
    coupled_ptr,
    vocab_size,
    num_blocks,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    """Sums of the residual and of the untried draft mass after `rejected` children fell, if one more can be tried."""
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    b = tl.load(place_ptr + OWNER * place_stride + row)
    is_rejecting = (tl.load(temperature_ptr + b) >= _GREEDY_BELOW) & (tl.load(coupled_ptr + b) == 0)
    if is_rejecting & (tl.load(place_ptr + NUM_CHILDREN * place_stride + row) > rejected):
        first_cell = row * num_blocks
        target_planes = statistics_ptr + TARGET_MAX * plane_stride + first_cell
        target_high, target_log_sum = merged(target_planes, target_planes + plane_stride, num_blocks, BLOCKS)
        draft_planes = statistics_ptr + DRAFT_MAX * plane_stride + first_cell
        draft_high, log_draft_left = merged(draft_planes, draft_planes + plane_stride, num_blocks, BLOCKS)
        draft_shift = finite_or_zero(draft_high)
        child_tokens = child_token_ptr + row * child_width
        log_weight = float("-inf")
        floor = 0.0
        log_left = 0.0
        if rejected > 1:
            before_ptr = rounds_ptr + (rejected - 2).to(tl.int64) * _ROUND_PLANES * plane_stride + first_cell
            log_left = log_or_nothing(plane_sum(before_ptr + LEFT * plane_stride, num_blocks, BLOCKS))
            left_ptr = before_ptr + DRAFT_MAX_LEFT * plane_stride
            high, log_sum = merged(left_ptr, left_ptr + plane_stride, num_blocks, BLOCKS)
            log_draft_left = high + log_sum
            scalars = scalars_ptr + (rejected - 2) * _SCALAR_PLANES * scalar_stride + row
            log_weight = tl.load(scalars + LOG_WEIGHT * scalar_stride)
            floor = tl.load(scalars + FLOOR * scalar_stride)
        log_weight, floor = after_rejection(
            log_weight, floor, log_left, log_draft_left, child_tokens, rejected - 1, vocab_size
        )
        if block == 0:
            scalars = scalars_ptr + (rejected - 1) * _SCALAR_PLANES * scalar_stride + row
            tl.store(scalars + LOG_WEIGHT * scalar_stride, log_weight)
            tl.store(scalars + FLOOR * scalar_stride, floor)

        inverse_temperature = tl.load(inverse_temperature_ptr + b)
        tokens = block * BLOCK + tl.arange(0, BLOCK)
        scores = load_scores(target_ptr + row * target_stride, tokens, vocab_size, inverse_temperature)
        draft_scores = load_scores(draft_ptr + row * draft_stride, tokens, vocab_size, inverse_temperature)
        draft_scores -= draft_shift
        mass = residual_mass((scores - target_high) - target_log_sum, draft_scores, log_weight, floor)
        mass = tl.where(is_among(tokens, child_tokens, rejected - 1), 0.0, mass)
        is_tried = is_among(tokens, child_tokens, rejected)
        untried_scores = tl.where(is_tried, float("-inf"), draft_scores)
        sums = rounds_ptr + (rejected - 1).to(tl.int64) * _ROUND_PLANES * plane_stride
        cell = first_cell + block
        tl.store(sums + BEFORE * plane_stride + cell, tl.sum(mass, 0))
        tl.store(sums + LEFT * plane_stride + cell, tl.sum(tl.where(is_tried, 0.0, mass), 0))
        store_max_and_sum(sums + DRAFT_MAX_LEFT * plane_stride, plane_stride, cell, untried_scores)
