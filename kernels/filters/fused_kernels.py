"""The five kernels that find a threshold: no sort, five launches whatever the limits are.

1. the largest score of every (row, block of the vocabulary)
2. a ladder: how many tokens, and how much mass, lie within each of 8 distances of the row's largest score
3. one program a row: the first rung that holds what the limits ask for, hence the candidates and each block's seat
4. collects the candidates' scores, a few thousand of a vocabulary
5. one program a row: bisects the order-preserving integers of float32 over the candidates: by count, then by mass. A
   row with more candidates than seats (a flat one) is read in full at every step, slower and just as exact.

A row without a limit leaves each of them at once.
"""

# Triton gives its functions neither types nor a place for them.
# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"

from __future__ import annotations

import triton
import triton.language as tl

from kernels.filters.fused_weights import integer_weights, ordered, score_of
from kernels.verify.fused_rows import load_scores, sequence_of
from kernels.verify.verdict import GREEDY_BELOW

_GREEDY_BELOW = tl.constexpr(GREEDY_BELOW)
NUM_RUNGS = 8
SEATS = 8192
_NUM_RUNGS = tl.constexpr(NUM_RUNGS)
_SEATS = tl.constexpr(SEATS)


@triton.jit
def has_limit(b, temperature_ptr, top_k_ptr, top_p_ptr, log_min_p_ptr):
    """Whether sequence b is sampled from less than its whole vocabulary."""
    is_limited = (tl.load(top_k_ptr + b) > 0) | (tl.load(top_p_ptr + b) < 1.0)
    is_limited = is_limited | (tl.load(log_min_p_ptr + b) > float("-inf"))
    return is_limited & (tl.load(temperature_ptr + b) >= _GREEDY_BELOW)


@triton.jit
def needs_search(b, temperature_ptr, top_k_ptr, top_p_ptr):
    """Min-p alone needs the largest score only."""
    is_searched = (tl.load(top_k_ptr + b) > 0) | (tl.load(top_p_ptr + b) < 1.0)
    return is_searched & (tl.load(temperature_ptr + b) >= _GREEDY_BELOW)


@triton.jit
def load_adjusted_scores(
    row, tokens, logit_ptr, logit_stride, adjusted_ptr, is_adjusted_ptr, vocab_size, inverse_temperature,
    HAS_ADJUSTED: tl.constexpr,
):  # fmt: skip
    """Scores of a row, from its adjusted copy [rows, vocab_size] if it has one (penalties, biases)."""
    if HAS_ADJUSTED:
        if tl.load(is_adjusted_ptr + row) != 0:
            scores = load_scores(adjusted_ptr + row * vocab_size, tokens, vocab_size, inverse_temperature)
        else:
            scores = load_scores(logit_ptr + row * logit_stride, tokens, vocab_size, inverse_temperature)
    else:
        scores = load_scores(logit_ptr + row * logit_stride, tokens, vocab_size, inverse_temperature)
    return scores


@triton.jit
def _largest_of(highest_ptr, row, num_blocks, BLOCKS: tl.constexpr):
    i = tl.arange(0, BLOCKS)
    return tl.max(tl.load(highest_ptr + row * num_blocks + i, mask=i < num_blocks, other=float("-inf")), 0)


@triton.jit
def _rung(largest, unit, RUNG: tl.constexpr):
    """The lowest score of a rung: 2 to 34 units below the largest in steps of 1.6, the last without end."""
    if RUNG == _NUM_RUNGS - 1:  # noqa: SIM108
        lowest = largest * 0.0 + float("-inf")
    else:
        lowest = largest - (2.0 * 1.6**RUNG) * unit
    return lowest


@triton.jit
def _unit_of(top_k, inverse_temperature):
    """A count does not depend on the temperature, a mass does: distances of logits for one, of scores for the other."""
    return tl.where(top_k > 0, inverse_temperature, 1.0)


