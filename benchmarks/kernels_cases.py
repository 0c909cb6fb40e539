"""What a case of the kernel benchmark is, and how two answers to it are compared; cases are in `kernels_*_cases`."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch

from kernels.launch import Backend

Size = Literal["tiny", "full"]
"""tiny: seconds in Triton's interpreter. full: what a GPU serves."""
Outputs = Mapping[str, torch.Tensor]
MODULES = ("benchmarks.kernels_logit_cases", "benchmarks.kernels_state_cases", "benchmarks.kernels_linear_cases")


@dataclass(frozen=True, slots=True)
class Prepared:
    """One case with its tensors on a device.

    run: answers of a backend, on tensors of its own where the operation writes in place. timed: one call as an engine
    makes it, fused. eager: the plainest PyTorch that does the same work for such a batch, on the same tensors.
    minimal_bytes: what any implementation must read and write once. tolerance: of every floating output, relative and
    absolute; what is not floating must be equal. compare: instead of that, differences between (fused, naive).
    """

    run: Callable[[Backend], Outputs]
    timed: Callable[[], object]
    eager: Callable[[], object]
    minimal_bytes: int
    tolerance: float = 1e-4
    compare: Callable[[Outputs, Outputs], list[str]] | None = None
    can_compile: bool = True
    """torch.compile takes the eager twin; not so where it walks a tree on the host."""


@dataclass(frozen=True, slots=True)
class Case:
    """One shape of one operation. is_aim: a speed is aimed at, so torch.compile of its eager twin is timed too."""

    op: str
    shape: str
    build: Callable[[torch.device], Prepared] = field(repr=False)
    is_aim: bool = False


@functools.cache
def cases(size: Size, op: str | None = None) -> tuple[Case, ...]:
    """The cases of one size, of one operation or of all. Raises ValueError for an operation that has none."""
    found = tuple(case for name in MODULES for case in importlib.import_module(name).cases(size))
    if op is None:
        return found
    chosen = tuple(case for case in found if case.op == op)
    if not chosen:
        known = ", ".join(dict.fromkeys(case.op for case in found))
        raise ValueError(f"--op {op}: no such operation; there are {known}")
    return chosen


def differences(prepared: Prepared) -> list[str]:
    """What the fused operation answers differently from its definition: one line for each output."""
    fused, naive = prepared.run("fused"), prepared.run("naive")
    if prepared.compare is not None:
        return prepared.compare(fused, naive)
    return [
        line for name, wanted in naive.items() if (line := difference(name, fused[name], wanted, prepared.tolerance))
    ]


def difference(name: str, found: torch.Tensor, wanted: torch.Tensor, tolerance: float) -> str | None:
    """A line that says how far one output is off; None where it is not."""
    if not wanted.is_floating_point():
        wrong = int((found != wanted).sum())
        return f"{name}: {wrong} of {wanted.numel()} entries are not those of the definition" if wrong else None
    found, wanted = found.float(), wanted.float()
    near = torch.isclose(found, wanted, rtol=tolerance, atol=tolerance, equal_nan=True)
    if bool(near.all()):
        return None
    errors = (found - wanted).abs()[~near].nan_to_num(nan=torch.inf)
    return f"{name}: {len(errors)} of {wanted.numel()} entries are off, by up to {float(errors.max()):.3g}"


def size_of(*tensors: torch.Tensor | None) -> int:
    """Bytes of tensors that are read or written once."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors if tensor is not None)
