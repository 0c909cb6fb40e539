"""Chain verification in Triton: four launches, five more for filters, three more for the block rule.

No [rows, V] tensor is written, and nothing is read back.
"""

from __future__ import annotations

import torch
import triton

from kernels.filters import fused as filters
from kernels.launch import are_rows_aligned
from kernels.verify.fused_rows import NUM_PLANES
from kernels.verify.launches import DTYPE_PAIRS, logits_launch, merge_launch
from kernels.verify.shapes import BLOCK
from kernels.verify.verdict import Chains, Verdict


def verify_chain(chains: Chains) -> Verdict:
    """See `kernels.verify.verify_chain`."""
    target = row_contiguous(chains.target_logits)
    has_draft_logits = chains.draft_logits is not None
    # A pointer that no kernel follows when there are no draft logits.
    draft = row_contiguous(chains.draft_logits) if chains.draft_logits is not None else target
    if (target.dtype, draft.dtype) not in DTYPE_PAIRS:
        draft = draft.float()
    num_rows, vocab_size = target.shape
    batch, num_draft, width = len(chains.temperature), len(chains.draft_token_ids), chains.max_k + 1
    device = target.device
    # Kernels step through these one by one: a column of a table, or one number expanded, is copied first.
    draft_token_ids, cu_draft = chains.draft_token_ids.contiguous(), chains.cu_draft.contiguous()
    temperature, coupled = chains.temperature.contiguous(), chains.coupled.contiguous()
    num_accepted = torch.empty(batch, dtype=torch.int32, device=device)
    token_ids = torch.empty((batch, width), dtype=torch.int64, device=device)
    overlap = torch.empty(num_draft, dtype=torch.float32, device=device)
    verdict = Verdict(num_accepted, token_ids, overlap)
    if batch == 0:
        return verdict

    num_blocks = triton.cdiv(vocab_size, BLOCK)
    statistics = torch.empty((NUM_PLANES, num_rows, num_blocks), dtype=torch.float32, device=device)
    best_tokens = torch.empty((num_rows, num_blocks), dtype=torch.int32, device=device)
    normalisers = torch.empty((2, num_rows), dtype=torch.float32, device=device)
    partial_overlap = torch.empty((num_rows, num_blocks), dtype=torch.float32, device=device)
    scores = torch.empty((2, batch, num_blocks), dtype=torch.float32, device=device)
    resampled = torch.empty((2, batch, num_blocks), dtype=torch.int32, device=device)
    inverse_temperature = 1.0 / temperature
    limits = chains.limits
    thresholds = normalisers  # a pointer that no kernel follows when nothing is filtered
    if limits is not None:
        thresholds = filters.row_thresholds(target, cu_draft, temperature, inverse_temperature, limits)
    target_rows = (target, target.stride(0), thresholds, int(limits is not None))
    streams = (chains.seeds.contiguous(), chains.positions.contiguous(), coupled)
    rules = (cu_draft, temperature, inverse_temperature, *streams)
    scales, is_block_rule = normalisers, chains.rule == "block"
    shape = (target.dtype, draft.dtype if has_draft_logits else None, are_rows_aligned(target, draft))

    logits_launch("statistics", *shape).run(
        (num_rows, num_blocks), statistics, best_tokens, *target_rows, draft, draft.stride(0), *rules,
        batch, vocab_size, num_blocks, statistics.stride(0),
    )  # fmt: skip
    logits_launch("accept", *shape).run(
        (batch,), num_accepted, token_ids, token_ids.stride(0), overlap, normalisers, normalisers.stride(0),
        statistics, best_tokens, *target_rows, draft_token_ids, draft, draft.stride(0), *rules,
        vocab_size, num_blocks, statistics.stride(0), width, int(not is_block_rule),
    )  # fmt: skip
    if is_block_rule:
        scales = torch.empty(num_rows, dtype=torch.float32, device=device)
        masses = torch.empty((num_rows, num_blocks), dtype=torch.float32, device=device)
        logits_launch("block_scale", *shape).run(
            (batch,), scales, masses, overlap, normalisers, normalisers.stride(0), statistics, *target_rows,
            draft_token_ids, draft, draft.stride(0), cu_draft, temperature, inverse_temperature, coupled, vocab_size,
            num_blocks, statistics.stride(0),
        )  # fmt: skip
        if has_draft_logits:
            logits_launch("block_mass", *shape).run(
                (num_rows, num_blocks), masses, scales, normalisers, normalisers.stride(0), *target_rows, draft,
                draft.stride(0), cu_draft, temperature, inverse_temperature, coupled, batch, vocab_size, num_blocks,
            )  # fmt: skip
        merge_launch("block_accept", has_draft_logits).run(
            (batch,), num_accepted, token_ids, token_ids.stride(0), overlap, scales, masses, draft_token_ids, cu_draft,
            temperature, *streams, num_blocks,
        )  # fmt: skip
    logits_launch("resample", *shape).run(
        (num_rows, num_blocks), partial_overlap, scores, resampled, scores.stride(0), num_accepted, scales,
        int(is_block_rule), normalisers, normalisers.stride(0), *target_rows, draft_token_ids, draft,
        draft.stride(0), *rules, batch, vocab_size, num_blocks,
    )  # fmt: skip
    merge_launch("finish", has_draft_logits).run(
        (batch,), token_ids, token_ids.stride(0), overlap, partial_overlap, scores, resampled, scores.stride(0),
        num_accepted, cu_draft, temperature, coupled, num_blocks,
    )  # fmt: skip
    return verdict


def row_contiguous(logits: torch.Tensor) -> torch.Tensor:
    """The logits with the tokens of a row side by side; rows may lie apart."""
    return logits if logits.stride(-1) == 1 else logits.contiguous()
