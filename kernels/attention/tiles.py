"""The shapes in which attention is computed: one for each head size and type, whatever the batch.

A tile may depend on nothing that changes from step to step. Another tile sums in another order, and then a row's last
bits would depend on how many rows came with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from kernels.attention import native
from kernels.launch import Backend, BackendUnavailable, choose_backend

SPLIT_TOKENS = 512
"""Keys that one program covers. It writes one partial result, so shorter splits move more bytes; longer ones leave a
lone sequence with too few programs to fill a chip (8 kv heads and 8k tokens are 128 programs)."""
HEAD_DIMS = (64, 96, 128, 256)
"""What the fused kernels are compiled for."""


@dataclass(frozen=True, slots=True)
class Tile:
    """rows: packed rows (query rows x heads of a group) of a program; keys: cached tokens a turn of its loop."""

    rows: int
    keys: int
    num_warps: int
    num_stages: int


def tile_for(head_dim: int, dtype: torch.dtype) -> Tile:
    """The one tile for attention in this type over heads of this size."""
    if dtype == torch.float32:
        # No tensor cores: a stage of loads under way, or more keys, would not fit into the registers.
        return Tile(16, 32 if head_dim == 64 else 16, num_warps=4 if head_dim == 256 else 8, num_stages=1)
    # Twice the keys spill registers: for heads of 256 on sm_80, for 96 (padded, with masks) on sm_90 and gfx942.
    return Tile(16, {96: 16, 256: 32}.get(head_dim, 64), num_warps=4, num_stages=2)


def padded(head_dim: int) -> int:
    """The power of two in which a head of that size is computed."""
    return 1 << (head_dim - 1).bit_length()


def choose_attention_backend(
    backend: Backend, device: torch.device, head_dim: int
) -> Literal["naive", "fused", "native"]:
    """As `kernels.launch.choose_backend`, but on a CPU "auto" takes native where it can be built.

    The fused kernels know HEAD_DIMS only, native ones multiples of `kernels.attention.native.HEAD_STEP`.
    """
    if backend == "native" or (backend == "auto" and device.type == "cpu"):
        obstacle = native.obstacle(device.type, head_dim)
        if obstacle is None:
            return "native"
        if backend == "native":
            raise BackendUnavailable(f"backend 'native' cannot run: {obstacle}; use 'auto' or 'naive'")
    chosen = choose_backend(backend, device)
    if chosen == "fused" and head_dim not in HEAD_DIMS:
        if backend == "fused":
            raise BackendUnavailable(
                f"backend 'fused' cannot run: head_dim is {head_dim}, not one of {HEAD_DIMS}; use 'auto' or 'naive'"
            )
        return "naive"
    return chosen
