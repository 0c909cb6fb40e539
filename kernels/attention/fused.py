"""Attention over a block KV cache in Triton: two launches, no synchronisation."""

from __future__ import annotations

import torch
import triton

from kernels.attention.arguments import Attention, Placement
from kernels.attention.fused_kernels import attention_merge_kernel, attention_split_kernel, write_kv_kernel
from kernels.attention.launches import WRITE_ROWS, configuration
from kernels.attention.tiles import SPLIT_TOKENS, tile_for

_WINDOW_OFF = 2**31 - 1


def tree_attention(attention: Attention) -> torch.Tensor:
    """See `kernels.attention.tree_attention`."""
    query, placement = attention.query, attention.placement
    query = query if query.stride(-1) == 1 else query.contiguous()
    num_rows, q_heads, head_dim = query.shape
    _, block_size, kv_heads, _ = attention.k_cache.shape
    device = query.device
    out = torch.empty((num_rows, q_heads, head_dim), dtype=query.dtype, device=device)
    if num_rows == 0 or q_heads == 0:
        return out

    tile, group = tile_for(head_dim, query.dtype), q_heads // kv_heads
    tiles = triton.cdiv(placement.max_rows * group, tile.rows)
    splits = triton.cdiv(placement.max_context + placement.max_rows, SPLIT_TOKENS)
    batch = len(placement.context_lens)
    partial = torch.empty((splits, num_rows, q_heads, head_dim), dtype=torch.float32, device=device)
    statistics = torch.empty((splits, num_rows, q_heads, 2), dtype=torch.float32, device=device)
    depths = attention.window_depths
    has_depths, words = int(depths is not None), 0 if attention.ancestors is None else attention.ancestors.shape[1]
    # Pointers that no kernel follows where there is no tree, or none whose depths matter.
    ancestors = placement.cu_rows if attention.ancestors is None else attention.ancestors
    depths = placement.cu_rows if depths is None else depths
    window = _WINDOW_OFF if attention.sliding_window is None else attention.sliding_window

    attention_split_kernel[(batch * tiles, kv_heads, splits)](
        partial, statistics, query, query.stride(0), query.stride(1),
        attention.k_cache, *attention.k_cache.stride()[:3], attention.v_cache, *attention.v_cache.stride()[:3],
        placement.block_tables, placement.block_tables.stride(0), placement.context_lens, placement.cu_rows,
        ancestors, words, depths, has_depths,
        num_rows, q_heads, group, tiles, block_size.bit_length() - 1, window,
        float(attention.scale), float(attention.softcap or 0.0),
        **configuration(attention_split_kernel, head_dim, query.dtype),
    )  # fmt: skip
    attention_merge_kernel[(batch * tiles, kv_heads)](
        out, partial, statistics, placement.context_lens, placement.cu_rows, depths, has_depths,
        num_rows, q_heads, group, tiles, window,
        **configuration(attention_merge_kernel, head_dim, query.dtype),
    )  # fmt: skip
    return out


def write_kv(
    keys: torch.Tensor, values: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, placement: Placement
) -> None:
    """See `kernels.attention.write_kv`."""
    num_rows, kv_heads, head_dim = keys.shape
    if num_rows == 0:
        return
    keys = keys if keys.stride(-1) == 1 else keys.contiguous()
    values = values if values.stride(-1) == 1 else values.contiguous()
    tiles = triton.cdiv(placement.max_rows, WRITE_ROWS)
    write_kv_kernel[(len(placement.context_lens) * tiles, kv_heads)](
        k_cache, *k_cache.stride()[:3], v_cache, *v_cache.stride()[:3],
        keys, *keys.stride()[:2], values, *values.stride()[:2],
        placement.block_tables, placement.block_tables.stride(0), placement.context_lens, placement.cu_rows,
        tiles, k_cache.shape[1].bit_length() - 1,
        **configuration(write_kv_kernel, head_dim, keys.dtype),
    )  # fmt: skip
