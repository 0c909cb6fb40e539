"""Recursive rejection without its tensors: the residual after any number of rejections is a row's two laws and scalars.

Let p and q be a row's target_probs and draft_probs, S the mass of the residual before it is normalised, d the draft
mass of untried tokens. By induction, after r rejections and for every token not tried,

    residual = max(p - w q - f, 0) / S        (0 for tried tokens: a token fell only where the residual was below q / d)

with w = f = 0 and S = d = 1 at first. A rejection takes q / d off residual * S / S, so that w grows by S / d; a drafter
that has nothing left was drawn from uniformly, which adds S / untried tokens to f instead. S and d of the next round
are sums over the vocabulary; they do not depend on the random numbers, so all rows take them at once. w and d are kept
as logarithms, since what a cold drafter leaves untried may be too small for float32.
"""

# Triton gives its functions neither types nor a place for them.
# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"

from __future__ import annotations

import triton
import triton.language as tl

# Planes of a round's sums [planes, rows, blocks].
BEFORE = tl.constexpr(0)
"""Mass of the residual, the token that fell last included: what the round's rejection left."""
LEFT = tl.constexpr(1)
"""The same without that token; they differ by rounding alone."""
DRAFT_MAX_LEFT = tl.constexpr(2)
DRAFT_SUM_LEFT = tl.constexpr(3)
ROUND_PLANES = 4
# Planes of a round's scalars [planes, rows].
LOG_WEIGHT = tl.constexpr(0)
FLOOR = tl.constexpr(1)
SCALAR_PLANES = 2
# Above this exponent a tried token's share is far over any probability.
_LARGE = tl.constexpr(30.0)


@triton.jit
def log_or_nothing(x):
    return tl.where(x > 0.0, tl.log(tl.where(x > 0.0, x, 1.0)), float("-inf"))


@triton.jit
def merged(highs_ptr, sums_ptr, num_blocks, BLOCKS: tl.constexpr):
    """Return (highest score, log of the sum of exponentials under it) of blocks; (-inf, -inf) if all are masked."""
    i = tl.arange(0, BLOCKS)
    highs = tl.load(highs_ptr + i, mask=i < num_blocks, other=float("-inf"))
    sums = tl.load(sums_ptr + i, mask=i < num_blocks, other=0.0)
    highest = tl.max(highs, 0)
    shift = tl.where(highest == float("-inf"), 0.0, highest)
    return highest, log_or_nothing(tl.sum(sums * tl.exp(highs - shift), 0))


@triton.jit
def finite_or_zero(highest):
    return tl.where(highest == float("-inf"), 0.0, highest)


@triton.jit
def plane_sum(plane_ptr, num_blocks, BLOCKS: tl.constexpr):
    i = tl.arange(0, BLOCKS)
    return tl.sum(tl.load(plane_ptr + i, mask=i < num_blocks, other=0.0), 0)


@triton.jit
def untried_tokens(child_tokens_ptr, tried, vocab_size):
    """How many tokens of the vocabulary are not among the first `tried` children."""
    distinct = tried * 0
    for j in range(tried):
        token = tl.load(child_tokens_ptr + j)
        seen = tried * 0
        for i in range(j):
            seen += (tl.load(child_tokens_ptr + i) == token).to(tl.int32)
        distinct += (seen == 0).to(tl.int32)
    return tl.maximum(vocab_size - distinct, 1).to(tl.float32)


@triton.jit
def log_sum_of_two(a, b):
    highest = tl.maximum(a, b)
    shift = finite_or_zero(highest)
    return highest + tl.log(tl.where(highest == float("-inf"), 1.0, tl.exp(a - shift) + tl.exp(b - shift)))


@triton.jit
def after_rejection(log_weight, floor, log_left, log_draft_left, child_tokens_ptr, tried, vocab_size):
    """Scalars after one more rejection, of a child drawn when `tried` siblings had been."""
    if log_draft_left == float("-inf"):
        floor += tl.exp(log_left) / untried_tokens(child_tokens_ptr, tried, vocab_size)
    else:
        log_weight = log_sum_of_two(log_weight, log_left - log_draft_left)
    return log_weight, floor


@triton.jit
def residual_mass(log_target, draft_scores, log_weight, floor):
    """The residual before it is normalised, of untried tokens. draft_scores: over temperature, less the row's best."""
    taken = tl.exp(tl.minimum(draft_scores + log_weight, _LARGE)) + floor
    return tl.maximum(tl.exp(log_target) - taken, 0.0)


@triton.jit
def overlap_of(before, log_left):
    """Return the probability that a child stands: what its rejection would not leave of the residual's mass."""
    mass = tl.exp(finite_or_zero(log_left))
    overlap = tl.minimum(tl.maximum(1.0 - before / mass, 0.0), 1.0)
    return tl.where(log_left == float("-inf"), 0.0, overlap)


@triton.jit
def is_among(tokens, child_tokens_ptr, count):
    """Which of `tokens` [BLOCK] are among the first `count` children."""
    found = tokens < 0
    for j in range(count):
        found |= tokens == tl.load(child_tokens_ptr + j)
    return found
