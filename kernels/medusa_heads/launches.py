"""Every configuration in which the Medusa heads are launched; `fused` takes its shapes from here."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from itertools import product
from typing import Any

import torch

from kernels.launch import Launch
from kernels.medusa_heads.fused_kernels import medusa_lm_head_kernel, medusa_merge_kernel, medusa_residual_kernel
from kernels.medusa_heads.heads import MAX_VOCAB

TYPE_NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
MERGE_WARPS = {128: 4, 1024: 8, 4096: 16}
"""By the tiles that a program of the merge holds: three sizes instead of every power of two. With fewer warps the
largest would spill registers."""
# One tile a dtype, whatever the batch: the shape of the tile decides in which order a product is summed. 64 rows of
# half precision are 64 multiply-adds for every 2 bytes of weights, which tensor cores do faster than memory delivers.
HALF_TILE = {"ROWS": 64, "COLUMNS": 128, "INNER": 64}
FULL_TILE = {"ROWS": 16, "COLUMNS": 256, "INNER": 32}
WARPS = 8
HALF_STAGES, FULL_STAGES = 3, 2


def tile(dtype: torch.dtype) -> Mapping[str, int]:
    """Rows and columns of the output tile of one program, and elements it reads of each at a time."""
    return FULL_TILE if dtype == torch.float32 else HALF_TILE


@functools.cache
def residual_launch(dtype: torch.dtype, has_bias: bool) -> Launch:
    """How the residual block is launched."""
    name, pointer = TYPE_NAMES[dtype], f"*{TYPE_NAMES[dtype]}"
    return Launch(
        name=f"medusa_residual/{name}/{'bias' if has_bias else 'no-bias'}",
        kernel=medusa_residual_kernel,
        pointers=dict.fromkeys(("state_ptr", "hidden_ptr", "weight_ptr", "bias_ptr"), pointer),
        constants={"HAS_BIAS": has_bias, **tile(dtype)},
        divisible_by_16=("state_ptr", "hidden_ptr", "weight_ptr", "bias_ptr", "hidden_size"),
        **_shape(dtype),
    )


@functools.cache
def lm_head_launch(dtype: torch.dtype, has_map: bool) -> Launch:
    """How the tiles of the LM head are launched."""
    name, pointer = TYPE_NAMES[dtype], f"*{TYPE_NAMES[dtype]}"
    scratch = {"score_ptr": "*fp32", "token_ptr": "*i32", "highest_ptr": "*fp32", "sum_ptr": "*fp32"}
    return Launch(
        name=f"medusa_lm_head/{name}/{'map' if has_map else 'no-map'}",
        kernel=medusa_lm_head_kernel,
        pointers={**scratch, "state_ptr": pointer, "weight_ptr": pointer, "vocab_map_ptr": "*i64"},
        constants={"HAS_MAP": has_map, **tile(dtype)},
        divisible_by_16=(*scratch, "state_ptr", "weight_ptr", "vocab_map_ptr", "hidden_size"),
        **_shape(dtype),
    )


@functools.cache
def merge_launch(num_blocks: int) -> Launch:
    """How the tiles of one row are merged."""
    blocks = next(size for size in MERGE_WARPS if num_blocks <= size)
    pointers = {
        "token_out_ptr": "*i64", "logit_ptr": "*fp32", "log_sum_exp_ptr": "*fp32", "score_ptr": "*fp32",
        "token_ptr": "*i32", "highest_ptr": "*fp32", "sum_ptr": "*fp32",
    }  # fmt: skip
    return Launch(f"medusa_merge/{blocks}", medusa_merge_kernel, pointers, {"BLOCKS": blocks}, MERGE_WARPS[blocks])


def launches() -> tuple[Launch, ...]:
    """All of them."""
    return (
        *(residual_launch(dtype, bias) for dtype, bias in product(TYPE_NAMES, (True, False))),
        *(lm_head_launch(dtype, has_map) for dtype, has_map in product(TYPE_NAMES, (True, False))),
        *(merge_launch(size) for size in MERGE_WARPS),
    )


def _shape(dtype: torch.dtype) -> dict[str, Any]:
    return {"num_warps": WARPS, "num_stages": FULL_STAGES if dtype == torch.float32 else HALF_STAGES}


assert max(MERGE_WARPS) * min(HALF_TILE["COLUMNS"], FULL_TILE["COLUMNS"]) >= MAX_VOCAB
