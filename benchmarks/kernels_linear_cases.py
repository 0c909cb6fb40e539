"""Cases of the linear layers whose rows do not depend on each other: `rowwise`."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch.nn import functional

from benchmarks.kernels_cases import Case, Outputs, Prepared, Size, size_of
from benchmarks.kernels_state_cases import HALF_TOLERANCE, TYPES
from kernels.launch import Backend
from kernels.rowwise import linear, mean


@dataclass(frozen=True, slots=True)
class LinearShape:
    rows: int
    inputs: int
    outputs: int
    dtype: str

    @property
    def shape(self) -> str:
        return f"{self.rows} rows, {self.inputs} to {self.outputs}, {self.dtype}"


LAYERS = {
    "full": (
        LinearShape(8, 4096, 4096, "bf16"),
        LinearShape(40, 4096, 4096, "bf16"),
        LinearShape(40, 4096, 28672, "bf16"),
        LinearShape(40, 14336, 4096, "bf16"),
        LinearShape(40, 4096, 128256, "bf16"),
        LinearShape(1, 576, 49152, "bf16"),
        LinearShape(128, 4096, 4096, "bf16"),
    ),
    "tiny": (LinearShape(5, 64, 300, "fp32"), LinearShape(3, 1040, 48, "bf16")),
}
AIMS = (LAYERS["full"][1],)


def cases(size: Size) -> list[Case]:
    """See `benchmarks.kernels_cases.cases`."""
    return [Case("rowwise", spec.shape, functools.partial(build_linear, spec), spec in AIMS) for spec in LAYERS[size]]


def build_linear(spec: LinearShape, device: torch.device) -> Prepared:
    """A layer of random weights with a bias, and the mean of its input rows."""
    dtype, generator = TYPES[spec.dtype], torch.Generator(device).manual_seed(spec.outputs)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, device=device).to(dtype)

    rows, weight = normal(spec.rows, spec.inputs), normal(spec.outputs, spec.inputs) / spec.inputs**0.5
    bias = normal(spec.outputs)

    def run(backend: Backend) -> Outputs:
        return {"out": linear(rows, weight, bias, backend=backend), "mean": mean(rows, backend=backend)}

    twin = functools.partial(functional.linear, rows, weight, bias)
    minimal = size_of(rows, weight, bias) + spec.rows * spec.outputs * rows.element_size()
    tolerance = 1e-4 if dtype == torch.float32 else HALF_TOLERANCE
    return Prepared(run, lambda: linear(rows, weight, bias, backend="fused"), twin, minimal, tolerance)
