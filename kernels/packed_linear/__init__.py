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

__all__ = ["DTYPES", "BackendUnavailable", "WeightBank", "is_built", "load", "packed_linear"]

DTYPES = (torch.float32, torch.bfloat16)
"""Of weights that can be packed."""
SOURCE = Path(__file__).with_name("packed_linear.cpp")


def load() -> None:
    """Make the operation available; needed before anything else here. Raises BackendUnavailable."""
    _load()


def is_built() -> bool:
    """Whether `load` has nothing to compile."""
    return native_build.is_built([SOURCE])


class WeightBank:
    """Packed weights by number. A graph that was compiled for one bank runs with the weights of any bank like it."""

    def __init__(self) -> None:
        load()
        self._bank: int = torch.ops.kadence_linear.new_bank()
        weakref.finalize(self, torch.ops.kadence_linear.free_bank, self._bank).atexit = False

    def add(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> int:
        """The number of `weight` [out, in], float32 or bfloat16, which is copied. bias: [out].

        Raises ValueError for another shape or type.
        """
        number: int = torch.ops.kadence_linear.add_weight(
            self._bank, weight.detach(), None if bias is None else bias.detach()
        )
        return number

    def choose(self) -> None:
        """Use this bank for the products that this thread computes from now on."""
        torch.ops.kadence_linear.choose_bank(self._bank)

    @property
    def nbytes(self) -> int:
        size: int = torch.ops.kadence_linear.bank_bytes(self._bank)
        return size


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
        torch.ops.load_library(str(native_build.build([SOURCE])))
    except (native_build.BuildFailed, OSError) as error:
        raise BackendUnavailable(f"products with packed weights cannot run: {error}") from error

    @torch.library.register_fake("kadence_linear::packed_linear")
    def _(x: torch.Tensor, numbers: Sequence[int], sizes: Sequence[int]) -> torch.Tensor:
        return x.new_empty((*x.shape[:-1], sum(sizes)))
