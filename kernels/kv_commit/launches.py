"""Every configuration in which the commit is launched; fused.py takes its own from here."""

from __future__ import annotations

import functools
from itertools import product

import torch
import triton
import triton.language as tl

from kernels.kv_commit.fused_kernels import kv_commit_kernel
from kernels.launch import Launch

HEAD_DIMS = (64, 96, 128, 256)
ELEMENTS = {2: tl.int16, 4: tl.int32}
"""Rows are copied as integers of the cache's element size in bytes, whatever the type: their bits do not change."""
BITS = {2: torch.int16, 4: torch.int32}
TILE_BYTES = 4096
"""Of one row that a program moves at a time: more KV heads than fit are shared between programs."""
NUM_WARPS = 4
_STRIDES = tuple(f"{cache}_{part}_stride" for cache, part in product(("key", "value"), ("block", "slot", "head")))
_LAYER_STRIDES = ("key_layer_stride", "value_layer_stride")


@functools.cache
def launch_for(element_bytes: int, head_dim: int, is_stacked: bool, aligned: bool) -> Launch:
    """How caches with these elements and heads are launched; `aligned`: addresses and strides are multiples of 16."""
    block = triton.next_power_of_2(head_dim)
    name = f"i{8 * element_bytes}"
    cache = f"*{name}" if is_stacked else "*i64"
    layout = "stacked" if is_stacked else "layers"
    return Launch(
        name=f"kv_commit/{name}/head-{head_dim}/{layout}" + ("/aligned" if aligned else ""),
        kernel=kv_commit_kernel,
        pointers={
            "key_ptr": cache, "value_ptr": cache, "block_table_ptr": "*i32", "first_position_ptr": "*i64",
            "accepted_node_ptr": "*i32", "num_accepted_ptr": "*i32",
        },
        constants={
            "IS_STACKED": is_stacked, "ALIGNED": aligned, "ELEMENT": ELEMENTS[element_bytes],
            "HEADS": TILE_BYTES // (block * element_bytes), "HEAD_DIM": head_dim, "BLOCK_D": block,
        },
        num_warps=NUM_WARPS,
        divisible_by_16=("key_ptr", "value_ptr", *(_LAYER_STRIDES if is_stacked else ()), *_STRIDES) if aligned else (),
    )  # fmt: skip


def launches() -> tuple[Launch, ...]:
    """Element sizes x head sizes x one cache or one a layer x aligned or not."""
    return tuple(launch_for(*key) for key in product(ELEMENTS, HEAD_DIMS, (True, False), (True, False)))
