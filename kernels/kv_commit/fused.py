"""The commit in Triton: one launch for all layers, keys and values."""

from __future__ import annotations

import functools

import torch
import triton

from kernels.kv_commit.launches import BITS, HEAD_DIMS, launch_for
from kernels.kv_commit.moves import Moves


def kv_commit(moves: Moves) -> None:
    """See `kernels.kv_commit.kv_commit`."""
    _, block_size, heads, head_dim = moves.layer_shape
    batch, max_depth = moves.accepted_nodes.shape
    if head_dim not in HEAD_DIMS:
        raise ValueError(f"k_cache has head_dim {head_dim}; the fused kernel takes {', '.join(map(str, HEAD_DIMS))}")
    if not batch or not max_depth:
        return
    element_bytes = moves.keys[0].element_size()
    is_stacked = isinstance(moves.keys, torch.Tensor)
    keys, values = _operand(moves.keys), _operand(moves.values)
    strides = (*_strides("k_cache", moves.keys), *_strides("v_cache", moves.values))
    aligned = all(number % 16 == 0 for number in (*_addresses(moves.keys), *_addresses(moves.values), *strides))
    launch = launch_for(element_bytes, head_dim, is_stacked, aligned)
    tables = moves.block_tables.contiguous()
    layers = len(moves.keys)
    grid = (2 * layers, batch, triton.cdiv(heads, launch.constants["HEADS"]))
    launch.run(
        grid,
        keys, *strides[:4], values, *strides[4:], tables, tables.stride(0), tables.shape[1], block_size,
        moves.first_positions.contiguous(), moves.accepted_nodes.contiguous(), moves.num_accepted.contiguous(),
        max_depth, layers, heads,
    )  # fmt: skip


def _operand(cache: torch.Tensor | tuple[torch.Tensor, ...]) -> torch.Tensor:
    """What the kernel is given: the cache as integers, or the addresses of its layers."""
    if isinstance(cache, torch.Tensor):
        return cache.view(BITS[cache.element_size()])
    return _address_table(cache[0].device, _addresses(cache))


@functools.lru_cache(maxsize=64)
def _address_table(device: torch.device, addresses: tuple[int, ...]) -> torch.Tensor:
    """[layers] i64. Kept, since a cache lives as long as its server and the copy to the device would cost each step."""
    return torch.tensor(addresses, dtype=torch.int64, device=device)


def _addresses(cache: torch.Tensor | tuple[torch.Tensor, ...]) -> tuple[int, ...]:
    return (cache.data_ptr(),) if isinstance(cache, torch.Tensor) else tuple(layer.data_ptr() for layer in cache)


def _strides(name: str, cache: torch.Tensor | tuple[torch.Tensor, ...]) -> tuple[int, ...]:
    """Of layers, blocks, slots and heads."""
    if isinstance(cache, torch.Tensor):
        return cache.stride()[:4]
    for i, layer in enumerate(cache):
        if layer.stride() != cache[0].stride():
            raise ValueError(f"{name}[{i}] has strides {layer.stride()}, but {name}[0] {cache[0].stride()}")
    return (0, *cache[0].stride()[:3])
