"""Attention over a block KV cache in C++, for CPUs: built at first use, registered as operations of PyTorch.

`torch.ops.kadence_attention.tree_attention` and `.write_kv` may stand in graphs of torch.compile, which see leaves.
"""

from __future__ import annotations

import functools
from pathlib import Path

import torch

from kernels.native_build import BuildFailed, build

HEAD_STEP = 16
"""Head sizes are multiples of this."""
MISFITS = (ValueError, NotImplementedError)
"""What the operations raise for arguments that do not fit together; the latter for tensors on several devices."""
_FOLDER = Path(__file__).parent
SOURCES = tuple(_FOLDER / name for name in ("native.cpp", "native_attention.h", "native_products.h", "native_vector.h"))


@torch.compiler.assume_constant_result
def obstacle(device_type: str, head_dim: int) -> str | None:
    """Why these operations cannot run for such heads there; None if they can. The first call builds them: 10 s."""
    if device_type != "cpu":
        return f"tensors are on {device_type!r}, not on a CPU"
    if head_dim % HEAD_STEP or not head_dim:
        return f"head_dim is {head_dim}, not a multiple of {HEAD_STEP}"
    return _load()


@functools.cache
def _load() -> str | None:
    """Build, load and register, once in a process; what went wrong, or None."""
    try:
        torch.ops.load_library(str(build(SOURCES)))
    except (BuildFailed, OSError) as error:
        return str(error)
    torch.library.register_fake("kadence_attention::tree_attention", _shape_of_attention)
    torch.library.register_fake("kadence_attention::write_kv", lambda *_: None)
    return None


def _shape_of_attention(query: torch.Tensor, *_: object) -> torch.Tensor:
    return query.new_empty(query.shape)


def tree_attention(
    query: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    context_lens: torch.Tensor,
    cu_rows: torch.Tensor,
    ancestors: torch.Tensor | None,
    depths: torch.Tensor | None,
    scale: float,
    sliding_window: int | None,
    softcap: float | None,
    max_rows: int | None,
    max_context: int | None,
) -> torch.Tensor:
    """See `kernels.attention.tree_attention`. Raises ValueError for arguments that do not fit together."""
    found: torch.Tensor = torch.ops.kadence_attention.tree_attention(
        query, k_cache, v_cache, block_tables, context_lens, cu_rows, ancestors, depths,
        scale, sliding_window, softcap, max_rows, max_context,
    )  # fmt: skip
    return found


def write_kv(
    keys: torch.Tensor,
    values: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    context_lens: torch.Tensor,
    cu_rows: torch.Tensor,
    max_rows: int | None,
) -> None:
    """See `kernels.attention.write_kv`. Raises ValueError for arguments that do not fit together."""
    torch.ops.kadence_attention.write_kv(keys, values, k_cache, v_cache, block_tables, context_lens, cu_rows, max_rows)
