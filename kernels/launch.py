"""How an operation is launched: which implementation runs (Triton, C++ or the definition in PyTorch), in what shape."""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

MAX_VOCAB_BLOCK = 4096
WIDE_WARPS = 8
"""For a program that reads a block of the vocabulary."""
NARROW_WARPS = 1
"""For a program that walks one sequence."""
ENABLE_FP_FUSION = False
"""Multiply and add stay apart, as in the definition, so that both take the same token."""

Backend = Literal["auto", "naive", "fused", "native"]
BACKENDS: tuple[Backend, ...] = ("auto", "naive", "fused", "native")


class BackendUnavailable(RuntimeError):
    """The backend asked for by name cannot run here; the message says why and what can."""


@dataclass(frozen=True, slots=True)
class Launch:
    """One configuration in which an operation may launch a kernel: what the compiler tests build, chip by chip.

    An operation lists all of its own in `launches()` of its `launches.py`.
    """

    name: str
    """Unique in the project, such as "verify_accept/bf16/draft-logits"."""
    kernel: Any
    """The function that @triton.jit decorates."""
    pointers: Mapping[str, str]
    """Triton type of every argument that is not an i32 and not a constant, such as {"target_ptr": "*bf16"}."""
    constants: Mapping[str, Any]
    """Value of every constexpr."""
    num_warps: int
    num_stages: int = 1
    divisible_by_16: tuple[str, ...] = ()
    """Arguments that the launcher has found to be multiples of 16 (aligned pointers, strides)."""

    def run(self, grid: tuple[int, ...], *arguments: Any) -> None:
        """Launch `grid` programs with the kernel's arguments but for its constants."""
        shape = {"num_warps": self.num_warps, "num_stages": self.num_stages, "enable_fp_fusion": ENABLE_FP_FUSION}
        form = specialised_by(self.kernel, self.divisible_by_16)
        form[grid](*arguments, **self.constants, **shape)


@functools.cache
def specialised_by(kernel: Any, arguments: tuple[str, ...]) -> Any:
    """The kernel, of which Triton compiles a form of its own for the values of these arguments alone.

    It otherwise would for every argument that happens to be 1 or a multiple of 16: forms that no test compiles.
    """
    import triton  # published for Linux only

    if not isinstance(kernel, triton.JITFunction):  # the interpreter's
        return kernel
    others = [name for name in kernel.arg_names if name not in arguments]
    return triton.jit(kernel.fn, do_not_specialize=others, do_not_specialize_on_alignment=others)


def are_rows_aligned(*matrices: torch.Tensor) -> bool:
    """Whether every row starts, and ends, at a multiple of 16: it can then be read 16 bytes at a time."""
    return all(
        number % 16 == 0 for matrix in matrices for number in (matrix.data_ptr(), matrix.stride(0), matrix.shape[-1])
    )


def choose_backend(backend: Backend, device: torch.device) -> Literal["naive", "fused"]:
    """What runs for tensors on `device`.

    "auto" falls back silently (fused on CUDA and ROCm where Triton is installed, naive elsewhere); a backend asked for
    by name runs or raises BackendUnavailable. Fused on a CPU needs Triton's interpreter, which is for tests. Operations
    that have a native implementation, in C++ for CPUs, consider it before they ask here.
    """
    if backend not in BACKENDS:
        raise ValueError(f"backend is {backend!r}; use one of {', '.join(BACKENDS)}")
    if backend == "naive":
        return "naive"
    if backend == "native":
        raise BackendUnavailable("backend 'native' cannot run: this operation has no C++; use 'auto' or 'naive'")
    obstacle = _obstacle_to_fused(device)
    if obstacle is None and (device.type == "cuda" or backend == "fused"):
        return "fused"
    if backend == "fused":
        raise BackendUnavailable(f"backend 'fused' cannot run: {obstacle}; use 'auto' or 'naive'")
    return "naive"


def _obstacle_to_fused(device: torch.device) -> str | None:
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    if device.type == "cuda":  # ROCm builds of PyTorch call their devices cuda too
        return None
    if device.type == "cpu" and os.environ.get("TRITON_INTERPRET") == "1":
        return None
    return f"tensors are on {device.type!r}, which needs TRITON_INTERPRET=1 set before Triton is imported"
