"""On a GPU: the products and means of a model by kernels whose rows do not depend on each other.

cuBLAS chooses its kernels by the number of rows, and PyTorch's reductions do, so that a row's last bits would change
with K, with the batch and with the padding of a recorded step. Attention and verification have no such choice
(`kernels`); on a CPU nothing of this is needed (workers/attention.py). What is replaced holds for the whole process.
"""

from __future__ import annotations

import functools
import warnings
from typing import Any

import torch

from kernels import rowwise
from kernels.launch import Backend, choose_backend
from kernels.rowwise import STATE_TYPES

_installed: list[torch.library.Library] = []


def install(device: torch.device, backend: Backend = "auto") -> bool:
    """Replace `mm`, `addmm` and means over the last dimension on devices of this kind; whether they are.

    They are not where there is nothing to replace them by: on a CPU, and without Triton.
    """
    if choose_backend(backend, device) != "fused":
        return False
    if not _installed:
        key = {"cuda": "CUDA", "cpu": "CPU"}[device.type]
        library = torch.library.Library("aten", "IMPL")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that there is one already
            for name, function in (("mm", _mm), ("addmm", _addmm), ("mean.dim", _mean)):
                library.impl(name, functools.partial(function, backend), key)
        _installed.append(library)
    return True


def remove() -> None:
    """Have the libraries' own again: for what is to be compared with them."""
    while _installed:
        _installed.pop()._destroy()


def _mm(backend: Backend, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    if a.dtype not in STATE_TYPES:
        return torch.bmm(a[None], b[None])[0]  # not replaced
    return rowwise.linear(a, b.t(), backend=backend)


def _addmm(
    backend: Backend, bias: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, beta: Any = 1, alpha: Any = 1
) -> torch.Tensor:
    if a.dtype in STATE_TYPES and bias.ndim == 1 and len(bias) == b.shape[1] and beta == alpha == 1:
        return rowwise.linear(a, b.t(), bias, backend=backend)
    return beta * bias + alpha * _mm(backend, a, b)


def _mean(
    backend: Backend, x: torch.Tensor, dim: Any, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> torch.Tensor:
    x = x if dtype is None else x.to(dtype)
    dims = [dim] if isinstance(dim, int) else list(dim or range(x.ndim))
    if x.dtype in STATE_TYPES and [d % x.ndim for d in dims] == [x.ndim - 1] and x.numel():
        found = rowwise.mean(x.reshape(-1, x.shape[-1]), backend=backend).view(x.shape[:-1])
        return found[..., None] if keepdim else found
    count = 1
    for d in dims:
        count *= x.shape[d]
    return x.sum(dims, keepdim) / count
