"""How an operation is launched: which implementation runs (Triton or the definition in PyTorch), and in what shape."""

from __future__ import annotations

import importlib.util
import os
from typing import Literal

import torch

MAX_VOCAB_BLOCK = 4096
WIDE_WARPS = 8
"""For a program that reads a block of the vocabulary."""
NARROW_WARPS = 1
"""For a program that walks one sequence."""
ENABLE_FP_FUSION = False
"""Multiply and add stay apart, as in the definition, so that both take the same token."""

Backend = Literal["auto", "naive", "fused"]
BACKENDS: tuple[Backend, ...] = ("auto", "naive", "fused")


class BackendUnavailable(RuntimeError):
    """The backend asked for by name cannot run here; the message says why and what can."""


def choose_backend(backend: Backend, device: torch.device) -> Literal["naive", "fused"]:
    """What runs for tensors on `device`.

    "auto" falls back silently (fused on CUDA and ROCm where Triton is installed, naive elsewhere); a backend asked for
    by name runs or raises BackendUnavailable. Fused on a CPU needs Triton's interpreter, which is for tests.
    """
    if backend not in BACKENDS:
        raise ValueError(f"backend is {backend!r}; use one of {', '.join(BACKENDS)}")
    if backend == "naive":
        return "naive"
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


def vocab_block(vocab_size: int) -> int:
    """Tokens one program reads: a power of two, so that a row is a few blocks and each thread holds few of them."""
    return max(128, min(MAX_VOCAB_BLOCK, 1 << (vocab_size - 1).bit_length()))
