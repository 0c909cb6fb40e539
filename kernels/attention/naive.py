"""The definition of attention over a block KV cache, and of writing to it, one sequence at a time in plain PyTorch."""

from __future__ import annotations

import itertools

import torch

from kernels.attention.ancestors import unpacked
from kernels.attention.arguments import Attention, Placement


def tree_attention(attention: Attention) -> torch.Tensor:
    """See `kernels.attention.tree_attention`."""
    query, placement = attention.query, attention.placement
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    group = query.shape[1] // attention.k_cache.shape[2]
    contexts = placement.context_lens.tolist()
    for b, (start, end) in enumerate(itertools.pairwise(placement.cu_rows.tolist())):
        if start == end:
            continue
        visible = visible_slots(attention, b, start, end, contexts[b])
        # Only what some row sees is read: elsewhere there may be no block, or garbage in it.
        read = visible.any(0).nonzero()[:, 0]
        visible = visible[:, read]
        block, offset = place(attention.k_cache, placement, b, read)
        keys = attention.k_cache[block, offset].float().repeat_interleave(group, 1)
        values = attention.v_cache[block, offset].float().repeat_interleave(group, 1)
        scores = torch.einsum("rhd,shd->hrs", query[start:end].float(), keys) * attention.scale
        if attention.softcap is not None:
            scores = attention.softcap * torch.tanh(scores / attention.softcap)
        probs = torch.softmax(scores.masked_fill(~visible, -torch.inf), -1)
        out[start:end] = torch.einsum("hrs,shd->rhd", probs, values).to(query.dtype)
    return out


def visible_slots(attention: Attention, b: int, start: int, end: int, context: int) -> torch.Tensor:
    """[rows, context + rows] bool: which logical slots of its sequence each of rows start to end may see.

    Slot s < context holds the committed token at position s. Slot context + i holds row i, whose position in the text
    is context + its depth: two rows of a tree may share one. A window looks at positions, not at slots.
    """
    rows, device = end - start, attention.query.device
    i = torch.arange(rows, device=device)
    if attention.ancestors is None:
        related, depth = i <= i[:, None], i
    else:
        related = unpacked(attention.ancestors[start:end], rows)
        window_depths = attention.window_depths
        depth = i if window_depths is None else window_depths[start:end].long()
    visible = torch.cat([torch.ones(rows, context, dtype=torch.bool, device=device), related], -1)
    if attention.sliding_window is not None:
        slot_position = torch.cat([torch.arange(context, device=device), context + depth])
        visible &= (context + depth)[:, None] - slot_position < attention.sliding_window
    return visible


def write_kv(
    keys: torch.Tensor, values: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, placement: Placement
) -> None:
    """See `kernels.attention.write_kv`."""
    contexts = placement.context_lens.tolist()
    for b, (start, end) in enumerate(itertools.pairwise(placement.cu_rows.tolist())):
        slots = contexts[b] + torch.arange(end - start, device=keys.device)
        block, offset = place(k_cache, placement, b, slots)
        k_cache[block, offset] = keys[start:end]
        v_cache[block, offset] = values[start:end]


def place(cache: torch.Tensor, placement: Placement, b: int, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Block and offset in it [n] i64 of logical slots [n] of sequence b; raises ValueError where it has no block."""
    block_size = cache.shape[1]
    block = placement.block_tables[b, slots // block_size].long()
    if bool((block < 0).any()):
        hole = int(slots[block < 0][0])
        raise ValueError(f"block_tables has no block for position {hole} of sequence {b}, which is in use")
    return block, slots % block_size
