"""Every configuration in which attention's kernels are launched: fused.py takes its own from here."""

from __future__ import annotations

from typing import Any

import torch

from kernels.attention.fused_kernels import attention_merge_kernel, attention_split_kernel, write_kv_kernel
from kernels.attention.tiles import HEAD_DIMS, SPLIT_TOKENS, padded, tile_for
from kernels.launch import ENABLE_FP_FUSION, Launch

WRITE_ROWS = 16
"""Rows of a program that writes to the cache."""
_WARPS = 4
_TYPES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
_POINTERS = {
    "partial_ptr": "*fp32", "statistics_ptr": "*fp32", "scale": "fp32", "softcap": "fp32",
    "block_table_ptr": "*i32", "context_ptr": "*i32", "cu_rows_ptr": "*i32", "ancestor_ptr": "*i32",
    "depth_ptr": "*i32",
}  # fmt: skip
_STATES = ("query_ptr", "key_ptr", "value_ptr", "out_ptr", "key_cache_ptr", "value_cache_ptr")
_STRIDES = (
    "query_row_stride", "query_head_stride", "key_block_stride", "key_slot_stride", "key_head_stride",
    "value_block_stride", "value_slot_stride", "value_head_stride", "key_row_stride", "key_row_head_stride",
    "value_row_stride", "value_row_head_stride",
)  # fmt: skip


def constants_of(kernel: Any, head_dim: int, dtype: torch.dtype) -> dict[str, int]:
    """The constants of one of the three kernels for heads of this size and states of this type."""
    tile = tile_for(head_dim, dtype)
    rows = WRITE_ROWS if kernel is write_kv_kernel else tile.rows
    constants = {"HEAD_DIM": head_dim, "BLOCK_D": padded(head_dim), "TILE_ROWS": rows}
    if kernel is not write_kv_kernel:
        constants["SPLIT"] = SPLIT_TOKENS
    if kernel is attention_split_kernel:
        constants["TILE_KEYS"] = tile.keys
    return constants


def options_of(kernel: Any, head_dim: int, dtype: torch.dtype) -> dict[str, Any]:
    """Warps, stages and rounding for the same."""
    tile = tile_for(head_dim, dtype)
    warps, stages = (tile.num_warps, tile.num_stages) if kernel is attention_split_kernel else (_WARPS, 1)
    return {"num_warps": warps, "num_stages": stages, "enable_fp_fusion": ENABLE_FP_FUSION}


def configuration(kernel: Any, head_dim: int, dtype: torch.dtype) -> dict[str, Any]:
    """All keyword arguments of a launch."""
    return constants_of(kernel, head_dim, dtype) | options_of(kernel, head_dim, dtype)


def launches() -> tuple[Launch, ...]:
    """Head sizes x types x kernels."""
    found = []
    for kernel, name in (
        (attention_split_kernel, "attention_split"),
        (attention_merge_kernel, "attention_merge"),
        (write_kv_kernel, "write_kv"),
    ):
        arguments = kernel.arg_names
        for dtype, type_name in _TYPES.items():
            states = {a: f"*{type_name}" for a in _STATES if a in arguments}
            fixed = {a: t for a, t in _POINTERS.items() if a in arguments}
            aligned = (*states, *(a for a in fixed if a.endswith("_ptr")), *(a for a in _STRIDES if a in arguments))
            for head_dim in HEAD_DIMS:
                options = options_of(kernel, head_dim, dtype)
                found.append(
                    Launch(
                        name=f"{name}/{type_name}/head-{head_dim}",
                        kernel=kernel,
                        pointers=states | fixed,
                        constants=constants_of(kernel, head_dim, dtype),
                        num_warps=options["num_warps"],
                        num_stages=options["num_stages"],
                        divisible_by_16=aligned,
                    )
                )
    return tuple(found)
