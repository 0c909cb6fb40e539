"""Every configuration in which these kernels are launched; `fused` takes its shapes from here.

A tile and a split are constants of a type and a layer, never of the number of rows: they decide in which order a
product is summed.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from itertools import product

import torch

from kernels.launch import Launch
from kernels.rowwise.fused_kernels import linear_kernel, linear_merge_kernel, mean_kernel

TYPE_NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
HALF_TILE = {"ROWS": 64, "COLUMNS": 128, "INNER": 64}
FULL_TILE = {"ROWS": 16, "COLUMNS": 256, "INNER": 32}
SPLIT_INPUTS = 512
ENOUGH_BLOCKS = 256
"""Blocks of columns that fill a chip without splits; a layer with fewer is split over its inputs."""
WARPS, MEAN_WARPS = 8, 4
HALF_STAGES, FULL_STAGES = 3, 2
MERGE_COLUMNS = 1024
FULL_MEAN_BLOCK, HALF_MEAN_BLOCK = 1024, 2048
"""Elements of a row that its mean takes in at a time."""


def tile(dtype: torch.dtype) -> Mapping[str, int]:
    """Rows and columns of the output tile of one program, and inputs it reads of each at a time."""
    return FULL_TILE if dtype == torch.float32 else HALF_TILE


def splits_of(outputs: int, inputs: int, dtype: torch.dtype) -> int:
    """Into how many splits a layer's inputs are cut; 1 for a layer that is not split."""
    blocks = -(-outputs // tile(dtype)["COLUMNS"])
    return 1 if blocks >= ENOUGH_BLOCKS else max(1, -(-inputs // SPLIT_INPUTS))


@functools.cache
def linear_launch(dtype: torch.dtype, has_bias: bool, is_split: bool) -> Launch:
    """How a layer's products are launched; a split one has its bias added by the merge."""
    name, pointer = TYPE_NAMES[dtype], f"*{TYPE_NAMES[dtype]}"
    return Launch(
        name=f"linear/{name}/" + ("split" if is_split else "bias" if has_bias else "no-bias"),
        kernel=linear_kernel,
        pointers={
            "out_ptr": "*fp32" if is_split else pointer, "row_ptr": pointer, "weight_ptr": pointer, "bias_ptr": pointer
        },
        constants={"HAS_BIAS": has_bias and not is_split, "IS_SPLIT": is_split, **tile(dtype), "SPLIT": SPLIT_INPUTS},
        num_warps=WARPS,
        num_stages=FULL_STAGES if dtype == torch.float32 else HALF_STAGES,
        divisible_by_16=("out_ptr", "row_ptr", "row_stride", "weight_ptr", "weight_stride", "bias_ptr", "size"),
    )  # fmt: skip


@functools.cache
def merge_launch(dtype: torch.dtype, has_bias: bool) -> Launch:
    """How the splits of a layer are added."""
    name, pointer = TYPE_NAMES[dtype], f"*{TYPE_NAMES[dtype]}"
    return Launch(
        name=f"linear_merge/{name}/{'bias' if has_bias else 'no-bias'}",
        kernel=linear_merge_kernel,
        pointers={"out_ptr": pointer, "partial_ptr": "*fp32", "bias_ptr": pointer},
        constants={"HAS_BIAS": has_bias, "COLUMNS": MERGE_COLUMNS},
        num_warps=MEAN_WARPS,
        divisible_by_16=("out_ptr", "partial_ptr", "bias_ptr", "num_columns"),
    )


@functools.cache
def mean_launch(dtype: torch.dtype) -> Launch:
    name, pointer = TYPE_NAMES[dtype], f"*{TYPE_NAMES[dtype]}"
    return Launch(
        name=f"row_mean/{name}",
        kernel=mean_kernel,
        pointers={"out_ptr": pointer, "row_ptr": pointer},
        constants={"BLOCK": FULL_MEAN_BLOCK if dtype == torch.float32 else HALF_MEAN_BLOCK},
        num_warps=MEAN_WARPS,
        divisible_by_16=("out_ptr", "row_ptr", "row_stride", "size"),
    )


def launches() -> tuple[Launch, ...]:
    """All of them."""
    return (
        *(linear_launch(dtype, bias, False) for dtype, bias in product(TYPE_NAMES, (True, False))),
        *(linear_launch(dtype, False, True) for dtype in TYPE_NAMES),
        *(merge_launch(dtype, bias) for dtype, bias in product(TYPE_NAMES, (True, False))),
        *(mean_launch(dtype) for dtype in TYPE_NAMES),
    )
