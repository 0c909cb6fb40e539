"""Attention over KV slots for a flattened, ragged batch, plugged into any transformers model.

The model sees one row per computed token, all sequences behind each other: linear layers waste nothing. Attention
gathers those rows into a block of queries per slot and runs one scaled-dot-product call over the slots.

Batch invariance. A row's result must not depend on its batch-mates, on K, or on how far the slots are filled, or greedy
text would change with load. On the CPU kernels measured here that holds bit for bit when rows come in multiples of
ROW_STEP (a matrix product in fp32 computes what is left over by another order of sums, and more slowly), the query
block is a power of two from ROW_STEP on, and the context is one of `context_sizes`
(tests/workers/engine/test_batch_invariance.py checks the machine at hand).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.cache_utils import Cache

from workers.kv_cache import KVSlots

IMPLEMENTATION = "kadence_slots"
ROW_STEP = 4


@dataclass(frozen=True, slots=True)
class Rows:
    """The tokens of one sequence that this forward computes: they sit at start, start + 1, ... of its slot."""

    slot: int
    start: int
    token_ids: Sequence[int]


@dataclass(slots=True)
class StepLayout:
    """Where each row of one forward sits.

    token_ids, positions: [rows] int64; flat_index: [rows] int64, the row's place in the slots laid end to end;
    block_index: [rows] int64, its place in the query blocks [num_slots * block] of the slots from first_slot on; block:
    queries per slot; last_position: [num_slots, block] int64, the last key that each query may see; context: keys per
    slot; num_rows: rows before the padding. Padding rows repeat the first row and write the same KV again.
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    flat_index: torch.Tensor
    block_index: torch.Tensor
    block: int
    first_slot: int
    num_slots: int
    last_position: torch.Tensor
    context: int
    num_rows: int
    _masks: dict[int | None, torch.Tensor] = field(default_factory=dict)

    def mask(self, window: int | None) -> torch.Tensor:
        """[num_slots, 1, block, context] bool: which keys a query may see, at most `window` back where given."""
        if window not in self._masks:
            key = torch.arange(self.context, device=self.last_position.device)
            last = self.last_position[:, :, None]
            seen = key <= last
            if window is not None:
                seen &= key > last - window
            self._masks[window] = seen[:, None]
        return self._masks[window]


def padding(num_rows: int) -> int:
    """Rows to add, for a multiple of ROW_STEP."""
    return -num_rows % ROW_STEP


def lay_out(rows: Sequence[Rows], sizes: Sequence[int], device: torch.device) -> StepLayout:
    """Flatten `rows` (at least one, each with at least one token) into one forward.

    sizes: the contexts that attention may cover, rising; the last one is that of a slot.
    """
    slot_context = sizes[-1]
    token_ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    offsets: list[int] = []
    for r in rows:
        n = len(r.token_ids)
        token_ids += r.token_ids
        positions += range(r.start, r.start + n)
        slots += [r.slot] * n
        offsets += range(n)
    num_rows = len(token_ids)
    for column in (token_ids, positions, slots, offsets):
        column += column[:1] * padding(num_rows)
    block = max(ROW_STEP, 1 << (max(offsets)).bit_length())
    first, num_slots = min(slots), max(slots) - min(slots) + 1
    context = sizes[bisect_left(sizes, max(positions) + 1)]
    last_position = torch.zeros(num_slots, block, dtype=torch.int64)
    for r in rows:
        last_position[r.slot - first] = torch.arange(r.start, r.start + block)
    return StepLayout(
        token_ids=torch.tensor(token_ids, device=device),
        positions=torch.tensor(positions, device=device),
        flat_index=torch.tensor([s * slot_context + p for s, p in zip(slots, positions, strict=True)], device=device),
        block_index=torch.tensor([(s - first) * block + o for s, o in zip(slots, offsets, strict=True)], device=device),
        block=block,
        first_slot=first,
        num_slots=num_slots,
        last_position=last_position.to(device),
        context=context,
        num_rows=num_rows,
    )


class SlotCache(Cache):
    """A transformers cache for one forward: writes the new keys and values into their slots.

    windows: layer -> sliding window, tokens, of the attention calls so far.
    """

    def __init__(self, kv: KVSlots, layout: StepLayout) -> None:
        super().__init__(layers=[])
        self.kv = kv
        self.layout = layout
        self.windows: dict[int, int | None] = {}

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store [1, kv_heads, rows, head_dim] of one layer; returns it unchanged (attention reads the slots)."""
        for store, new in ((self.kv.keys, key_states), (self.kv.values, value_states)):
            heads, head_dim = store[layer_idx].shape[2:]
            if new.shape[1::2] != (heads, head_dim):
                raise ValueError(
                    f"layer {layer_idx} keeps {new.shape[1]} heads of {new.shape[3]}, its configuration says {heads} "
                    f"of {head_dim}"
                )
            flat = store[layer_idx].view(-1, heads, head_dim)
            flat.index_copy_(0, self.layout.flat_index, new[0].transpose(0, 1))
        return key_states, value_states

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0


def slot_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    slot_cache: SlotCache | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of query [1, heads, rows, head_dim] over the slots -> [1, rows, heads, head_dim].

    Raises ValueError for a feature of the model that this function does not compute (refused at load).
    """
    if slot_cache is None:
        raise ValueError(f"attention {IMPLEMENTATION!r} works only inside Kadence's engine")
    for feature in ("softcap", "s_aux", "position_bias"):
        if kwargs.get(feature) is not None:
            raise ValueError(f"this model's attention uses {feature!r}, which Kadence does not compute")
    if not getattr(module, "is_causal", True):
        raise ValueError("this model's attention looks ahead in the text")
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    slot_cache.windows[layer] = sliding_window
    return attend_over_slots(slot_cache.kv, layer, slot_cache.layout, query, sliding_window, scaling), None


def attend_over_slots(
    kv: KVSlots,
    layer: int,
    layout: StepLayout,
    query: torch.Tensor,
    window: int | None = None,
    scale: float | None = None,
) -> torch.Tensor:
    """Attention of query [1, heads, rows, head_dim] over one layer's slots -> [1, rows, heads, head_dim]."""
    _, heads, _, head_dim = query.shape
    blocks = query.new_zeros(layout.num_slots * layout.block, heads, head_dim)
    blocks.index_copy_(0, layout.block_index, query[0].transpose(0, 1))
    span = slice(layout.first_slot, layout.first_slot + layout.num_slots)
    out = scaled_dot_product_attention(
        blocks.view(layout.num_slots, layout.block, heads, head_dim).transpose(1, 2),
        kv.keys[layer][span, : layout.context].transpose(1, 2),
        kv.values[layer][span, : layout.context].transpose(1, 2),
        attn_mask=layout.mask(window),
        scale=scale,
        enable_gqa=True,
    )
    return out.transpose(1, 2).reshape(-1, heads, head_dim).index_select(0, layout.block_index)[None]


def _no_mask(*args: Any, **kwargs: Any) -> None:
    """The layout knows what each row may see; transformers need not build a mask."""
    return


AttentionInterface.register(IMPLEMENTATION, slot_attention)
AttentionMaskInterface.register(IMPLEMENTATION, _no_mask)
