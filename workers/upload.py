"""Small tables made on the host go to a device together: one copy a forward, for which nobody waits.

A copy from ordinary memory stalls the host until the device has done all before it. One from page-locked memory does
not; PyTorch's allocator of such memory gives none of it out again before the copy out of it has been made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch

ALIGNMENT = 16
"""Bytes: where kernels expect a tensor to begin."""


@dataclass(frozen=True, slots=True)
class Packing:
    """Where tables of these shapes and types lie, one behind the other, in `size` bytes."""

    shapes: tuple[torch.Size, ...]
    dtypes: tuple[torch.dtype, ...]
    offsets: tuple[int, ...]
    size: int

    @classmethod
    def of(cls, tables: Sequence[torch.Tensor]) -> Packing:
        room = [-(-table.nbytes // ALIGNMENT) * ALIGNMENT for table in tables]
        *offsets, size = accumulate(room, initial=0)
        return cls(tuple(t.shape for t in tables), tuple(t.dtype for t in tables), tuple(offsets), size)

    def views(self, buffer: torch.Tensor) -> list[torch.Tensor]:
        """The tables in a buffer [size] uint8."""
        return [
            buffer[start : start + shape.numel() * dtype.itemsize].view(dtype).view(shape)
            for start, shape, dtype in zip(self.offsets, self.shapes, self.dtypes, strict=True)
        ]

    def filled(self, tables: Sequence[torch.Tensor], for_device: torch.device) -> torch.Tensor:
        """[size] uint8 on the host with the tables in it, from where a copy to that device need not be waited for.

        Raises ValueError for tables of other shapes or types than the packing's.
        """
        shapes, dtypes = tuple(t.shape for t in tables), tuple(t.dtype for t in tables)
        if (shapes, dtypes) != (self.shapes, self.dtypes):
            raise ValueError(f"tables are {shapes} of {dtypes}; they must be {self.shapes} of {self.dtypes}")
        buffer = torch.empty(self.size, dtype=torch.uint8, pin_memory=for_device.type == "cuda")
        for view, table in zip(self.views(buffer), tables, strict=True):
            view.copy_(table)
        return buffer


def upload(tables: Sequence[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
    """Host tensors on `device`, by one copy; on a CPU the tensors themselves."""
    if device.type == "cpu" or not tables:
        return list(tables)
    packing = Packing.of(tables)
    return packing.views(packing.filled(tables, device).to(device, non_blocking=True))


def index(numbers: Sequence[int], device: torch.device) -> torch.Tensor:
    """[n] int64 on `device`, to index its tensors by: a list would be copied there by a copy that is waited for."""
    return upload([torch.tensor(list(numbers), dtype=torch.int64)], device)[0]