@triton.jit(do_not_specialize=["batch"])
def filter_highest_kernel(
    highest_ptr,
    logit_ptr,
    logit_stride,
    adjusted_ptr,
    is_adjusted_ptr,
    cu_draft_ptr,
    temperature_ptr,
    inverse_temperature_ptr,
    top_k_ptr,
    top_p_ptr,
    log_min_p_ptr,
    batch,
    vocab_size,
    num_blocks,
    HAS_ADJUSTED: tl.constexpr,
    BLOCK: tl.constexpr,
    BATCH_BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    b = sequence_of(row, cu_draft_ptr, batch, BATCH_BLOCK)
    if has_limit(b, temperature_ptr, top_k_ptr, top_p_ptr, log_min_p_ptr):
        tokens = block * BLOCK + tl.arange(0, BLOCK)
        inverse_temperature = tl.load(inverse_temperature_ptr + b)
        scores = load_adjusted_scores(
            row, tokens, logit_ptr, logit_stride, adjusted_ptr, is_adjusted_ptr, vocab_size, inverse_temperature,
            HAS_ADJUSTED,
        )  # fmt: skip
        tl.store(highest_ptr + row * num_blocks + block, tl.max(scores, 0))


@triton.jit(do_not_specialize=["batch"])
def filter_ladder_kernel(
    count_ptr,
    mass_ptr,
    highest_ptr,
    logit_ptr,
    logit_stride,
    adjusted_ptr,
    is_adjusted_ptr,
    cu_draft_ptr,
    temperature_ptr,
    inverse_temperature_ptr,
    top_k_ptr,
    top_p_ptr,
    batch,
    vocab_size,
    num_blocks,
    HAS_ADJUSTED: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
    BATCH_BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    b = sequence_of(row, cu_draft_ptr, batch, BATCH_BLOCK)
    if needs_search(b, temperature_ptr, top_k_ptr, top_p_ptr):
        tokens = block * BLOCK + tl.arange(0, BLOCK)
        inverse_temperature = tl.load(inverse_temperature_ptr + b)
        scores = load_adjusted_scores(
            row, tokens, logit_ptr, logit_stride, adjusted_ptr, is_adjusted_ptr, vocab_size, inverse_temperature,
            HAS_ADJUSTED,
        )  # fmt: skip
        largest = _largest_of(highest_ptr, row, num_blocks, BLOCKS)
        unit = _unit_of(tl.load(top_k_ptr + b), inverse_temperature)
        weights = integer_weights(scores - largest)
        for RUNG in tl.static_range(_NUM_RUNGS):
            inside = (scores >= _rung(largest, unit, RUNG)) & (scores > float("-inf"))
            cell = (row * _NUM_RUNGS + RUNG) * num_blocks + block
            tl.store(count_ptr + cell, tl.sum(inside.to(tl.int32), 0))
            tl.store(mass_ptr + cell, tl.sum(tl.where(inside, weights, 0), 0))


@triton.jit(do_not_specialize=["batch"])
def filter_bracket_kernel(
    lowest_ptr,
    num_candidates_ptr,
    total_ptr,
    seat_ptr,
    count_ptr,
    mass_ptr,
    highest_ptr,
    cu_draft_ptr,
    temperature_ptr,
    inverse_temperature_ptr,
    top_k_ptr,
    top_p_ptr,
    batch,
    num_blocks,
    BLOCKS: tl.constexpr,
    BATCH_BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    b = sequence_of(row, cu_draft_ptr, batch, BATCH_BLOCK)
    if needs_search(b, temperature_ptr, top_k_ptr, top_p_ptr):
        i = tl.arange(0, BLOCKS)
        top_k = tl.load(top_k_ptr + b)
        largest = _largest_of(highest_ptr, row, num_blocks, BLOCKS)
        unit = _unit_of(top_k, tl.load(inverse_temperature_ptr + b))
        first = row * _NUM_RUNGS * num_blocks + i
        last = first + (_NUM_RUNGS - 1) * num_blocks
        total = tl.sum(tl.load(mass_ptr + last, mask=i < num_blocks, other=0), 0)
        wanted_mass = tl.load(top_p_ptr + b).to(tl.float64) * total.to(tl.float64)
        lowest = _rung(largest, unit, _NUM_RUNGS - 1)
        chosen = top_k * 0 + (_NUM_RUNGS - 1)
        for STEP in tl.static_range(1, _NUM_RUNGS):  # downwards, so that the highest rung that serves is left
            cells = first + (_NUM_RUNGS - 1 - STEP) * num_blocks
            count = tl.sum(tl.load(count_ptr + cells, mask=i < num_blocks, other=0), 0)
            mass = tl.sum(tl.load(mass_ptr + cells, mask=i < num_blocks, other=0), 0)
            # With a top-k the nucleus is of what that leaves, all of which lies on the rung.
            serves = tl.where(top_k > 0, count >= top_k, mass.to(tl.float64) >= wanted_mass)
            chosen = tl.where(serves, _NUM_RUNGS - 1 - STEP, chosen)
            lowest = tl.where(serves, _rung(largest, unit, _NUM_RUNGS - 1 - STEP), lowest)
        counts = tl.load(count_ptr + first + chosen * num_blocks, mask=i < num_blocks, other=0)
        tl.store(seat_ptr + row * num_blocks + i, tl.cumsum(counts, 0) - counts, mask=i < num_blocks)
        tl.store(num_candidates_ptr + row, tl.sum(counts, 0))
        tl.store(lowest_ptr + row, lowest)
        tl.store(total_ptr + row, total)


@triton.jit(do_not_specialize=["batch"])
def filter_collect_kernel(
    candidate_ptr,
    lowest_ptr,
    num_candidates_ptr,
    seat_ptr,
    logit_ptr,
    logit_stride,
    adjusted_ptr,
    is_adjusted_ptr,
    cu_draft_ptr,
    temperature_ptr,
    inverse_temperature_ptr,
    top_k_ptr,
    top_p_ptr,
    batch,
    vocab_size,
    num_blocks,
    HAS_ADJUSTED: tl.constexpr,
    BLOCK: tl.constexpr,
    BATCH_BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    b = sequence_of(row, cu_draft_ptr, batch, BATCH_BLOCK)
    if needs_search(b, temperature_ptr, top_k_ptr, top_p_ptr):  # noqa: SIM102 (Triton has no `and` of tensors)
        if tl.load(num_candidates_ptr + row) <= _SEATS:
            tokens = block * BLOCK + tl.arange(0, BLOCK)
            inverse_temperature = tl.load(inverse_temperature_ptr + b)
            scores = load_adjusted_scores(
                row, tokens, logit_ptr, logit_stride, adjusted_ptr, is_adjusted_ptr, vocab_size, inverse_temperature,
                HAS_ADJUSTED,
            )  # fmt: skip
            inside = (scores >= tl.load(lowest_ptr + row)) & (scores > float("-inf"))
            seats = tl.load(seat_ptr + row * num_blocks + block) + tl.cumsum(inside.to(tl.int32), 0) - 1
            tl.store(candidate_ptr + row * _SEATS + seats, scores, mask=inside)


@triton.jit
def _measure(source_ptr, length, scale, largest, lowest_key, BY_MASS: tl.constexpr, BLOCK: tl.constexpr):
    """How many of the scores, or how much of the mass, have at least the key `lowest_key`."""
    found = tl.zeros((BLOCK,), tl.int64)
    for start in range(0, length, BLOCK):
        scores = load_scores(source_ptr, start + tl.arange(0, BLOCK), length, scale)
        inside = ordered(scores) >= lowest_key
        if BY_MASS:
            found += tl.where(inside, integer_weights(scores - largest), 0)
        else:
            found += inside.to(tl.int64)
    return tl.sum(found, 0)


@triton.jit
def _largest_key_with(
    source_ptr, length, scale, largest, low, high, wanted, BY_MASS: tl.constexpr, BLOCK: tl.constexpr
):
    """The largest key in [low, high] at or above which `wanted` (f64) lies; low where no key has that much."""
    while low < high:
        middle = low + (high - low + 1) // 2
        holds = _measure(source_ptr, length, scale, largest, middle, BY_MASS, BLOCK).to(tl.float64) >= wanted
        low = tl.where(holds, middle, low)
        high = tl.where(holds, high, middle - 1)
    return low


@triton.jit
def _search(source_ptr, length, scale, largest, lowest, total, top_k, top_p, BLOCK: tl.constexpr):
    low = ordered(lowest).to(tl.int64)
    high = ordered(largest).to(tl.int64)
    if top_k > 0:
        low = _largest_key_with(source_ptr, length, scale, largest, low, high, top_k.to(tl.float64), False, BLOCK)
        total = _measure(source_ptr, length, scale, largest, low, True, BLOCK)
    if top_p < 1.0:
        wanted = top_p.to(tl.float64) * total.to(tl.float64)
        low = _largest_key_with(source_ptr, length, scale, largest, low, high, wanted, True, BLOCK)
    return score_of(low)


@triton.jit(do_not_specialize=["batch"])
def filter_select_kernel(
    threshold_ptr,
    candidate_ptr,
    lowest_ptr,
    num_candidates_ptr,
    total_ptr,
    highest_ptr,
    logit_ptr,
    logit_stride,
    adjusted_ptr,
    is_adjusted_ptr,
    cu_draft_ptr,
    temperature_ptr,
    inverse_temperature_ptr,
    top_k_ptr,
    top_p_ptr,
    log_min_p_ptr,
    batch,
    vocab_size,
    num_blocks,
    HAS_ADJUSTED: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
    BATCH_BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    b = sequence_of(row, cu_draft_ptr, batch, BATCH_BLOCK)
    threshold = tl.load(temperature_ptr + b) * 0.0 + float("-inf")
    if has_limit(b, temperature_ptr, top_k_ptr, top_p_ptr, log_min_p_ptr):
        largest = _largest_of(highest_ptr, row, num_blocks, BLOCKS)
        if needs_search(b, temperature_ptr, top_k_ptr, top_p_ptr):
            top_k, top_p = tl.load(top_k_ptr + b), tl.load(top_p_ptr + b)
            lowest, total = tl.load(lowest_ptr + row), tl.load(total_ptr + row)
            num_candidates = tl.load(num_candidates_ptr + row)
            if num_candidates <= _SEATS:
                threshold = _search(
                    candidate_ptr + row * _SEATS, num_candidates, 1.0, largest, lowest, total, top_k, top_p, BLOCK
                )
            else:
                inverse_temperature = tl.load(inverse_temperature_ptr + b)
                is_adjusted = False
                if HAS_ADJUSTED:
                    is_adjusted = tl.load(is_adjusted_ptr + row) != 0
                if is_adjusted:
                    threshold = _search(
                        adjusted_ptr + row * vocab_size, vocab_size, inverse_temperature, largest, lowest, total,
                        top_k, top_p, BLOCK,
                    )  # fmt: skip
                else:
                    threshold = _search(
                        logit_ptr + row * logit_stride, vocab_size, inverse_temperature, largest, lowest, total,
                        top_k, top_p, BLOCK,
                    )  # fmt: skip
        threshold = tl.maximum(threshold, largest + tl.load(log_min_p_ptr + b))
    tl.store(threshold_ptr + row, threshold)
