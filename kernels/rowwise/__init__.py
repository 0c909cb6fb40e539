"""Linear layers and means whose rows do not depend on each other: what a model needs to be batch-invariant on a GPU.

Libraries choose their kernels by the number of rows, and with them the order of every sum. Here that order is a
constant of the layer.
"""

from __future__ import annotations

import torch

from kernels.launch import Backend, BackendUnavailable, choose_backend
from kernels.rowwise import naive

__all__ = ["BackendUnavailable", "linear", "mean"]

STATE_TYPES = (torch.float32, torch.bfloat16, torch.float16)


def linear(
    rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, *, backend: Backend = "auto"
) -> torch.Tensor:
    """Rows @ weight.T + bias -> [M, N] of the rows' type; sums in float32, the bias added before the rounding.

    rows: [M, K] float32, bfloat16 or float16. weight: [N, K], bias: [N] or None, of the same type. Fast where K and
    strides are multiples of 16 and the last dimensions are contiguous, as a model's are.

    A row's result has the same bits whatever the other rows are, and however many. Raises ValueError for arguments
    that do not fit together, BackendUnavailable for a named backend that cannot run.
    """
    if rows.ndim != 2 or weight.ndim != 2 or rows.shape[1] != weight.shape[1]:
        raise ValueError(f"rows is {tuple(rows.shape)}, weight {tuple(weight.shape)}; they must be [M, K] and [N, K]")
    if bias is not None and tuple(bias.shape) != (len(weight),):
        raise ValueError(f"bias has shape {tuple(bias.shape)}; it must be [{len(weight)}], as weight has rows")
    for name, tensor in (("rows", rows), ("weight", weight), ("bias", bias)):
        if tensor is not None and (tensor.dtype != rows.dtype or tensor.device != rows.device):
            raise ValueError(f"{name} is {tensor.dtype} on {tensor.device}; rows is {rows.dtype} on {rows.device}")
    _check_type(rows)
    if choose_backend(backend, rows.device) == "naive":
        return naive.linear(rows, weight, bias)
    from kernels.rowwise import fused  # here, so that nobody imports Triton who does not run it

    return fused.linear(rows, weight, bias)


def mean(rows: torch.Tensor, *, backend: Backend = "auto") -> torch.Tensor:
    """[M] of the rows' type, the mean of each row of [M, N]; summed in float32. Bits and errors as of `linear`."""
    if rows.ndim != 2 or not rows.shape[1]:
        raise ValueError(f"rows has shape {tuple(rows.shape)}; it must be [M, N] with N of at least 1")
    _check_type(rows)
    if choose_backend(backend, rows.device) == "naive":
        return naive.mean(rows)
    from kernels.rowwise import fused

    return fused.mean(rows)


def _check_type(rows: torch.Tensor) -> None:
    if rows.dtype not in STATE_TYPES:
        raise ValueError(f"rows is {rows.dtype}; it must be float32, bfloat16 or float16")
