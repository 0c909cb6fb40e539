"""After a tree is verified: the accepted path's rows of the KV cache move together, in place and in all layers."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kernels.kv_commit import naive
from kernels.kv_commit.moves import Moves
from kernels.launch import Backend, choose_backend

__all__ = ["kv_commit"]


def kv_commit(
    k_cache: torch.Tensor | Sequence[torch.Tensor],
    v_cache: torch.Tensor | Sequence[torch.Tensor],
    block_tables: torch.Tensor,
    first_positions: torch.Tensor,
    accepted_nodes: torch.Tensor,
    num_accepted: torch.Tensor,
    *,
    backend: Backend = "auto",
) -> None:
    """Move the rows of accepted nodes to the places that decoding without a tree would have given them; in place.

    A step wrote the row of the tree's root at logical position first_positions[b] and that of node n at
    first_positions[b] + 1 + n. The row of the accepted node at depth d moves to first_positions[b] + 1 + d. All other
    rows stay as they are to the bit; those behind the path are garbage that the next step writes over.

    k_cache, v_cache: [layers, num_blocks, block_size, kv_heads, head_dim], or a sequence of `layers` tensors without
    the first dimension, all of one shape, float32, bfloat16 or float16; any strides, but the last must be 1.
    block_tables: [B, max_blocks] i32, block of each block_size logical positions, -1 where there is none: a row whose
    source or destination has no block is not moved. No two sequences may share a block that holds a moved row.
    first_positions: [B] i64. accepted_nodes [B, D] i32 and num_accepted [B] i32: from `TreeVerdict`; node indices rise
    along a path.

    One launch, no synchronisation. Raises ValueError for arguments that do not fit together, BackendUnavailable for a
    named backend that cannot run.
    """
    moves = Moves.of(k_cache, v_cache, block_tables, first_positions, accepted_nodes, num_accepted)
    if choose_backend(backend, block_tables.device) == "naive":
        naive.kv_commit(moves)
        return
    from kernels.kv_commit import fused  # here, so that nobody imports Triton who does not run it

    fused.kv_commit(moves)
