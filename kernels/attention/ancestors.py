"""The ancestor bitmask of a draft tree: bit i of a row is set where row i of its sequence is visible to it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

WORD_BITS = 32


def words_for(max_rows: int) -> int:
    """Words of 32 bits that a row needs when no sequence has more than `max_rows` rows."""
    return -(-max_rows // WORD_BITS)


def ancestor_words(parents: Sequence[Sequence[int]], words: int | None = None) -> torch.Tensor:
    """Bitmask [num_rows, words] int32 of trees laid behind each other.

    parents: for each sequence the row number of each row's parent, -1 for a root; a parent comes before its children.
    words: width of the mask, if not what the largest tree needs. Raises ValueError for a parent that comes later.
    """
    needed = words_for(max((len(tree) for tree in parents), default=0))
    if words is not None and words < needed:
        raise ValueError(f"words is {words}; the largest tree needs {needed}")
    width = needed if words is None else words
    packed = b"".join(mask.to_bytes(width * WORD_BITS // 8, "little") for tree in parents for mask in _masks(tree))
    return torch.from_numpy(np.frombuffer(packed, "<i4").astype(np.int32).reshape(-1, width))


def _masks(tree: Sequence[int]) -> list[int]:
    masks: list[int] = []
    for i, parent in enumerate(tree):
        if not -1 <= parent < i:
            raise ValueError(f"parents: row {i} has parent {parent}; it must lie in [-1, {i})")
        masks.append(1 << i | (masks[parent] if parent >= 0 else 0))
    return masks


def depths_of(ancestors: torch.Tensor) -> torch.Tensor:
    """Depth [num_rows] int32 of each row of a bitmask [num_rows, words] int32: its ancestors, itself not counted."""
    bits = ancestors.to(torch.int64) & 0xFFFFFFFF
    for shift, mask in ((1, 0x55555555), (2, 0x33333333), (4, 0x0F0F0F0F), (8, 0x00FF00FF), (16, 0x0000FFFF)):
        bits = (bits & mask) + (bits >> shift & mask)
    return (bits.sum(-1) - 1).to(torch.int32)


def unpacked(ancestors: torch.Tensor, rows: int) -> torch.Tensor:
    """[n, words] int32 -> [n, rows] bool."""
    i = torch.arange(rows, device=ancestors.device)
    return (ancestors[:, i // WORD_BITS] >> (i % WORD_BITS) & 1).bool()
