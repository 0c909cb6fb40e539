"""A form as machine code: made once in a process of its own, kept as a file, and run on any weights like its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from kernels.packed_linear import WeightBank
from workers.compiled.form import Form
from workers.compiled.opaque_attention import Attention, attention_by, own_rows
from workers.compiled.skeleton import CannotCompile

TRIED_ROWS = 96
TRIED_PARTS = (2, 4, 5, 8, 12, 16, 29, 32, 64)
"""Rows, out of TRIED_ROWS, that must come out the same when they are computed without the others."""
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 8e-2}
"""Of the largest value of the first output, by which compiled and eager may differ: that of ModelRunner.check."""


class CompiledGraph:
    """A package, loaded, and the packed weights that it runs with. One thread at a time may run it."""

    def __init__(self, package: Path, bank: WeightBank) -> None:
        self._loader: Any = torch._C._aoti.AOTIModelPackageLoader(str(package), "model", False, 1, -1)
        self.bank = bank

    def __call__(self, attention: Attention, *inputs: torch.Tensor) -> list[torch.Tensor]:
        """The form's outputs, in order; `attention` computes and keeps what its layers want."""
        self.bank.choose()
        with attention_by(attention):
            outputs: list[torch.Tensor] = self._loader.run(list(inputs))
        return outputs


@torch.inference_mode()
def try_out(graph: CompiledGraph, skeleton: Form, inputs: Callable[[Sequence[int]], tuple[torch.Tensor, ...]]) -> None:
    """Hold the graph against its skeleton, and its rows against themselves computed in other company.

    inputs: arguments for rows out of range(TRIED_ROWS), by their numbers, all of them kept. Raises CannotCompile where
    the graph computes something else, or where a row's bits depend on its company: nothing promises that they do not.
    """
    whole = graph(own_rows, *inputs(range(TRIED_ROWS)))
    with attention_by(own_rows):
        few = range(8)
        for i, (got, expected) in enumerate(zip(whole, skeleton(*inputs(few)), strict=True)):
            scale = expected.float().abs().max().clamp(min=1e-6)
            difference = float((_rows(got, few).float() - _rows(expected, few).float()).abs().max() / scale)
            # Amid a model in bfloat16 a few values are a thousand times the others, and so is their rounding.
            if not difference < (TOLERANCE[expected.dtype] if i == 0 or expected.dtype == torch.float32 else 0.5):
                raise CannotCompile(f"compiled, it gives other values (relative difference {difference:.2g})")
    for n, part in enumerate(TRIED_PARTS):
        # In an order of their own, so that a row's place changes, too.
        numbers = [(5 * n + 7 * i) % TRIED_ROWS for i in range(part)]
        for got, expected in zip(graph(own_rows, *inputs(numbers)), whole, strict=True):
            if not torch.equal(_rows(got, range(part)), _rows(expected, numbers)):
                raise CannotCompile(f"compiled, a row's values depend on the {part - 1} rows that it is computed with")


def _rows(output: torch.Tensor, numbers: Sequence[int]) -> torch.Tensor:
    """Outputs are [1, rows, ...]."""
    return output[0, list(numbers)]
