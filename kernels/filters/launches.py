"""Every configuration in which a threshold is searched; `fused` takes its shapes from here."""

from __future__ import annotations

import functools
from itertools import product
from typing import Any

import torch

from kernels.filters.fused_kernels import (
    filter_bracket_kernel,
    filter_collect_kernel,
    filter_highest_kernel,
    filter_ladder_kernel,
    filter_select_kernel,
)
from kernels.launch import NARROW_WARPS, WIDE_WARPS, Launch
from kernels.verify.shapes import BATCH_BLOCK, BLOCK, BLOCKS, TYPE_NAMES

_POINTERS = {
    "threshold_ptr": "*fp32", "candidate_ptr": "*fp32", "lowest_ptr": "*fp32", "num_candidates_ptr": "*i32",
    "total_ptr": "*i64", "highest_ptr": "*fp32", "count_ptr": "*i32", "mass_ptr": "*i64", "seat_ptr": "*i32",
    "adjusted_ptr": "*fp32", "is_adjusted_ptr": "*i32", "cu_draft_ptr": "*i32", "temperature_ptr": "*fp32",
    "inverse_temperature_ptr": "*fp32", "top_k_ptr": "*i32", "top_p_ptr": "*fp32", "log_min_p_ptr": "*fp32",
}  # fmt: skip
_ALIGNED = ("logit_ptr", "logit_stride", "adjusted_ptr", "vocab_size")
_CONSTANTS = {"BLOCK": BLOCK, "BLOCKS": BLOCKS, "BATCH_BLOCK": BATCH_BLOCK}
SEARCH_BLOCK = 2048
"""Candidates that the search reads at a time: its 64-bit sums of more would not fit the registers of sm_80."""
COLLECT_WARPS = 16
"""With fewer the seats of a block whose rows start anywhere would spill registers on sm_80."""
OVER_LOGITS = {
    "highest": filter_highest_kernel,
    "ladder": filter_ladder_kernel,
    "collect": filter_collect_kernel,
    "select": filter_select_kernel,
}


@functools.cache
def logits_launch(stage: str, dtype: torch.dtype, has_adjusted: bool, aligned: bool) -> Launch:
    """How a stage that reads logits is launched: "highest", "ladder", "collect" or "select".

    `aligned`: see `kernels.launch.are_rows_aligned`, of the logits and their adjusted copy.
    """
    name = f"filter_{stage}/{TYPE_NAMES[dtype]}/{'adjusted' if has_adjusted else 'as-given'}"
    name += "/aligned" if aligned else ""
    num_warps = COLLECT_WARPS if stage == "collect" and not aligned else WIDE_WARPS
    constants = {**_CONSTANTS, "HAS_ADJUSTED": has_adjusted}
    if stage == "select":
        constants["BLOCK"] = SEARCH_BLOCK
    logits = {"logit_ptr": f"*{TYPE_NAMES[dtype]}"}
    return _launch(name, OVER_LOGITS[stage], constants, num_warps, logits, aligned)


@functools.cache
def bracket_launch() -> Launch:
    """How the rung of each row is chosen."""
    return _launch("filter_bracket", filter_bracket_kernel, _CONSTANTS, NARROW_WARPS, {}, aligned=False)


def launches() -> tuple[Launch, ...]:
    """All of them."""
    over_logits = (logits_launch(*shape) for shape in product(OVER_LOGITS, TYPE_NAMES, (False, True), (True, False)))
    return (*over_logits, bracket_launch())


def _launch(
    name: str, kernel: Any, constants: dict[str, Any], num_warps: int, logits: dict[str, str], aligned: bool
) -> Launch:
    pointers = {**_POINTERS, **logits}
    own = {a: pointers[a] for a in kernel.arg_names if a in pointers}
    return Launch(
        name=name,
        kernel=kernel,
        pointers=own,
        constants={a: constants[a] for a in kernel.arg_names if a in constants},
        num_warps=num_warps,
        divisible_by_16=tuple(a for a in _ALIGNED if a in kernel.arg_names) if aligned else (),
    )
