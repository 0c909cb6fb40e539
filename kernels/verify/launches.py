"""Every configuration in which verification and its noise are launched; `fused` takes its shapes from here."""

from __future__ import annotations

import functools
from itertools import product
from typing import Any

import torch

from kernels.launch import NARROW_WARPS, WIDE_WARPS, Launch
from kernels.verify.fused_block_rule import (
    verify_block_accept_kernel,
    verify_block_mass_kernel,
    verify_block_scale_kernel,
)
from kernels.verify.fused_kernels import (
    verify_accept_kernel,
    verify_finish_kernel,
    verify_resample_kernel,
    verify_statistics_kernel,
)
from kernels.verify.fused_noise_kernel import gumbel_noise_kernel
from kernels.verify.shapes import BATCH_BLOCK, BLOCK, BLOCKS, TYPE_NAMES

_POINTERS = {
    "statistics_ptr": "*fp32", "overlap_ptr": "*fp32", "partial_overlap_ptr": "*fp32", "score_ptr": "*fp32",
    "normaliser_ptr": "*fp32", "noise_ptr": "*fp32", "temperature_ptr": "*fp32", "inverse_temperature_ptr": "*fp32",
    "threshold_ptr": "*fp32", "scale_ptr": "*fp32", "mass_ptr": "*fp32", "best_token_ptr": "*i32",
    "cu_draft_ptr": "*i32", "num_accepted_ptr": "*i32", "seed_ptr": "*i64", "position_ptr": "*i64", "token_ptr": "*i64",
    "draft_token_ptr": "*i64", "coupled_ptr": "*i1",
}  # fmt: skip
_ALIGNED = ("target_ptr", "target_stride", "draft_ptr", "draft_stride", "vocab_size")
_CONSTANTS = {"BLOCK": BLOCK, "BLOCKS": BLOCKS, "BATCH_BLOCK": BATCH_BLOCK}
_OVER_LOGITS = {
    "statistics": (verify_statistics_kernel, WIDE_WARPS),
    "accept": (verify_accept_kernel, NARROW_WARPS),
    "resample": (verify_resample_kernel, WIDE_WARPS),
    "block_scale": (verify_block_scale_kernel, NARROW_WARPS),
    "block_mass": (verify_block_mass_kernel, WIDE_WARPS),
}
_SINGLE_LOGITS = ("accept", "block_scale")
"""Stages that read single logits: they have one form, wherever rows start."""
_MERGES = {"finish": verify_finish_kernel, "block_accept": verify_block_accept_kernel}
DTYPE_PAIRS = tuple((target, draft) for target in TYPE_NAMES for draft in dict.fromkeys((None, target, torch.float32)))
"""Target and draft logits: none, of one type, or a drafter that keeps float32."""


@functools.cache
def logits_launch(stage: str, target: torch.dtype, draft: torch.dtype | None, aligned: bool) -> Launch:
    """How a stage that reads logits is launched: see _OVER_LOGITS; `draft` is None without them.

    `aligned`: see `kernels.launch.are_rows_aligned`, of both logits.
    """
    kernel, num_warps = _OVER_LOGITS[stage]
    aligned = aligned and stage not in _SINGLE_LOGITS
    name = f"verify_{stage}/{TYPE_NAMES[target]}/draft-{TYPE_NAMES[draft] if draft else 'none'}"
    name += "/aligned" if aligned else ""
    types = {"target_ptr": f"*{TYPE_NAMES[target]}", "draft_ptr": f"*{TYPE_NAMES[draft or target]}"}
    return _launch(name, kernel, num_warps, types, {"HAS_DRAFT_LOGITS": draft is not None}, _ALIGNED if aligned else ())


@functools.cache
def merge_launch(stage: str, has_draft_logits: bool) -> Launch:
    """How the blocks of a second look are merged: "finish" or "block_accept"."""
    name = f"verify_{stage}/{'draft-logits' if has_draft_logits else 'draft-none'}"
    return _launch(name, _MERGES[stage], NARROW_WARPS, {}, {"HAS_DRAFT_LOGITS": has_draft_logits}, ())


@functools.cache
def noise_launch(aligned: bool) -> Launch:
    """How rows of noise are written."""
    name = "gumbel_noise" + ("/aligned" if aligned else "")
    divisible = ("noise_ptr", "noise_stride", "vocab_size") if aligned else ()
    return _launch(name, gumbel_noise_kernel, WIDE_WARPS, {}, {}, divisible)


def launches() -> tuple[Launch, ...]:
    """All of them."""
    either = (True, False)
    over_logits = (
        logits_launch(stage, *pair, aligned)
        for stage, pair, aligned in product(_OVER_LOGITS, DTYPE_PAIRS, either)
        if (stage != "block_mass" or pair[1] is not None) and not (aligned and stage in _SINGLE_LOGITS)
    )
    return (
        *over_logits,
        *(merge_launch(*shape) for shape in product(_MERGES, either)),
        *(noise_launch(aligned) for aligned in either),
    )


def _launch(
    name: str,
    kernel: Any,
    num_warps: int,
    types: dict[str, str],
    switches: dict[str, bool],
    divisible: tuple[str, ...],
) -> Launch:
    pointers, constants = {**_POINTERS, **types}, {**_CONSTANTS, **switches}
    own = {a: pointers[a] for a in kernel.arg_names if a in pointers}
    return Launch(
        name=name,
        kernel=kernel,
        pointers=own,
        constants={a: constants[a] for a in kernel.arg_names if a in constants},
        num_warps=num_warps,
        divisible_by_16=tuple(a for a in divisible if a in kernel.arg_names),
    )
