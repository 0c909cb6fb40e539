"""What can be compiled, and its linear layers: written down where a change of it means other machine code."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from kernels.packed_linear import WeightBank, packed_linear


class PackedLinear(nn.Module):
    """A linear layer whose weight is number `number` of the bank that is chosen when it runs.

    held: how that bank holds it, where not as the model has it; part of its text, so that it names other packages.
    """

    def __init__(self, number: int, size: int, held: str = "") -> None:
        super().__init__()
        self.number, self.size, self.held = number, size, held

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return packed_linear(x, [self.number], [self.size])

    def extra_repr(self) -> str:
        return ", ".join(filter(None, (str(self.number), str(self.size), self.held)))


class Form(nn.Module):
    """What can be compiled: a module on tensors, whose number of rows is left open.

    dims: of every argument of forward, its open dimensions by name. outputs are a tuple of tensors. bank: where its
    linear layers' weights are packed already.
    """

    dims: tuple[dict[int, str], ...] = ()
    bank: WeightBank | None = None

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


def weight_of(layer: Any) -> torch.Tensor:
    """[out, in], of one of `linears`."""
    weight: torch.Tensor = layer.weight
    return weight.t() if isinstance(layer, Conv1D) else weight
