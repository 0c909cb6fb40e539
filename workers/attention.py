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

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.cache_utils import Cache

from kernels.attention import ancestor_words, depths_of, tree_attention, write_kv
from kernels.attention.tiles import choose_attention_backend
from workers.context_sizes import context_sizes
from workers.gathered_attention import Gathering, attend_gathered
from workers.kv_cache import BLOCK_SIZE, NULL_BLOCK, BlockKV, blocks_for

IMPLEMENTATION = "kadence_slots"
ROW_STEP = 4


@dataclass(frozen=True, slots=True)
class Rows:
    """The tokens of one sequence that this forward computes: they sit at start, start + 1, ... of its `blocks`.

    parents: of a tree, the row number of each one's parent, -1 for one that continues what lies before start: a row
    sees that and its ancestors, and stands as far behind start as it has ancestors. None: each continues the one
    before.
    """

    blocks: Sequence[int]
    start: int
    token_ids: Sequence[int]
    parents: Sequence[int] | None = None


@dataclass(slots=True)
class StepLayout:
    """Where each row of one forward sits.

    token_ids, positions: [rows] int64; flat_index: [rows] int64, the row's place in the blocks laid end to end;
    num_rows: rows before the padding. Padding rows repeat the first row and write the same KV again. block_tables,
    context_lens, cu_rows, max_rows, max_context: of the sequences, as `kernels.attention.tree_attention` takes them.
    ancestors, depths: of rows among which there is a tree, as there. gathering: None where that computes.
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    flat_index: torch.Tensor
    num_rows: int
    block_tables: torch.Tensor
    context_lens: torch.Tensor
    cu_rows: torch.Tensor
    max_rows: int
    max_context: int
    ancestors: torch.Tensor | None = None
    depths: torch.Tensor | None = None
    gathering: Gathering | None = None


def padding(num_rows: int) -> int:
    """Rows to add, for a multiple of ROW_STEP."""
    return -num_rows % ROW_STEP


def attention_sizes(
    context: int, heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device
) -> tuple[int, ...] | None:
    """The lengths of gathered keys that attention may cover; None where `kernels.attention` reads blocks itself."""
    if choose_attention_backend("auto", device, head_dim) != "naive":
        return None
    return context_sizes(context, heads, kv_heads, head_dim, dtype, device)


def lay_out(rows: Sequence[Rows], sizes: Sequence[int] | None, device: torch.device) -> StepLayout:
    """Flatten `rows` (at least one, each with at least one token) into one forward; sizes: of `attention_sizes`.

    Raises ValueError for a tree where keys are gathered: summed in another order, its rows would have other bits than
    its chains.
    """
    ancestors = depths = None
    if any(r.parents is not None for r in rows):
        if sizes is not None:
            raise ValueError("gathered attention computes no trees; draft chains")
        ancestors = ancestor_words([r.parents or range(-1, len(r.token_ids) - 1) for r in rows])
        depths = depths_of(ancestors)
    token_ids: list[int] = []
    positions: list[int] = []
    places: list[int] = []
    cu_rows = [0]
    for r in rows:
        n = len(r.token_ids)
        token_ids += r.token_ids
        if depths is None:
            positions += range(r.start, r.start + n)
        else:
            positions += (r.start + depths[cu_rows[-1] : cu_rows[-1] + n]).tolist()
        places += [r.blocks[p // BLOCK_SIZE] * BLOCK_SIZE + p % BLOCK_SIZE for p in range(r.start, r.start + n)]
        cu_rows.append(len(token_ids))
    num_rows = len(token_ids)
    for column in (token_ids, positions, places):
        column += column[:1] * padding(num_rows)
    starts, lengths = [r.start for r in rows], [len(r.token_ids) for r in rows]
    width = blocks_for(max(start + n for start, n in zip(starts, lengths, strict=True)))
    gathering = None
    if sizes is not None:
        gathering = Gathering.of(starts, lengths, sizes, ROW_STEP, padding(num_rows), device)
        width = blocks_for(gathering.context)
    tables = [[*r.blocks[:width], *(NULL_BLOCK,) * (width - len(r.blocks))] for r in rows]
    return StepLayout(
        token_ids=torch.tensor(token_ids, device=device),
        positions=torch.tensor(positions, device=device),
        flat_index=torch.tensor(places, device=device),
        num_rows=num_rows,
        block_tables=torch.tensor(tables, dtype=torch.int32, device=device),
        context_lens=torch.tensor(starts, dtype=torch.int32, device=device),
        cu_rows=torch.tensor(cu_rows, dtype=torch.int32, device=device),
        max_rows=max(lengths),
        max_context=max(starts),
        ancestors=None if ancestors is None else ancestors.to(device),
        depths=None if depths is None else depths.to(device),
        gathering=gathering,
    )


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
    slot_cache: SlotCache | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of query [1, heads, rows, head_dim] over the blocks -> [1, rows, heads, head_dim].

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
    return attend(slot_cache.kv, layer, slot_cache.layout, query, sliding_window, scaling), None


def attend(
    kv: BlockKV,
    layer: int,
    layout: StepLayout,
    query: torch.Tensor,
    window: int | None = None,
    scale: float | None = None,
) -> torch.Tensor:
    """Attention of query [1, heads, rows, head_dim] over one layer's blocks -> [1, rows, heads, head_dim]."""
    rows, keys, values = query[0].transpose(0, 1), kv.keys[layer], kv.values[layer]
    if layout.gathering is not None:
        return attend_gathered(rows, keys, values, layout.block_tables, layout.gathering, window, scale)[None]
    out = query.new_zeros(rows.shape)
    out[: layout.num_rows] = tree_attention(
        rows[: layout.num_rows], keys, values, layout.block_tables, layout.context_lens, layout.cu_rows,
        layout.ancestors, layout.depths, scale=scale, sliding_window=window,
        max_rows=layout.max_rows, max_context=layout.max_context,
    )  # fmt: skip
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
