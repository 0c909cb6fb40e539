"""Attention over a block KV cache as a transformers model calls it; registering it is the caller's (no import here)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from kernels.attention import tree_attention, write_kv
from kernels.launch import Backend

UNSUPPORTED = ("s_aux", "position_bias")
"""What a model may ask of its attention and this one does not compute."""


@dataclass(frozen=True, slots=True)
class PagedStep:
    """The tables of one forward over B sequences, laid behind each other as one row of tokens; see `tree_attention`.

    k_caches, v_caches: one [num_blocks, block_size, kv_heads, head_dim] a layer. depths: [num_rows] i32; needed where
    `ancestors` is given (`depths_of` derives them, once a step instead of once a layer).
    """

    k_caches: Sequence[torch.Tensor]
    v_caches: Sequence[torch.Tensor]
    block_tables: torch.Tensor
    context_lens: torch.Tensor
    cu_rows: torch.Tensor
    max_rows: int
    max_context: int
    ancestors: torch.Tensor | None = None
    depths: torch.Tensor | None = None
    backend: Backend = "auto"

    def __post_init__(self) -> None:
        if (self.ancestors is None) != (self.depths is None):
            raise ValueError("PagedStep needs ancestors and depths, or neither; see depths_of")

    def position_ids(self, num_rows: int) -> torch.Tensor:
        """[1, num_rows] i64: the position of each row in its text, context_len + depth, for the model's embedding."""
        row = torch.arange(num_rows, device=self.cu_rows.device)
        sequence = torch.searchsorted(self.cu_rows[1:], row.to(torch.int32), right=True)
        depth = row - self.cu_rows[sequence] if self.depths is None else self.depths
        return (self.context_lens[sequence] + depth).long()[None]


def paged_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    paged_step: PagedStep | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Write this step's keys and values to the layer's cache and attend -> ([1, rows, heads, head_dim], None).

    query: [1, heads, rows, head_dim]; key, value: [1, kv_heads, rows, head_dim] of this step's rows only (run the model
    with use_cache=False). The model passes `paged_step` on from its call. Raises ValueError for what it cannot compute.
    """
    if paged_step is None:
        raise ValueError("paged_step is missing; pass a PagedStep in the call of the model")
    if attention_mask is not None:
        raise ValueError("attention_mask is given; the step's tables say what a row sees, so register a mask of None")
    for feature in UNSUPPORTED:
        if kwargs.get(feature) is not None:
            raise ValueError(f"this model's attention uses {feature!r}, which tree_attention does not compute")
    if not getattr(module, "is_causal", True):
        raise ValueError("this model's attention looks ahead in the text")
    if dropout:
        raise ValueError(f"dropout is {dropout}; call eval() on the model")
    if len(query) != 1:
        raise ValueError(f"query has {len(query)} batch rows; lay all sequences behind each other in one")
    step, layer = paged_step, int(module.layer_idx)  # type: ignore[arg-type]
    k_cache, v_cache = step.k_caches[layer], step.v_caches[layer]
    tables = (step.block_tables, step.context_lens, step.cu_rows)
    write_kv(
        key[0].transpose(0, 1), value[0].transpose(0, 1), k_cache, v_cache, *tables,
        max_rows=step.max_rows, backend=step.backend,
    )  # fmt: skip
    out = tree_attention(
        query[0].transpose(0, 1), k_cache, v_cache, *tables, step.ancestors, step.depths,
        scale=scaling, sliding_window=sliding_window, softcap=softcap,
        max_rows=step.max_rows, max_context=step.max_context, backend=step.backend,
    )  # fmt: skip
    return out[None], None
