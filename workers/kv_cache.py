"""KV slots: one contiguous stretch of key and value rows per running sequence, for every layer of a model.

Rolling back rejected tokens costs nothing: a sequence's `kv_length` says how much of its slot is true, and the next
step overwrites the rest.
"""

from __future__ import annotations

import heapq

import torch


class KVSlots:
    """`num_slots` slots of `context` tokens each.

    Tensors per layer: keys and values [num_slots, context, kv_heads, head_dim]. They start as zeros, because a masked
    row still meets its value in a product: garbage there could be NaN.
    """

    def __init__(
        self,
        num_slots: int,
        context: int,
        num_layers: int,
        kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.num_slots = num_slots
        self.context = context
        shape = (num_slots, context, kv_heads, head_dim)
        self.keys = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(num_layers)]
        self.values = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(num_layers)]
        self._free = list(range(num_slots))

    @property
    def used(self) -> int:
        return self.num_slots - len(self._free)

    def can_allocate(self) -> bool:
        return bool(self._free)

    def allocate(self) -> int:
        """The lowest free slot, so that running sequences stay together; raises IndexError when none is free."""
        return heapq.heappop(self._free)

    def free(self, slot: int) -> None:
        if slot in self._free or not 0 <= slot < self.num_slots:
            raise ValueError(f"slot {slot} is not in use")
        heapq.heappush(self._free, slot)
