"""The block KV cache: key and value rows of every layer of a model, in blocks of BLOCK_SIZE tokens.

A sequence's tokens lie in the blocks of its table, one after the other, wherever those are in memory. Rolling back
rejected tokens costs nothing: a sequence's `kv_length` says how much of its blocks is true, and the next step
overwrites the rest.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import torch

from workers.upload import index

BLOCK_SIZE = 16
"""Tokens. Small, so that little is left unused at the end of a sequence and much of a prompt's head can be shared."""
NULL_BLOCK = 0
"""Belongs to nobody: what a table is filled up with where attention wants tables of one length. It stays zero, unless
steps are recorded: rows that pad those write there."""


def blocks_for(tokens: int) -> int:
    return -(-tokens // BLOCK_SIZE)


class BlockKV:
    """`num_blocks` blocks, numbered from 1, for `num_layers` layers.

    Tensors per layer: keys and values [1 + num_blocks, BLOCK_SIZE, kv_heads, head_dim]. They start as zeros, because a
    masked row still meets its value in a product: garbage there could be NaN. features: [1 + num_blocks, BLOCK_SIZE,
    layers, hidden], what a drafter reads of the same positions, where `keep_features` was called.
    """

    def __init__(
        self,
        num_blocks: int,
        num_layers: int,
        kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.num_blocks = num_blocks
        shape = (1 + num_blocks, BLOCK_SIZE, kv_heads, head_dim)
        self.keys = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(num_layers)]
        self.values = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(num_layers)]
        self.features: torch.Tensor | None = None

    def read(self, blocks: Sequence[int], length: int) -> list[torch.Tensor]:
        """Keys, then values, [length, kv_heads, head_dim] of each layer, of whoever has these blocks; copies."""
        read = index(blocks[: blocks_for(length)], self.keys[0].device)
        return [layer[read].flatten(0, 1)[:length] for layer in (*self.keys, *self.values)]

    def keep_features(self, layers: int, hidden: int) -> None:
        """Make room for the outputs of so many decoder layers at each position."""
        like = self.keys[0]
        shape = (len(like), BLOCK_SIZE, layers, hidden)
        self.features = torch.zeros(shape, dtype=like.dtype, device=like.device)

    def write_features(self, places: torch.Tensor, features: torch.Tensor) -> None:
        """Store features [n, layers, hidden] at `places` [n] int64 in the blocks laid end to end, if any are kept."""
        if self.features is not None:
            self.features.flatten(0, 1).index_copy_(0, places, features)

    def write_features_of(self, blocks: Sequence[int], start: int, features: torch.Tensor) -> None:
        """As `write_features`, at positions from `start` on of the sequence that has these blocks."""
        if self.features is not None:
            places = [
                blocks[p // BLOCK_SIZE] * BLOCK_SIZE + p % BLOCK_SIZE for p in range(start, start + len(features))
            ]
            self.write_features(index(places, self.features.device), features)

    def read_features(self, blocks: Sequence[int], start: int, end: int) -> torch.Tensor:
        """[end - start, layers, hidden] of positions start to end of the sequence that has these blocks; a copy."""
        assert self.features is not None
        first = start // BLOCK_SIZE
        read = index(blocks[first : blocks_for(end)], self.features.device)
        return self.features[read].flatten(0, 1)[start - first * BLOCK_SIZE : end - first * BLOCK_SIZE]


class KVSlots:
    """The blocks of a `BlockKV` dealt out as slots, each with room for a whole context: for a drafter's own KV.

    A drafter never holds more than one sequence's KV a running sequence, so it needs neither sharing nor preemption.
    """

    def __init__(self, num_slots: int, context: int) -> None:
        self.num_slots = num_slots
        self.blocks_per_slot = blocks_for(context)
        self._free = list(range(num_slots))

    @property
    def num_blocks(self) -> int:
        return self.num_slots * self.blocks_per_slot

    @property
    def used(self) -> int:
        return self.num_slots - len(self._free)

    def allocate(self) -> int:
        """The lowest free slot, so that running sequences stay together; raises IndexError when none is free."""
        return heapq.heappop(self._free)

    def free(self, slot: int) -> None:
        if slot in self._free or not 0 <= slot < self.num_slots:
            raise ValueError(f"slot {slot} is not in use")
        heapq.heappush(self._free, slot)

    def blocks(self, slot: int) -> range:
        """A slot's block table."""
        first = 1 + slot * self.blocks_per_slot
        return range(first, first + self.blocks_per_slot)
