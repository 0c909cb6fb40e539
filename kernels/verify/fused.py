"""Chain verification in Triton: four launches, no [rows, V] probability tensor, no synchronisation."""

from __future__ import annotations

import torch
import triton

from kernels.launch import ENABLE_FP_FUSION, NARROW_WARPS, WIDE_WARPS, vocab_block
from kernels.verify.fused_kernels import (
    verify_accept_kernel,
    verify_finish_kernel,
    verify_resample_kernel,
    verify_statistics_kernel,
)
from kernels.verify.fused_rows import NUM_PLANES
from kernels.verify.verdict import Chains, Verdict


def verify_chain(chains: Chains) -> Verdict:
    """See `kernels.verify.verify_chain`."""
    target = _row_contiguous(chains.target_logits)
    has_draft_logits = chains.draft_logits is not None
    # A pointer that no kernel follows when there are no draft logits.
    draft = _row_contiguous(chains.draft_logits) if chains.draft_logits is not None else target
    num_rows, vocab_size = target.shape
    batch, num_draft, width = len(chains.temperature), len(chains.draft_token_ids), chains.max_k + 1
    device = target.device
    num_accepted = torch.empty(batch, dtype=torch.int32, device=device)
    token_ids = torch.empty((batch, width), dtype=torch.int64, device=device)
    overlap = torch.empty(num_draft, dtype=torch.float32, device=device)
    verdict = Verdict(num_accepted, token_ids, overlap)
    if batch == 0:
        return verdict

    block = vocab_block(vocab_size)
    num_blocks = triton.cdiv(vocab_size, block)
    blocks, batch_block = triton.next_power_of_2(num_blocks), triton.next_power_of_2(batch)
    statistics = torch.empty((NUM_PLANES, num_rows, num_blocks), dtype=torch.float32, device=device)
    best_tokens = torch.empty((num_rows, num_blocks), dtype=torch.int32, device=device)
    normalisers = torch.empty((2, num_rows), dtype=torch.float32, device=device)
    partial_overlap = torch.empty((num_rows, num_blocks), dtype=torch.float32, device=device)
    scores = torch.empty((2, batch, num_blocks), dtype=torch.float32, device=device)
    resampled = torch.empty((2, batch, num_blocks), dtype=torch.int32, device=device)
    inverse_temperature = 1.0 / chains.temperature
    rules = (chains.cu_draft, chains.temperature, inverse_temperature, chains.seeds, chains.positions, chains.coupled)
    wide = {"num_warps": WIDE_WARPS, "enable_fp_fusion": ENABLE_FP_FUSION}
    narrow = {"num_warps": NARROW_WARPS, "enable_fp_fusion": ENABLE_FP_FUSION}

    verify_statistics_kernel[(num_rows, num_blocks)](
        statistics, best_tokens, target, target.stride(0), draft, draft.stride(0), *rules,
        batch, vocab_size, num_blocks, statistics.stride(0),
        HAS_DRAFT_LOGITS=has_draft_logits, BLOCK=block, BATCH_BLOCK=batch_block, **wide,
    )  # fmt: skip
    verify_accept_kernel[(batch,)](
        num_accepted, token_ids, token_ids.stride(0), overlap, normalisers, normalisers.stride(0),
        statistics, best_tokens, target, target.stride(0), chains.draft_token_ids, draft, draft.stride(0), *rules,
        vocab_size, num_blocks, statistics.stride(0), width,
        HAS_DRAFT_LOGITS=has_draft_logits, BLOCKS=blocks, WIDTH_BLOCK=triton.next_power_of_2(width), **narrow,
    )  # fmt: skip
    verify_resample_kernel[(num_rows, num_blocks)](
        partial_overlap, scores, resampled, scores.stride(0), num_accepted, normalisers, normalisers.stride(0),
        target, target.stride(0), chains.draft_token_ids, draft, draft.stride(0), *rules, batch, vocab_size, num_blocks,
        HAS_DRAFT_LOGITS=has_draft_logits, BLOCK=block, BATCH_BLOCK=batch_block, **wide,
    )  # fmt: skip
    verify_finish_kernel[(batch,)](
        token_ids, token_ids.stride(0), overlap, partial_overlap, scores, resampled, scores.stride(0), num_accepted,
        chains.cu_draft, chains.temperature, chains.coupled, num_blocks,
        HAS_DRAFT_LOGITS=has_draft_logits, BLOCKS=blocks, **narrow,
    )  # fmt: skip
    return verdict


def _row_contiguous(logits: torch.Tensor) -> torch.Tensor:
    return logits if logits.stride(-1) == 1 else logits.contiguous()
