"""Products of rows with weights that were packed once, for a CPU: y = x @ weight.T + bias.

Packed, a weight is read in the order in which it lies in memory, which is all that the product of a few rows costs.
A row's result does not depend on the other rows, their number, or the number of threads, to the bit.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Sequence
from pathlib import Path

import torch

from kernels import native_build
from kernels.launch import BackendUnavailable

__all__ = ["DTYPES", "BackendUnavailable", "WeightBank", "is_built", "load", "packed_linear", "quantise"]

DTYPES = (torch.float32, torch.bfloat16)
"""Of weights that can be packed."""
LARGEST = 127
"""Of an int8 weight, either way: -128 is not used."""
ROWS_AT_ONCE = 4096
"""Of a weight that is quantised, so that it does not take several copies of a large one in float32."""
SOURCES = tuple(Path(__file__).with_name(name) for name in ("packed_linear.cpp", "formats.h"))


def load() -> None:
    """Make the operation available; needed before anything else here. Raises BackendUnavailable."""
    _load()


def is_built() -> bool:
    """Whether `load` has nothing to compile."""
    return native_build.is_built(SOURCES)


class WeightBank:
    """Packed weights by number. A graph that was compiled for one bank runs with the weights of any bank like it."""

    def __init__(self) -> None:
        load()
        self._bank: int = torch.ops.kadence_linear.new_bank()
        weakref.finalize(self, torch.ops.kadence_linear.free_bank, self._bank).atexit = False

    def add(self, weight: torch.Tensor, bias: torch.Tensor | None = None, scale: torch.Tensor | None = None) -> int:
        """The number of `weight` [out, in], float32, bfloat16 or int8, which is copied. bias: [out].

        int8: weight * scale[:, None], scale [out] as `quantise` gives it, for rows in bfloat16. Raises ValueError for
        another shape or type.
        """
        given = (None if tensor is None else tensor.detach() for tensor in (weight, bias, scale))
        number: int = torch.ops.kadence_linear.add_weight(self._bank, *given)
        return number

    def choose(self) -> None:
        """Use this bank for the products that this thread computes from now on."""
        torch.ops.kadence_linear.choose_bank(self._bank)

    @property
    def nbytes(self) -> int:
        size: int = torch.ops.kadence_linear.bank_bytes(self._bank)
        return size


def quantise(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Int8 [out, in] and scale [out] float32 of a weight [out, in]: symmetric, by output channel, to the nearest."""
    held = torch.empty_like(weight, dtype=torch.int8)
    scale = torch.empty(len(weight), dtype=torch.float32)
    for start in range(0, len(weight), ROWS_AT_ONCE):
        rows = slice(start, start + ROWS_AT_ONCE)
        wide = weight[rows].detach().float()
        scale[rows] = wide.abs().amax(1).clamp(min=torch.finfo(torch.float32).tiny) / LARGEST
        held[rows] = (wide / scale[rows, None]).round().clamp(-LARGEST, LARGEST)
    return held, scale


def packed_linear(x: torch.Tensor, numbers: Sequence[int], sizes: Sequence[int]) -> torch.Tensor:
    """X [..., in] times the weights of those numbers in the chosen bank, side by side: [..., sum(sizes)].

    sizes: rows of each weight; what a compiler, which sees no weights, knows the shape of the result by. Raises
    ValueError where x has another dtype or width than a weight.
    """
    out: torch.Tensor = torch.ops.kadence_linear.packed_linear(x, numbers, sizes)
    return out


@functools.cache
def _load() -> None:
    try:
        torch.ops.load_library(str(native_build.build(SOURCES)))
    except (native_build.BuildFailed, OSError) as error:
        raise BackendUnavailable(f"products with packed weights cannot run: {error}") from error

    @torch.library.register_fake("kadence_linear::packed_linear")
    def _(x: torch.Tensor, numbers: Sequence[int], sizes: Sequence[int]) -> torch.Tensor:
        return x.new_empty((*x.shape[:-1], sum(sizes)))
