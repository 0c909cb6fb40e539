"""Attention of draft trees, chains and single rows over a block KV cache, and the writing of rows to that cache."""

from __future__ import annotations

import torch

from kernels.attention import naive, native
from kernels.attention.ancestors import ancestor_words, depths_of
from kernels.attention.arguments import STATE_TYPES, Attention, Placement, check_caches
from kernels.attention.tiles import choose_attention_backend
from kernels.launch import Backend, BackendUnavailable

__all__ = ["BackendUnavailable", "ancestor_words", "depths_of", "tree_attention", "write_kv"]


def tree_attention(
    query: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    context_lens: torch.Tensor,
    cu_rows: torch.Tensor,
    ancestors: torch.Tensor | None = None,
    depths: torch.Tensor | None = None,
    *,
    scale: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    max_rows: int | None = None,
    max_context: int | None = None,
    backend: Backend = "auto",
) -> torch.Tensor:
    """Attention of ragged rows over the cached keys of their own sequence -> [num_rows, q_heads, head_dim].

    query: [num_rows, q_heads, head_dim] float32, bfloat16 or float16; rows cu_rows[b] .. cu_rows[b + 1] belong to
    sequence b. The result has its type; sums and softmax are float32.
    k_cache, v_cache: [num_blocks, block_size, kv_heads, head_dim], same type, any strides but the last, block_size 16,
    32 or 64. q_heads is a multiple of kv_heads: query head h reads kv head h // (q_heads // kv_heads).
    block_tables: [B, max_blocks] i32, entry j the block of logical slots j * block_size and on; -1 where no row looks
    (behind a window). context_lens: [B] i32, tokens committed before this step. The keys of row i of sequence b lie
    already at logical slot context_lens[b] + i (`write_kv`). cu_rows: [B + 1] i32.
    ancestors: [num_rows, words] i32, bit i of a row set where it sees row i of its sequence, itself included
    (`ancestor_words`); None: each row sees the rows before it and itself, as a chain or a prompt does.
    depths: [num_rows] i32, rows above each row on its path; only a window needs them, and then None derives them from
    `ancestors`. A row stands at position context_len + depth.
    scale: of the scores, head_dim ** -0.5 if None. sliding_window: keys at least so many positions back are not seen,
    as in transformers' `sliding_window_overlay`. softcap: scores become softcap * tanh(scores / softcap) (Gemma 2).
    max_rows, max_context: bounds of a sequence's rows and of context_lens, if the caller knows them; without them a
    device tensor costs a synchronisation each. They set how many programs start, never a result.

    A row's result depends on its own sequence only, to the bit: not on its batch-mates, its place in the batch, its
    physical blocks, the rows behind it or the bounds.

    Raises ValueError for arguments that do not fit together, BackendUnavailable for a named backend that cannot run.
    """
    scale = query.shape[-1] ** -0.5 if scale is None else scale

    def checked() -> Attention:
        placement = Placement.of(block_tables, context_lens, cu_rows, max_rows, max_context)
        return Attention(query, k_cache, v_cache, placement, ancestors, depths, scale, sliding_window, softcap)

    chosen = choose_attention_backend(backend, query.device, query.shape[-1])
    if chosen == "native":
        try:
            return native.tree_attention(
                query, k_cache, v_cache, block_tables, context_lens, cu_rows, ancestors, depths,
                scale, sliding_window, softcap, max_rows, max_context,
            )  # fmt: skip
        except native.MISFITS:
            checked()  # which says more; the operation checks the same in a hundredth of the time
            raise
    attention = checked()
    if chosen == "naive":
        return naive.tree_attention(attention)
    from kernels.attention import fused  # here, so that nobody imports Triton who does not run it

    return fused.tree_attention(attention)


def write_kv(
    keys: torch.Tensor,
    values: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    context_lens: torch.Tensor,
    cu_rows: torch.Tensor,
    *,
    max_rows: int | None = None,
    backend: Backend = "auto",
) -> None:
    """Write each row's key and value to logical slot context_len + i of its sequence, in place.

    keys, values: [num_rows, kv_heads, head_dim] in the caches' type, any strides but the last; the rest as in
    `tree_attention`. Raises ValueError for arguments that do not fit together, BackendUnavailable.
    """

    def checked() -> Placement:
        if keys.dtype not in STATE_TYPES:
            raise ValueError(f"keys is {keys.dtype}; it must be float32, bfloat16 or float16")
        check_caches(k_cache, v_cache, keys.dtype, keys.device)
        num_blocks, block_size, kv_heads, head_dim = k_cache.shape
        for name, rows in (("keys", keys), ("values", values)):
            if rows.ndim != 3 or tuple(rows.shape) != (len(keys), kv_heads, head_dim):
                raise ValueError(
                    f"{name} has shape {tuple(rows.shape)}; it must be [num_rows, kv_heads, head_dim] with "
                    f"{kv_heads} heads of {head_dim}"
                )
            if rows.dtype != keys.dtype or rows.device != keys.device:
                raise ValueError(f"{name} is {rows.dtype} on {rows.device}; keys is {keys.dtype} on {keys.device}")
        on_host = keys.device.type == "cpu"
        placement = Placement.of(block_tables, context_lens, cu_rows, max_rows, None if on_host else 0)
        placement.check(len(keys), block_size, num_blocks, keys.device)
        return placement

    chosen = choose_attention_backend(backend, keys.device, keys.shape[-1])
    if chosen == "native":
        try:
            return native.write_kv(
                keys, values, k_cache, v_cache, block_tables, context_lens, cu_rows, max_rows
            )  # fmt: skip
        except native.MISFITS:
            checked()
            raise
    placement = checked()
    if chosen == "naive":
        return naive.write_kv(keys, values, k_cache, v_cache, placement)
    from kernels.attention import fused

    return fused.write_kv(keys, values, k_cache, v_cache, placement)
