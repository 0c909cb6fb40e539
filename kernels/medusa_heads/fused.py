"""The Medusa heads in Triton: three launches, no [rows, heads, V] tensor, no synchronisation."""

from __future__ import annotations

import torch
import triton

from kernels.launch import Launch
from kernels.medusa_heads.heads import Candidates, Heads
from kernels.medusa_heads.launches import lm_head_launch, merge_launch, residual_launch


def medusa_heads(heads: Heads) -> Candidates:
    """See `kernels.medusa_heads.medusa_heads`."""
    hidden, residual_weight = heads.hidden.contiguous(), heads.residual_weight.contiguous()
    lm_head_weight = heads.lm_head_weight.contiguous()
    # A pointer that no kernel follows stands for what is absent.
    bias = hidden if heads.residual_bias is None else heads.residual_bias.contiguous()
    (batch, size), num_heads, k, device = hidden.shape, heads.num_heads, heads.k, hidden.device
    token_ids = torch.empty((batch, num_heads, k), dtype=torch.int64, device=device)
    logits = torch.empty((batch, num_heads, k), dtype=torch.float32, device=device)
    log_sum_exp = torch.empty((batch, num_heads), dtype=torch.float32, device=device)
    candidates = Candidates(token_ids, logits, log_sum_exp)
    if batch == 0:
        return candidates
    vocab_map = token_ids if heads.vocab_map is None else heads.vocab_map.contiguous()

    residual = residual_launch(hidden.dtype, heads.residual_bias is not None)
    lm_head = lm_head_launch(hidden.dtype, heads.vocab_map is not None)
    num_rows, num_groups = batch * num_heads, 1 if heads.is_shared else num_heads
    num_blocks = triton.cdiv(heads.vocab_size, lm_head.constants["COLUMNS"])
    states = torch.empty((batch, num_heads, size), dtype=hidden.dtype, device=device)
    scores = torch.empty((num_rows, num_blocks, k), dtype=torch.float32, device=device)
    tokens = torch.empty((num_rows, num_blocks, k), dtype=torch.int32, device=device)
    highest = torch.empty((num_rows, num_blocks), dtype=torch.float32, device=device)
    sums = torch.empty((num_rows, num_blocks), dtype=torch.float32, device=device)

    # Row blocks are the fastest axis: programs that share a tile of weights run together and read it once.
    grid = _tiles(residual, batch, size, num_heads)
    residual.run(grid, states, hidden, residual_weight, bias, batch, num_heads, size)
    grid = _tiles(lm_head, num_rows // num_groups, heads.vocab_size, num_groups)
    lm_head.run(
        grid, scores, tokens, highest, sums, states, lm_head_weight, vocab_map,
        num_rows, num_groups, size, heads.vocab_size, num_blocks, k,
    )  # fmt: skip
    merge_launch(num_blocks).run(
        (num_rows,), token_ids, logits, log_sum_exp, scores, tokens, highest, sums, num_blocks, k
    )
    return candidates


def _tiles(launch: Launch, rows: int, columns: int, depth: int) -> tuple[int, int, int]:
    constants = launch.constants
    return triton.cdiv(rows, constants["ROWS"]), triton.cdiv(columns, constants["COLUMNS"]), depth
