"""One program a row with children, after which only the random numbers are missing from the acceptance tests."""

# Triton gives its functions neither types nor a place for them.
# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"

from __future__ import annotations

import triton
import triton.language as tl

from kernels.verify.fused_rows import load_score
from kernels.verify.verdict import GREEDY_BELOW
from kernels.verify_tree.fused_rounds import (
    BEFORE,
    DRAFT_MAX_LEFT,
    LEFT,
    ROUND_PLANES,
    after_rejection,
    finite_or_zero,
    is_among,
    log_or_nothing,
    merged,
    overlap_of,
    plane_sum,
    residual_mass,
    untried_tokens,
)
from kernels.verify_tree.fused_rows import DRAFT_MAX, NUM_CHILDREN, OWNER, TARGET_MAX

# Planes of the tests [TEST_PLANES, rows, siblings].
LOG_OFFERED = tl.constexpr(0)
LOG_RESIDUAL = tl.constexpr(1)
CHANCE = tl.constexpr(2)
TEST_PLANES = 3
# Planes of what resample needs of rows whose children all fell [END_PLANES, rows].
END_LOG_WEIGHT = tl.constexpr(0)
END_FLOOR = tl.constexpr(1)
END_LOG_LEFT = tl.constexpr(2)
END_PLANES = 3
_ROUND_PLANES = tl.constexpr(ROUND_PLANES)
_GREEDY_BELOW = tl.constexpr(GREEDY_BELOW)


@triton.jit(
    do_not_specialize=["test_stride", "end_stride", "scalar_stride", "plane_stride", "place_stride", "child_width",
                       "target_stride", "draft_stride", "vocab_size", "num_blocks"]
)  # fmt: skip
def tree_tests_kernel(
    test_ptr,
    test_stride,
    end_ptr,
    end_stride,
    rounds_ptr,
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
    HAS_DRAFT_LOGITS: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    """Both sides of every child's test, as if all children before it had fallen, and its overlap where known."""
    row = tl.program_id(0).to(tl.int64)
    b = tl.load(place_ptr + OWNER * place_stride + row)
    count = tl.load(place_ptr + NUM_CHILDREN * place_stride + row)
    is_coupled = tl.load(coupled_ptr + b) != 0
    if (tl.load(temperature_ptr + b) >= _GREEDY_BELOW) & (count > 0):
        inverse_temperature = tl.load(inverse_temperature_ptr + b)
        first_cell = row * num_blocks
        target_planes = statistics_ptr + TARGET_MAX * plane_stride + first_cell
        # Two terms, since a cold row's best score may be large enough to swallow the sum.
        target_high, target_log_sum = merged(target_planes, target_planes + plane_stride, num_blocks, BLOCKS)
        child_tokens = child_token_ptr + row * child_width
        tests = test_ptr + row * child_width
        if HAS_DRAFT_LOGITS:
            draft_planes = statistics_ptr + DRAFT_MAX * plane_stride + first_cell
            draft_high, log_draft_left = merged(draft_planes, draft_planes + plane_stride, num_blocks, BLOCKS)
            log_weight = target_high * 0.0 - float("inf")
            floor = target_high * 0.0
            log_left = target_high * 0.0
        # Without draft logits the residual is the target's law over untried tokens, which has this much of its mass.
        mass_left = target_high * 0.0 + 1.0
        for rank in range(count):
            token = tl.load(child_tokens + rank)
            score = load_score(target_ptr + row * target_stride, token, vocab_size, inverse_temperature)
            log_target = (score - target_high) - target_log_sum
            if HAS_DRAFT_LOGITS:
                draft_score = load_score(draft_ptr + row * draft_stride, token, vocab_size, inverse_temperature)
                draft_score -= finite_or_zero(draft_high)
                log_draft = draft_score - finite_or_zero(log_draft_left)
                if log_draft_left == float("-inf"):
                    log_draft = -tl.log(untried_tokens(child_tokens, rank, vocab_size))
                mass = residual_mass(log_target, draft_score, log_weight, floor)
                tl.store(tests + LOG_OFFERED * test_stride + rank, log_left + log_draft)
                tl.store(tests + LOG_RESIDUAL * test_stride + rank, log_or_nothing(mass))
                chance = float("nan")
                if (is_coupled == 0) | (rank == 0):
                    log_before = log_left
                    log_weight, floor = after_rejection(
                        log_weight, floor, log_left, log_draft_left, child_tokens, rank, vocab_size
                    )
                    if (is_coupled == 0) & (rank + 1 < count):
                        sums = rounds_ptr + (first_cell * 0 + rank) * _ROUND_PLANES * plane_stride + first_cell
                        chance = overlap_of(plane_sum(sums + BEFORE * plane_stride, num_blocks, BLOCKS), log_before)
                        log_left = log_or_nothing(plane_sum(sums + LEFT * plane_stride, num_blocks, BLOCKS))
                        left_ptr = sums + DRAFT_MAX_LEFT * plane_stride
                        high, log_sum = merged(left_ptr, left_ptr + plane_stride, num_blocks, BLOCKS)
                        log_draft_left = high + log_sum
                    else:
                        # No round has looked at the row with these scalars: resample does, if the walk comes here.
                        tl.store(end_ptr + END_LOG_WEIGHT * end_stride + row, log_weight)
                        tl.store(end_ptr + END_FLOOR * end_stride + row, floor)
                        tl.store(end_ptr + END_LOG_LEFT * end_stride + row, log_before)
                tl.store(tests + CHANCE * test_stride + rank, chance)
            else:
                target_prob = tl.where(is_among(token, child_tokens, rank), 0.0, tl.exp(log_target))
                chance = tl.where(target_prob < mass_left, target_prob / tl.maximum(mass_left, 1e-30), 1.0)
                tl.store(tests + CHANCE * test_stride + rank, tl.where(target_prob > 0.0, chance, 0.0))
                tl.store(tests + LOG_OFFERED * test_stride + rank, log_or_nothing(mass_left))
                tl.store(tests + LOG_RESIDUAL * test_stride + rank, log_or_nothing(target_prob))
                mass_left = tl.maximum(mass_left - target_prob, 0.0)
