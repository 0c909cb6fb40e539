"""Attention over blocks where no kernel reads them: keys gathered per sequence, and one scaled-dot-product call.

Queries of a sequence go into a block of a power of two of rows, and keys are gathered up to one of `context_sizes`:
with those, PyTorch's CPU kernel gives a row the same bits in any company (workers/context_sizes.py tries it out).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch.nn.functional import scaled_dot_product_attention

from workers.kv_cache import blocks_for


@dataclass(slots=True)
class Gathering:
    """How rows and keys of one forward over B sequences are gathered.

    query_index: [rows] int64, each row's place in the query blocks [B * block]. block: queries per sequence. context:
    keys per sequence. last_position: [B, block] int64, the last key that each query may see.
    """

    query_index: torch.Tensor
    block: int
    context: int
    last_position: torch.Tensor
    _masks: dict[int | None, torch.Tensor] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        starts: Sequence[int],
        lengths: Sequence[int],
        sizes: Sequence[int],
        least: int,
        padding: int,
    ) -> Gathering:
        """On the host. starts, lengths: first position and rows of each sequence. sizes: contexts that may be covered.

        least: queries per sequence at the least. padding: rows at the end that repeat the first one.
        """
        block = max(least, 1 << (max(lengths) - 1).bit_length())
        context = sizes[bisect_left(sizes, max(s + n for s, n in zip(starts, lengths, strict=True)))]
        index = [b * block + i for b, n in enumerate(lengths) for i in range(n)]
        last = torch.tensor(starts)[:, None] + torch.arange(block)
        return cls(torch.tensor(index + index[:1] * padding), block, context, last)

    @property
    def tables(self) -> list[torch.Tensor]:
        return [self.query_index, self.last_position]

    def with_tables(self, tables: Sequence[torch.Tensor]) -> Gathering:
        """The same with other tensors in place of `tables`."""
        query_index, last_position = tables
        return Gathering(query_index, self.block, self.context, last_position)

    def mask(self, window: int | None) -> torch.Tensor:
        """[B, 1, block, context] bool: which keys a query may see, at most `window` back where given."""
        if window not in self._masks:
            key = torch.arange(self.context, device=self.last_position.device)
            last = self.last_position[:, :, None]
            seen = key <= last
            if window is not None:
                seen &= key > last - window
            self._masks[window] = seen[:, None]
        return self._masks[window]


def attend_gathered(
    rows: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    gathering: Gathering,
    window: int | None,
    scale: float | None,
) -> torch.Tensor:
    """Attention of rows [rows, heads, head_dim] over one layer's blocks -> the same shape."""
    _, heads, head_dim = rows.shape
    batch, block = len(block_tables), gathering.block
    queries = rows.new_zeros(batch * block, heads, head_dim)
    queries.index_copy_(0, gathering.query_index, rows)
    read = block_tables[:, : blocks_for(gathering.context)].flatten()

    def gathered(cache: torch.Tensor) -> torch.Tensor:
        of_sequences = cache.index_select(0, read).view(batch, -1, *cache.shape[2:])
        return of_sequences[:, : gathering.context].transpose(1, 2)

    out = scaled_dot_product_attention(
        queries.view(batch, block, heads, head_dim).transpose(1, 2),
        gathered(k_cache),
        gathered(v_cache),
        attn_mask=gathering.mask(window),
        scale=scale,
        enable_gqa=True,
    )
    return out.transpose(1, 2).reshape(-1, heads, head_dim).index_select(0, gathering.query_index)
