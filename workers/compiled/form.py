"""What can be compiled, and its linear layers: written down where a change of it means other machine code."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from kernels.packed_linear import packed_linear


class PackedLinear(nn.Module):
    """A linear layer whose weight is number `number` of the bank that is chosen when it runs."""

    def __init__(self, number: int, size: int) -> None:
        super().__init__()
        self.number, self.size = number, size

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return packed_linear(x, [self.number], [self.size])

    def extra_repr(self) -> str:
        return f"{self.number}, {self.size}"


class Form(nn.Module):
    """What can be compiled: a module on tensors, whose number of rows is left open.

    dims: of every argument of forward, its open dimensions by name. outputs are a tuple of tensors.
    """

    dims: tuple[dict[int, str], ...] = ()

    def example(self, rows: int, kept: int) -> tuple[torch.Tensor, ...]:
        """Arguments of forward, with that many rows and, where the form picks some of them, kept ones."""
        raise NotImplementedError

    def prepare(self) -> None:
        """Of a stripped copy: whatever must be otherwise when it is traced."""

    def arrive(self) -> None:
        """In another process, before it is traced there."""


def linears(module: nn.Module) -> list[Any]:
    """Its linear layers, each once, in an order that depends on its structure alone."""
    return [layer for layer in module.modules() if type(layer) in (nn.Linear, Conv1D)]
