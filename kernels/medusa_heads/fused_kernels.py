"""The three kernels of the Medusa heads.

1. residual block of every head
2. LM head, a tile of the vocabulary a program: the best k tokens and its part of the log-sum-exp leave, logits do not
3. one program a (row, head): merges the tiles of 2
"""

# Triton gives its functions neither types nor a place for them.
# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"

from __future__ import annotations

import triton
import triton.language as tl

NO_TOKEN = tl.constexpr(2147483647)
"""Stands behind every token: beyond the vocabulary, or taken."""


@triton.jit
def product_tile(
    row_ptrs, row_mask, column_ptrs, column_mask, size, ROWS: tl.constexpr, COLUMNS: tl.constexpr, INNER: tl.constexpr
):
    """[ROWS, COLUMNS] float32 of rows @ columns.T, both with `size` contiguous elements at their pointers.

    The order of the sum depends on INNER alone: a row's product is the same whatever else the tile holds.
    """
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, size, INNER):
        inner = start + tl.arange(0, INNER)
        inside = inner < size
        rows = tl.load(row_ptrs[:, None] + inner[None, :], mask=row_mask[:, None] & inside[None, :], other=0.0)
        columns = tl.load(column_ptrs[:, None] + inner[None, :], mask=column_mask[:, None] & inside[None, :], other=0.0)
        # ieee: tensor cores would round float32 to tf32.
        total = tl.dot(rows, tl.trans(columns), total, input_precision="ieee")
    return total


@triton.jit(do_not_specialize=["num_rows"])
def medusa_residual_kernel(
    state_ptr,
    hidden_ptr,
    weight_ptr,
    bias_ptr,
    num_rows,
    num_heads,
    hidden_size,
    HAS_BIAS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INNER: tl.constexpr,
):
    """State [B, heads, H] = hidden + SiLU(weight @ hidden + bias); grid (rows / ROWS, H / COLUMNS, heads)."""
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    head = tl.program_id(2).to(tl.int64)
    row_mask, column_mask = rows < num_rows, columns < hidden_size
    cell_mask = row_mask[:, None] & column_mask[None, :]
    row_ptrs = hidden_ptr + rows * hidden_size
    column_ptrs = weight_ptr + (head * hidden_size + columns) * hidden_size
    inner = product_tile(row_ptrs, row_mask, column_ptrs, column_mask, hidden_size, ROWS, COLUMNS, INNER)
    if HAS_BIAS:
        bias = tl.load(bias_ptr + head * hidden_size + columns, mask=column_mask, other=0.0)
        inner += bias.to(tl.float32)[None, :]
    hidden = tl.load(row_ptrs[:, None] + columns[None, :], mask=cell_mask, other=0.0).to(tl.float32)
    state = hidden + inner / (1.0 + tl.exp(-inner))
    state_ptrs = state_ptr + (rows * num_heads + head)[:, None] * hidden_size + columns[None, :]
    tl.store(state_ptrs, state.to(state_ptr.dtype.element_ty), mask=cell_mask)


@triton.jit(do_not_specialize=["num_rows", "num_groups", "num_blocks", "top_k"])
def medusa_lm_head_kernel(
    score_ptr,
    token_ptr,
    highest_ptr,
    sum_ptr,
    state_ptr,
    weight_ptr,
    vocab_map_ptr,
    num_rows,
    num_groups,
    hidden_size,
    vocab_size,
    num_blocks,
    top_k,
    HAS_MAP: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INNER: tl.constexpr,
):
    """Grid (rows / ROWS, V / COLUMNS, groups); a group is the rows i * num_groups + group that share an LM head."""
    group = tl.program_id(2).to(tl.int64)
    rows = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)) * num_groups + group
    block = tl.program_id(1).to(tl.int64)
    columns = block * COLUMNS + tl.arange(0, COLUMNS)
    row_mask, column_mask = rows < num_rows, columns < vocab_size
    row_ptrs = state_ptr + rows * hidden_size
    column_ptrs = weight_ptr + (group * vocab_size + columns) * hidden_size
    logits = product_tile(row_ptrs, row_mask, column_ptrs, column_mask, hidden_size, ROWS, COLUMNS, INNER)
    logits = tl.where(column_mask[None, :], logits, float("-inf"))
    cells = rows * num_blocks + block

    highest = tl.max(logits, 1)
    # A tile of -inf has -inf for its maximum; subtracting that would be NaN.
    shift = tl.where(highest == float("-inf"), 0.0, highest)
    tl.store(highest_ptr + cells, highest, mask=row_mask)
    tl.store(sum_ptr + cells, tl.sum(tl.exp(logits - shift[:, None]), 1), mask=row_mask)

    if HAS_MAP:
        tokens = tl.load(vocab_map_ptr + columns, mask=column_mask, other=NO_TOKEN).to(tl.int32)
    else:
        tokens = tl.where(column_mask, columns, NO_TOKEN).to(tl.int32)
    scores = tl.where(logits == logits, logits, float("-inf"))
    tokens = tl.broadcast_to(tokens[None, :], (ROWS, COLUMNS))
    for rank in range(top_k):
        best = tl.max(scores, 1)
        token = tl.min(tl.where(scores == best[:, None], tokens, NO_TOKEN), 1)
        tl.store(score_ptr + cells * top_k + rank, best, mask=row_mask)
        tl.store(token_ptr + cells * top_k + rank, token, mask=row_mask)
        taken = tokens == token[:, None]
        tokens = tl.where(taken, NO_TOKEN, tokens)
        scores = tl.where(taken, float("-inf"), scores)


@triton.jit(do_not_specialize=["num_blocks", "top_k"])
def medusa_merge_kernel(
    token_out_ptr,
    logit_ptr,
    log_sum_exp_ptr,
    score_ptr,
    token_ptr,
    highest_ptr,
    sum_ptr,
    num_blocks,
    top_k,
    BLOCKS: tl.constexpr,
):
    """Each tile's list is sorted, so only its first entry that is not taken yet can be the next best."""
    row = tl.program_id(0).to(tl.int64)
    block = tl.arange(0, BLOCKS)
    exists = block < num_blocks
    cells = row * num_blocks + block
    highs = tl.load(highest_ptr + cells, mask=exists, other=float("-inf"))
    sums = tl.load(sum_ptr + cells, mask=exists, other=0.0)
    highest = tl.max(highs, 0)
    shift = tl.where(highest == float("-inf"), 0.0, highest)
    tl.store(log_sum_exp_ptr + row, highest + tl.log(tl.sum(sums * tl.exp(highs - shift), 0)))

    cursor = tl.zeros((BLOCKS,), tl.int32)
    scores = tl.load(score_ptr + cells * top_k, mask=exists, other=float("-inf"))
    tokens = tl.load(token_ptr + cells * top_k, mask=exists, other=NO_TOKEN)
    for rank in range(top_k):
        best = tl.max(scores, 0)
        token = tl.min(tl.where(scores == best, tokens, NO_TOKEN), 0)
        tl.store(logit_ptr + row * top_k + rank, best)
        tl.store(token_out_ptr + row * top_k + rank, token.to(tl.int64))
        taken = tokens == token
        cursor += taken.to(tl.int32)
        following = taken & (cursor < top_k)
        next_scores = tl.load(score_ptr + cells * top_k + cursor, mask=following, other=float("-inf"))
        next_tokens = tl.load(token_ptr + cells * top_k + cursor, mask=following, other=NO_TOKEN)
        scores = tl.where(taken, next_scores, scores)
        tokens = tl.where(taken, next_tokens, tokens)
