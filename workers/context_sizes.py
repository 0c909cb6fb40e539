"""How many keys an attention call may be given, so that a row's result does not depend on how many.

A call over several sequences covers the longest one; to the others the further keys are masked. They add nothing but
zeros, yet a CPU's matrix product may sum in another order for another length: on the machines measured, the lengths 256
and 320 give other last bits than 384 or 512. PyTorch's kernel walks over KEY_BLOCK keys at a time, so it is enough to
know which lengths within one block agree; that is tried out here, on the device itself.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch.nn.functional import scaled_dot_product_attention

KEY_BLOCK = 512
KEY_STEP = 64
_QUERY_BLOCKS = (4, 16)


def context_sizes(
    context: int, heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device
) -> tuple[int, ...]:
    """Lengths, rising, up to `context` (the last one), among which the choice changes no bit of a row's result."""
    whole, rest = divmod(context, KEY_BLOCK)
    shape = heads // kv_heads, head_dim, dtype, device
    sizes = [KEY_BLOCK * i + size for i in range(whole) for size in _agreeing(KEY_BLOCK, *shape)]
    return (*sizes, *(KEY_BLOCK * whole + size for size in (_agreeing(rest, *shape) if rest else ())))


@lru_cache
@torch.inference_mode()
def _agreeing(
    limit: int, heads_per_key: int, head_dim: int, dtype: torch.dtype, device: torch.device
) -> tuple[int, ...]:
    """Multiples of KEY_STEP under `limit` (at most KEY_BLOCK) whose results are those of `limit`, and `limit`."""
    numbers = torch.Generator().manual_seed(0)

    def random(rows: int, heads: int, scale: float) -> torch.Tensor:
        drawn = torch.randn(32, rows, heads, head_dim, generator=numbers) * scale
        return drawn.to(device, dtype).transpose(1, 2)

    kv_heads = max(2, 8 // heads_per_key)  # enough numbers that rounding to bfloat16 does not hide a difference
    queries = [random(block, kv_heads * heads_per_key, 3.0) for block in _QUERY_BLOCKS]
    keys, values = random(limit, kv_heads, 1.0), random(limit, kv_heads, 1.0)

    def attend(query: torch.Tensor, size: int, last: torch.Tensor) -> torch.Tensor:
        seen = torch.arange(size, device=device) <= last[..., None]
        return scaled_dot_product_attention(
            query, keys[:, :, :size], values[:, :, :size], attn_mask=seen[:, None], enable_gqa=True
        )

    def agrees(size: int) -> bool:
        for query in queries:
            # Rows that see from one key to all of them.
            rows = query.shape[0] * query.shape[2]
            last = torch.linspace(0, size - 1, rows, device=device).long().reshape(query.shape[0], -1)
            if not torch.equal(attend(query, size, last), attend(query, limit, last)):
                return False
        return True

    return (*(size for size in range(KEY_STEP, limit, KEY_STEP) if agrees(size)), limit)
