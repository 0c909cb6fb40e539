"""What the verification kernels do with one row, or one block of a row, of logits."""

# Triton gives its functions neither types nor a place for them.
# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"

from __future__ import annotations

import triton
import triton.language as tl

# Planes of the block statistics [NUM_PLANES, rows, blocks]; a sum of exponentials follows its maximum.
TARGET_MAX = tl.constexpr(0)
DRAFT_MAX = tl.constexpr(2)
BEST_SCORE = tl.constexpr(4)
NUM_PLANES = 5


@triton.jit
def sequence_of(row, cu_draft_ptr, batch, BATCH_BLOCK: tl.constexpr):
    """The sequence that owns a target row: how many sequences end at or before it."""
    ended = tl.zeros((BATCH_BLOCK,), tl.int32)
    for first in range(0, batch, BATCH_BLOCK):
        b = first + tl.arange(0, BATCH_BLOCK)
        ends = tl.load(cu_draft_ptr + b + 1, mask=b < batch, other=0) + b + 1
        ended += ((ends <= row) & (b < batch)).to(tl.int32)
    return tl.sum(ended, 0)


@triton.jit
def threshold_of(threshold_ptr, row, has_thresholds):
    """The smallest score that stays of a row."""
    return tl.load(threshold_ptr + row, mask=has_thresholds != 0, other=float("-inf"))


@triton.jit
def restricted(scores, threshold):
    return tl.where(scores >= threshold, scores, float("-inf"))


@triton.jit
def load_scores(row_ptr, tokens, vocab_size, inverse_temperature):
    logits = tl.load(row_ptr + tokens, mask=tokens < vocab_size, other=float("-inf"))
    return logits.to(tl.float32) * inverse_temperature


@triton.jit
def load_score(row_ptr, token, vocab_size, inverse_temperature):
    """-inf for a token outside the vocabulary, which is thereby never accepted."""
    inside = (token >= 0) & (token < vocab_size)
    logit = tl.load(row_ptr + token, mask=inside, other=float("-inf"))
    return logit.to(tl.float32) * inverse_temperature


@triton.jit
def token_at(first_token, index, vocab_size):
    """A block's best token. NaN scores, which no rule allows, may leave any index: it stays inside the vocabulary."""
    return tl.minimum(first_token + index, vocab_size - 1)


@triton.jit
def store_max_and_sum(plane_ptr, plane_stride, cell, scores):
    highest = tl.max(scores, 0)
    # A block that is masked throughout has -inf for its maximum; subtracting that would be NaN.
    shift = tl.where(highest == float("-inf"), 0.0, highest)
    tl.store(plane_ptr + cell, highest)
    tl.store(plane_ptr + plane_stride + cell, tl.sum(tl.exp(scores - shift), 0))


@triton.jit
def log_sum_exp(plane_ptr, plane_stride, first_cell, num_blocks, BLOCKS: tl.constexpr):
    i = tl.arange(0, BLOCKS)
    highs = tl.load(plane_ptr + first_cell + i, mask=i < num_blocks, other=float("-inf"))
    sums = tl.load(plane_ptr + plane_stride + first_cell + i, mask=i < num_blocks, other=0.0)
    highest = tl.max(highs, 0)
    return highest + tl.log(tl.sum(sums * tl.exp(highs - highest), 0))


@triton.jit
def best_token_of(scores_ptr, tokens_ptr, first_cell, num_blocks, BLOCKS: tl.constexpr):
    """Return the best block's (score, token); ties go to the earliest block, as argmax has it."""
    i = tl.arange(0, BLOCKS)
    scores = tl.load(scores_ptr + first_cell + i, mask=i < num_blocks, other=float("-inf"))
    best, winner = tl.max(scores, 0, return_indices=True, return_indices_tie_break_left=True)
    # NaN scores, which no rule allows, may leave any index: it must not lead out of the row all the same.
    return best, tl.load(tokens_ptr + first_cell + tl.minimum(winner, num_blocks - 1))
