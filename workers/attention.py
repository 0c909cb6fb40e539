"""Attention over the block KV cache for a flattened, ragged batch, plugged into any transformers model.

The model sees one row per computed token, all sequences behind each other: linear layers waste nothing. Attention is
one call a layer: `kernels.attention` where it has something better than its definition for the device, else
`workers.gathered_attention`.

Batch invariance. A row's result must not depend on its batch-mates, on K, on how a prompt was cut or on where its
blocks lie, or greedy text would change with load. On the CPU kernels measured here that holds bit for bit when rows
come in multiples of ROW_STEP (a matrix product in fp32 computes what is left over by another order of sums, and more
slowly); attention has a rule of its own in either place. tests/workers/engine/test_batch_invariance.py checks the
machine at hand.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.cache_utils import Cache

from kernels.attention import tree_attention, write_kv
from kernels.attention.tiles import choose_attention_backend
from workers.context_sizes import context_sizes
from workers.gathered_attention import attend_gathered
from workers.kv_cache import BlockKV
from workers.step_layout import StepLayout

IMPLEMENTATION = "kadence_slots"


def attention_sizes(
    context: int, heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device
) -> tuple[int, ...] | None:
    """The lengths of gathered keys that attention may cover; None where `kernels.attention` reads blocks itself."""
    if choose_attention_backend("auto", device, head_dim) != "naive":
        return None
    return context_sizes(context, heads, kv_heads, head_dim, dtype, device)


class SlotCache(Cache):
    """A transformers cache for one forward: writes the new keys and values into their slots of the blocks.

    windows: layer -> sliding window, tokens, of the attention calls so far.
    """

    def __init__(self, kv: BlockKV, layout: StepLayout) -> None:
        super().__init__(layers=[])
        self.kv = kv
        self.layout = layout
        self.windows: dict[int, int | None] = {}

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store [1, kv_heads, rows, head_dim] of one layer; returns it unchanged (attention reads the blocks)."""
        keys, values = self.kv.keys[layer_idx], self.kv.values[layer_idx]
        for new in (key_states, value_states):
            if new.shape[1::2] != keys.shape[2:]:
                raise ValueError(
                    f"layer {layer_idx} keeps {new.shape[1]} heads of {new.shape[3]}, its configuration says "
                    f"{keys.shape[2]} of {keys.shape[3]}"
                )
        write_rows(keys, values, key_states[0].transpose(0, 1), value_states[0].transpose(0, 1), self.layout)
        return key_states, value_states

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0


def write_rows(
    k_cache: torch.Tensor, v_cache: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, layout: StepLayout
) -> None:
    """Write keys and values [rows, kv_heads, head_dim] of a forward to their places in one layer's blocks."""
    if layout.gathering is None:
        n = layout.num_rows
        write_kv(
            keys[:n], values[:n], k_cache, v_cache, layout.block_tables, layout.context_lens, layout.cu_rows,
            max_rows=layout.max_rows,
        )  # fmt: skip
        return
    for cache, new in ((k_cache, keys), (v_cache, values)):
        cache.flatten(0, 1).index_copy_(0, layout.flat_index, new)


def slot_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    slot_cache: SlotCache | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of query [1, heads, rows, head_dim] over the blocks -> [1, rows, heads, head_dim].

    Raises ValueError for a feature of the model that this function does not compute (refused at load).
    """
    if slot_cache is None:
        raise ValueError(f"attention {IMPLEMENTATION!r} works only inside Kadence's engine")
    for feature in ("s_aux", "position_bias"):
        if kwargs.get(feature) is not None:
            raise ValueError(f"this model's attention uses {feature!r}, which Kadence does not compute")
    if softcap is not None and slot_cache.layout.gathering is not None:
        raise ValueError("this model's attention uses 'softcap', which is not computed where keys are gathered")
    if not getattr(module, "is_causal", True):
        raise ValueError("this model's attention looks ahead in the text")
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    slot_cache.windows[layer] = sliding_window
    return attend(slot_cache.kv, layer, slot_cache.layout, query, sliding_window, scaling, softcap), None


def attend(
    kv: BlockKV,
    layer: int,
    layout: StepLayout,
    query: torch.Tensor,
    window: int | None = None,
    scale: float | None = None,
    softcap: float | None = None,
) -> torch.Tensor:
    """Attention of query [1, heads, rows, head_dim] over one layer's blocks -> [1, rows, heads, head_dim]."""
    rows, keys, values = query[0].transpose(0, 1), kv.keys[layer], kv.values[layer]
    if layout.gathering is not None:
        return attend_gathered(rows, keys, values, layout.block_tables, layout.gathering, window, scale)[None]
    n = layout.num_rows
    found = tree_attention(
        rows[:n], keys, values, layout.block_tables, layout.context_lens, layout.cu_rows,
        layout.ancestors, layout.depths, scale=scale, sliding_window=window, softcap=softcap,
        max_rows=layout.max_rows, max_context=layout.max_context,
    )  # fmt: skip
    if n == len(rows):
        return found[None]
    out = query.new_zeros(rows.shape)
    out[:n] = found
    return out[None]


def keep_and_attend(
    cache: SlotCache,
    layer: int,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float | None = None,
    window: int | None = None,
) -> torch.Tensor:
    """What a layer does with its new keys and values [1, kv_heads, rows, head_dim]: they are written, then attended."""
    cache.update(key, value, layer)
    return attend(cache.kv, layer, cache.layout, query, window, scale)


def _no_mask(*args: Any, **kwargs: Any) -> None:
    """The layout knows what each row may see; transformers need not build a mask."""
    return


AttentionInterface.register(IMPLEMENTATION, slot_attention)
AttentionMaskInterface.register(IMPLEMENTATION, _no_mask)
