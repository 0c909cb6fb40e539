"""Sampling in Triton: two launches, five more for filters, two or three for penalties; nothing read back."""

from __future__ import annotations

import torch
import triton

from kernels.filters import fused as filters
from kernels.launch import are_rows_aligned
from kernels.sample.adjustments import FREQUENCY_OFF, PRESENCE_OFF, REPETITION_OFF
from kernels.sample.draws import Draws, Sampled
from kernels.sample.launches import bias_launch, blocks_launch, copy_launch, finish_launch, penalise_launch
from kernels.verify.fused import row_contiguous
from kernels.verify.shapes import BLOCK


def sample(draws: Draws) -> Sampled:
    """See `kernels.sample.sample`."""
    logits = row_contiguous(draws.logits)
    (batch, vocab_size), device = logits.shape, logits.device
    token_ids = torch.empty(batch, dtype=torch.int64, device=device)
    logprobs = torch.empty(batch, dtype=torch.float32, device=device)
    if batch == 0:
        return Sampled(token_ids, logprobs)
    num_blocks = triton.cdiv(vocab_size, BLOCK)
    best_scores = torch.empty((batch, num_blocks), dtype=torch.float32, device=device)
    best_tokens = torch.empty((batch, num_blocks), dtype=torch.int32, device=device)
    statistics = torch.empty((2, batch, num_blocks), dtype=torch.float32, device=device)
    # Kernels step through what has one number a row one by one: a column of a table, or one expanded, is copied first.
    temperature = draws.temperature.contiguous()
    temperatures = (temperature, 1.0 / temperature)
    streams = (draws.seeds.contiguous(), draws.positions.contiguous(), draws.coupled.contiguous())

    adjusted = is_adjusted = None
    # Pointers that no kernel follows where nothing is adjusted, or filtered.
    source = (logits, logits.stride(0), best_scores, best_tokens)
    thresholds = best_scores
    if draws.penalties is not None or draws.logit_bias is not None:
        is_adjusted = _rows_to_adjust(draws)
        adjusted = _adjust(draws, logits, is_adjusted)
        source = (logits, logits.stride(0), adjusted, is_adjusted)
    if draws.limits is not None:
        # One row a sequence: in the ragged layout of verification, chains of no drafts.
        cu_draft = torch.zeros(batch + 1, dtype=torch.int32, device=device)
        thresholds = filters.row_thresholds(logits, cu_draft, *temperatures, draws.limits, adjusted, is_adjusted)

    shape = (logits.dtype, adjusted is not None)
    aligned = are_rows_aligned(logits) and (adjusted is None or are_rows_aligned(adjusted))
    blocks_launch(*shape, aligned).run(
        (batch, num_blocks), best_scores, best_tokens, statistics, statistics.stride(0), *source, thresholds,
        int(draws.limits is not None), *temperatures, *streams, int(draws.purpose), vocab_size, num_blocks,
    )  # fmt: skip
    finish_launch(*shape).run(
        (batch,), token_ids, logprobs, best_scores, best_tokens, statistics, statistics.stride(0), *source,
        *temperatures, vocab_size, num_blocks,
    )  # fmt: skip
    return Sampled(token_ids, logprobs)


def _rows_to_adjust(draws: Draws) -> torch.Tensor:
    """[B] i32: 1 for the rows that pay for a copy."""
    is_adjusted = torch.zeros(len(draws.coupled), dtype=torch.bool, device=draws.coupled.device)
    if draws.penalties is not None:
        penalties = draws.penalties
        is_penalised = (penalties.repetition != REPETITION_OFF) | (penalties.presence != PRESENCE_OFF)
        is_penalised |= penalties.frequency != FREQUENCY_OFF
        is_adjusted |= is_penalised & (penalties.counts.cu.diff() > 0)
    if draws.logit_bias is not None:
        is_adjusted |= draws.logit_bias.cu.diff() > 0
    return is_adjusted.to(torch.int32)


def _adjust(draws: Draws, logits: torch.Tensor, is_adjusted: torch.Tensor) -> torch.Tensor:
    """[B, V] f32: the rows marked in `is_adjusted` after penalties and bias; the others are not written."""
    (batch, vocab_size), num_blocks = logits.shape, triton.cdiv(logits.shape[1], BLOCK)
    adjusted = torch.empty((batch, vocab_size), dtype=torch.float32, device=logits.device)
    copy_launch(logits.dtype, are_rows_aligned(logits, adjusted)).run(
        (batch, num_blocks), adjusted, logits, logits.stride(0), is_adjusted, vocab_size
    )
    if draws.penalties is not None:
        penalties, counts = draws.penalties, draws.penalties.counts
        repetition = penalties.repetition.contiguous()
        penalise_launch(logits.dtype).run(
            (batch,), adjusted, logits, logits.stride(0), is_adjusted, counts.token_ids.contiguous(),
            counts.output_counts.contiguous(), counts.cu.contiguous(), repetition, 1.0 / repetition,
            penalties.presence.contiguous(), penalties.frequency.contiguous(), vocab_size,
        )  # fmt: skip
    if draws.logit_bias is not None:
        bias = draws.logit_bias
        bias_launch().run(
            (batch,), adjusted, is_adjusted, bias.token_ids.contiguous(), bias.values.contiguous(),
            bias.cu.contiguous(), vocab_size,
        )  # fmt: skip
    return adjusted
