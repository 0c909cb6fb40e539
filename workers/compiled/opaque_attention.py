"""Attention as an operation that a compiled graph calls and does not look into.

So neither the length of a context, nor the number of sequences, nor how keys and values are kept is part of a compiled
graph: it calls whatever the thread that runs it has named with `attention_by`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.cache_utils import Cache

IMPLEMENTATION = "kadence_opaque"

Attention = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor, float, int | None], torch.Tensor]
"""Of layer, query [1, heads, rows, head_dim], new keys and values [1, kv_heads, rows, head_dim], scale and sliding
window: keeps the keys and values, and returns [1, rows, heads, head_dim of the values], a tensor of its own."""

_UNNAMED_FEATURES = ("softcap", "s_aux", "position_bias")


class _Here(threading.local):
    attention: Attention | None = None


_here = _Here()


@contextmanager
def attention_by(attention: Attention) -> Iterator[None]:
    """What graphs call that this thread runs inside the block."""
    before, _here.attention = _here.attention, attention
    try:
        yield
    finally:
        _here.attention = before


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    layer: int,
    scale: float | None = None,
    window: int | None = None,
) -> torch.Tensor:
    """The attention of the block that this runs in; shapes as in `Attention`, scale head_dim ** -0.5 where None."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    out: torch.Tensor = torch.ops.kadence_compiled.attend(query, key, value, layer, scale, window or 0)
    return out


def own_rows(
    layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float, window: int | None
) -> torch.Tensor:
    """Every row attends to itself alone: what is left to compare is the rest of the graph."""
    return value.repeat_interleave(query.shape[1] // value.shape[1], 1).transpose(1, 2).contiguous()


class TracedCache(Cache):
    """Stands where a model wants a cache while it is traced: attention itself keeps keys and values."""

    def __init__(self) -> None:
        super().__init__(layers=[])

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return key_states, value_states

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0


def _of_model(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """As transformers calls it. Raises ValueError for a feature that does not reach the attention."""
    for feature in _UNNAMED_FEATURES:
        if kwargs.get(feature) is not None:
            raise ValueError(f"this model's attention uses {feature!r}")
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    return attend(query, key, value, layer, scaling, sliding_window), None


def _attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, layer: int, scale: float, window: int
) -> torch.Tensor:
    if _here.attention is None:
        raise RuntimeError("a compiled graph was run outside of attention_by")
    return _here.attention(layer, query, key, value, scale, window or None)


def _shape(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, layer: int, scale: float, window: int
) -> torch.Tensor:
    return query.new_empty(1, query.shape[2], query.shape[1], value.shape[3])


_library = torch.library.Library("kadence_compiled", "DEF")
# Strides in the order that the model gave them: head_dim stays the last one.
_library.define(
    "attend(Tensor query, Tensor key, Tensor value, int layer, float scale, int window) -> Tensor",
    tags=(torch.Tag.needs_fixed_stride_order,),
)
_library.impl("attend", _attend, "CPU")
torch.library.register_fake("kadence_compiled::attend", _shape, lib=_library)

AttentionInterface.register(IMPLEMENTATION, _of_model)
AttentionMaskInterface.register(IMPLEMENTATION, lambda *args, **kwargs: None)
