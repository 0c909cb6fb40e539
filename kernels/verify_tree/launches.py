"""Every configuration in which the kernels of tree verification are launched; fused.py takes its own from here."""

from __future__ import annotations

import functools
from itertools import product
from typing import Any

import torch

from kernels.launch import MAX_VOCAB_BLOCK, NARROW_WARPS, WIDE_WARPS, Launch
from kernels.verify_tree.fused_rows import tree_round_kernel, tree_statistics_kernel, tree_topology_kernel
from kernels.verify_tree.fused_tests import tree_tests_kernel
from kernels.verify_tree.fused_walk import tree_finish_kernel, tree_resample_kernel, tree_walk_kernel
from kernels.verify_tree.trees import MAX_NODES

TYPE_NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
BLOCK = MAX_VOCAB_BLOCK
"""Tokens one program reads, whatever the vocabulary: the smaller ones are no burden."""
BLOCKS = 128
"""Blocks of a row that one program merges, which bounds the vocabulary."""
MAX_VOCAB = BLOCK * BLOCKS
TREE_WARPS = {64: NARROW_WARPS, MAX_NODES: 4}
"""By the nodes that a program holds: two sizes instead of every power of two."""
_POINTERS = {
    "num_accepted_ptr": "*i32", "token_ptr": "*i64", "accepted_node_ptr": "*i32", "num_examined_ptr": "*i32",
    "accepted_rank_ptr": "*i32", "overlap_ptr": "*fp32", "test_ptr": "*fp32", "end_ptr": "*fp32",
    "best_score_ptr": "*fp32",
    "place_ptr": "*i32", "child_ptr": "*i32", "child_token_ptr": "*i32", "statistics_ptr": "*fp32",
    "best_token_ptr": "*i32", "rounds_ptr": "*fp32", "scalars_ptr": "*fp32", "before_ptr": "*fp32",
    "score_ptr": "*fp32", "parent_ptr": "*i32", "draft_token_ptr": "*i64", "cu_nodes_ptr": "*i32",
    "temperature_ptr": "*fp32", "inverse_temperature_ptr": "*fp32", "seed_ptr": "*i64", "position_ptr": "*i64",
    "coupled_ptr": "*i1",
}  # fmt: skip
_LOGITS = ("target_ptr", "draft_ptr")
# With all of these multiples of 16 a row is read 16 bytes at a time.
_ALIGNED = (*_LOGITS, "target_stride", "draft_stride", "vocab_size")


def tree_block(max_nodes: int) -> int:
    """Nodes that a program holds, for trees of up to max_nodes."""
    return next(size for size in TREE_WARPS if max_nodes <= size)


@functools.cache
def topology_launch(block: int) -> Launch:
    return _launch(f"tree_topology/{block}", tree_topology_kernel, {"TREE_BLOCK": block}, TREE_WARPS[block])


@functools.cache
def statistics_launch(dtype: torch.dtype, has_draft_logits: bool, aligned: bool) -> Launch:
    constants = {"HAS_DRAFT_LOGITS": has_draft_logits, "BLOCK": BLOCK}
    name = f"tree_statistics/{_suffix(dtype, has_draft_logits, aligned)}"
    return _launch(name, tree_statistics_kernel, constants, WIDE_WARPS, dtype, aligned)


@functools.cache
def round_launch(dtype: torch.dtype, aligned: bool) -> Launch:
    constants = {"BLOCK": BLOCK, "BLOCKS": BLOCKS}
    return _launch(
        f"tree_round/{_suffix(dtype, True, aligned)}", tree_round_kernel, constants, WIDE_WARPS, dtype, aligned
    )


@functools.cache
def tests_launch(dtype: torch.dtype, has_draft_logits: bool) -> Launch:
    constants = {"HAS_DRAFT_LOGITS": has_draft_logits, "BLOCKS": BLOCKS}
    name = f"tree_tests/{_suffix(dtype, has_draft_logits, False)}"
    return _launch(name, tree_tests_kernel, constants, NARROW_WARPS, dtype)


@functools.cache
def walk_launch(block: int) -> Launch:
    constants = {"BLOCKS": BLOCKS, "TREE_BLOCK": block}
    return _launch(f"tree_walk/{block}", tree_walk_kernel, constants, TREE_WARPS[block])


@functools.cache
def resample_launch(dtype: torch.dtype, has_draft_logits: bool, aligned: bool) -> Launch:
    constants = {"HAS_DRAFT_LOGITS": has_draft_logits, "BLOCK": BLOCK, "BLOCKS": BLOCKS}
    name = f"tree_resample/{_suffix(dtype, has_draft_logits, aligned)}"
    return _launch(name, tree_resample_kernel, constants, WIDE_WARPS, dtype, aligned)


@functools.cache
def finish_launch(has_draft_logits: bool) -> Launch:
    constants = {"HAS_DRAFT_LOGITS": has_draft_logits, "BLOCKS": BLOCKS}
    drafts = "draft-logits" if has_draft_logits else "no-draft-logits"
    return _launch(f"tree_finish/{drafts}", tree_finish_kernel, constants, NARROW_WARPS)


def launches() -> tuple[Launch, ...]:
    """Types x draft logits or none x aligned rows or not x sizes of trees, as far as each kernel knows them."""
    either = (True, False)
    return (
        *(topology_launch(block) for block in TREE_WARPS),
        *(statistics_launch(*key) for key in product(TYPE_NAMES, either, either)),
        *(round_launch(*key) for key in product(TYPE_NAMES, either)),
        *(tests_launch(*key) for key in product(TYPE_NAMES, either)),
        *(walk_launch(block) for block in TREE_WARPS),
        *(resample_launch(*key) for key in product(TYPE_NAMES, either, either)),
        *(finish_launch(has_draft_logits) for has_draft_logits in either),
    )


def _suffix(dtype: torch.dtype, has_draft_logits: bool, aligned: bool) -> str:
    drafts = "draft-logits" if has_draft_logits else "no-draft-logits"
    return f"{TYPE_NAMES[dtype]}/{drafts}" + ("/aligned" if aligned else "")


def _launch(
    name: str,
    kernel: Any,
    constants: dict[str, Any],
    num_warps: int,
    dtype: torch.dtype = torch.float32,
    aligned: bool = False,
) -> Launch:
    pointers = _POINTERS | dict.fromkeys(_LOGITS, f"*{TYPE_NAMES[dtype]}")
    pointers = {name: kind for name, kind in pointers.items() if name in kernel.arg_names}
    return Launch(
        name=name,
        kernel=kernel,
        pointers=pointers,
        constants=constants,
        num_warps=num_warps,
        divisible_by_16=tuple(n for n in _ALIGNED if n in kernel.arg_names) if aligned else (),
    )
