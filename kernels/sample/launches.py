"""Every configuration in which sampling is launched, besides the filters' own; `fused` takes its shapes from here."""

from __future__ import annotations

import functools
from itertools import product
from typing import Any

import torch

from kernels.launch import NARROW_WARPS, WIDE_WARPS, Launch
from kernels.sample.fused_kernels import (
    sample_bias_kernel,
    sample_blocks_kernel,
    sample_copy_kernel,
    sample_finish_kernel,
    sample_penalise_kernel,
)
from kernels.verify.shapes import BLOCK, BLOCKS, TYPE_NAMES

SPARSE_BLOCK = 1024
"""Penalised or biased tokens that a program changes at a time."""
SPARSE_WARPS = 4
_POINTERS = {
    "adjusted_ptr": "*fp32", "is_adjusted_ptr": "*i32", "token_ptr": "*i64", "occurrence_ptr": "*i32", "cu_ptr": "*i32",
    "repetition_ptr": "*fp32", "inverse_repetition_ptr": "*fp32", "presence_ptr": "*fp32", "frequency_ptr": "*fp32",
    "bias_ptr": "*fp32", "best_score_ptr": "*fp32", "best_token_ptr": "*i32", "statistics_ptr": "*fp32",
    "threshold_ptr": "*fp32", "temperature_ptr": "*fp32", "inverse_temperature_ptr": "*fp32", "seed_ptr": "*i64",
    "position_ptr": "*i64", "coupled_ptr": "*i1", "logprob_ptr": "*fp32",
}  # fmt: skip


_ALIGNED = ("logit_ptr", "logit_stride", "adjusted_ptr", "vocab_size")
# `aligned` below: see `kernels.launch.are_rows_aligned`, of the logits and their adjusted copy. Kernels that read
# single entries have one form.


@functools.cache
def blocks_launch(dtype: torch.dtype, has_adjusted: bool, aligned: bool) -> Launch:
    """How the blocks of the vocabulary are read."""
    return _launch("blocks", sample_blocks_kernel, WIDE_WARPS, dtype, aligned, BLOCK=BLOCK, HAS_ADJUSTED=has_adjusted)


@functools.cache
def finish_launch(dtype: torch.dtype, has_adjusted: bool) -> Launch:
    """How they are merged."""
    return _launch("finish", sample_finish_kernel, NARROW_WARPS, dtype, False, BLOCKS=BLOCKS, HAS_ADJUSTED=has_adjusted)


@functools.cache
def copy_launch(dtype: torch.dtype, aligned: bool) -> Launch:
    """How rows that change are copied."""
    return _launch("copy", sample_copy_kernel, WIDE_WARPS, dtype, aligned, BLOCK=BLOCK)


@functools.cache
def penalise_launch(dtype: torch.dtype) -> Launch:
    """How penalties are applied to the copy."""
    return _launch("penalise", sample_penalise_kernel, SPARSE_WARPS, dtype, False, BLOCK=SPARSE_BLOCK)


@functools.cache
def bias_launch() -> Launch:
    """How biases are added to the copy."""
    return _launch("bias", sample_bias_kernel, SPARSE_WARPS, None, False, BLOCK=SPARSE_BLOCK)


def launches() -> tuple[Launch, ...]:
    """All of them."""
    either = (True, False)
    return (
        *(blocks_launch(*key) for key in product(TYPE_NAMES, either, either)),
        *(finish_launch(*key) for key in product(TYPE_NAMES, either)),
        *(copy_launch(*key) for key in product(TYPE_NAMES, either)),
        *(penalise_launch(dtype) for dtype in TYPE_NAMES),
        bias_launch(),
    )


def _launch(
    stage: str, kernel: Any, num_warps: int, dtype: torch.dtype | None, is_aligned: bool, **constants: int
) -> Launch:
    pointers = dict(_POINTERS)
    name = f"sample_{stage}"
    if dtype is not None:
        pointers["logit_ptr"] = f"*{TYPE_NAMES[dtype]}"
        name += f"/{TYPE_NAMES[dtype]}"
    if "HAS_ADJUSTED" in constants:
        name += "/adjusted" if constants["HAS_ADJUSTED"] else "/as-given"
    name += "/aligned" if is_aligned else ""
    own = {a: pointers[a] for a in kernel.arg_names if a in pointers}
    aligned = tuple(a for a in _ALIGNED if a in kernel.arg_names) if is_aligned else ()
    return Launch(name, kernel, own, constants, num_warps, divisible_by_16=aligned)
