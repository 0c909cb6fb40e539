"""Thresholds in Triton: five launches, nothing read back."""

from __future__ import annotations

import torch
import triton

from kernels.filters.fused_kernels import NUM_RUNGS, SEATS
from kernels.filters.launches import OVER_LOGITS, bracket_launch, logits_launch
from kernels.filters.limits import Limits
from kernels.launch import are_rows_aligned
from kernels.verify.shapes import BLOCK


def row_thresholds(
    logits: torch.Tensor,
    cu_draft: torch.Tensor,
    temperature: torch.Tensor,
    inverse_temperature: torch.Tensor,
    limits: Limits,
    adjusted: torch.Tensor | None = None,
    is_adjusted: torch.Tensor | None = None,
) -> torch.Tensor:
    """[rows] f32: the smallest score (logit / temperature) that stays of each row, -inf where nothing is cut off.

    logits: [rows, V], rows contiguous, laid out by `cu_draft` [B + 1] i32 as for `verify_chain`; temperature,
    inverse_temperature [B] f32. adjusted: [rows, V] f32, read instead of the logits for the rows marked in
    `is_adjusted` [rows] i32.
    """
    num_rows, vocab_size = logits.shape
    num_blocks, device = triton.cdiv(vocab_size, BLOCK), logits.device
    thresholds = torch.empty(num_rows, dtype=torch.float32, device=device)
    highest = torch.empty((num_rows, num_blocks), dtype=torch.float32, device=device)
    counts = torch.empty((num_rows, NUM_RUNGS, num_blocks), dtype=torch.int32, device=device)
    masses = torch.empty((num_rows, NUM_RUNGS, num_blocks), dtype=torch.int64, device=device)
    seats = torch.empty((num_rows, num_blocks), dtype=torch.int32, device=device)
    lowest = torch.empty(num_rows, dtype=torch.float32, device=device)
    num_candidates = torch.empty(num_rows, dtype=torch.int32, device=device)
    totals = torch.empty(num_rows, dtype=torch.int64, device=device)
    candidates = torch.empty((num_rows, SEATS), dtype=torch.float32, device=device)
    has_adjusted = adjusted is not None and is_adjusted is not None
    # Pointers that no kernel follows where nothing is adjusted.
    adjustments = (adjusted, is_adjusted) if has_adjusted else (lowest, seats)
    source = (logits, logits.stride(0), *adjustments)
    rules = (cu_draft, temperature, inverse_temperature, limits.top_k, limits.top_p)
    batch, log_min_p = len(temperature), limits.log_min_p

    over_blocks, over_rows = (num_rows, num_blocks), (num_rows,)
    aligned = are_rows_aligned(logits) and (adjusted is None or are_rows_aligned(adjusted))
    stage = {name: logits_launch(name, logits.dtype, has_adjusted, aligned) for name in OVER_LOGITS}
    stage["highest"].run(over_blocks, highest, *source, *rules, log_min_p, batch, vocab_size, num_blocks)
    stage["ladder"].run(over_blocks, counts, masses, highest, *source, *rules, batch, vocab_size, num_blocks)
    bracket_launch().run(
        over_rows, lowest, num_candidates, totals, seats, counts, masses, highest, *rules, batch, num_blocks
    )
    stage["collect"].run(
        over_blocks, candidates, lowest, num_candidates, seats, *source, *rules, batch, vocab_size, num_blocks
    )
    stage["select"].run(
        over_rows, thresholds, candidates, lowest, num_candidates, totals, highest, *source, *rules, log_min_p, batch,
        vocab_size, num_blocks,
    )  # fmt: skip
    return thresholds
