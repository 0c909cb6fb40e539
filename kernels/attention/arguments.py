"""What attention over a block KV cache is asked: where a step's rows sit, and what each of them may see."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch

from kernels.attention.ancestors import words_for

STATE_TYPES = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the rows of one step sit, for B sequences; shapes and meaning as in `kernels.attention.tree_attention`.

    max_rows bounds the rows of a sequence, max_context its committed tokens; both are known on the host.
    """

    block_tables: torch.Tensor
    context_lens: torch.Tensor
    cu_rows: torch.Tensor
    max_rows: int
    max_context: int

    @staticmethod
    def of(
        block_tables: torch.Tensor,
        context_lens: torch.Tensor,
        cu_rows: torch.Tensor,
        max_rows: int | None,
        max_context: int | None,
    ) -> Placement:
        """Fill in the bounds that the caller does not know, at the price of one synchronisation each."""
        for name, value, ndim in (
            ("block_tables", block_tables, 2), ("context_lens", context_lens, 1), ("cu_rows", cu_rows, 1),
        ):  # fmt: skip
            if value.dtype != torch.int32:
                raise ValueError(f"{name} is {value.dtype}; it must be torch.int32")
            if value.ndim != ndim:
                raise ValueError(f"{name} has shape {tuple(value.shape)}; it must have {ndim} dimension(s)")
        if max_rows is None:
            max_rows = int(cu_rows.diff().max()) if len(cu_rows) > 1 else 0
        if max_context is None:
            max_context = int(context_lens.max()) if len(context_lens) else 0
        return Placement(block_tables, context_lens, cu_rows, max_rows, max_context)

    def check(self, num_rows: int, block_size: int, num_blocks: int, device: torch.device) -> None:
        """Raise ValueError for a placement that does not fit `num_rows` rows and the cache's blocks."""
        batch = len(self.context_lens)
        if len(self.cu_rows) != batch + 1:
            raise ValueError(f"cu_rows has {len(self.cu_rows)} entries; {batch} context_lens need {batch + 1}")
        if len(self.block_tables) != batch:
            raise ValueError(f"block_tables has {len(self.block_tables)} rows; {batch} context_lens need {batch}")
        for name in ("block_tables", "context_lens", "cu_rows"):
            value: torch.Tensor = getattr(self, name)
            if value.device != device:
                raise ValueError(f"{name} is on {value.device}, not on {device}; move one")
            if value.stride(-1) != 1 and value.shape[-1] > 1:
                raise ValueError(f"the last dimension of {name} is strided; make it contiguous")
        # Reading values of a device tensor would stall the stream, so only host tensors are checked further.
        if device.type != "cpu":
            return
        bounds, contexts = self.cu_rows.tolist(), self.context_lens.tolist()
        if bounds[0] != 0 or bounds[-1] != num_rows or any(a > b for a, b in itertools.pairwise(bounds)):
            raise ValueError(f"cu_rows is {bounds}; it must rise from 0 to {num_rows}, the number of rows")
        if min(contexts, default=0) < 0 or max(contexts, default=0) > self.max_context:
            raise ValueError(f"context_lens is {contexts}; each must lie in [0, max_context={self.max_context}]")
        for b, (start, end) in enumerate(itertools.pairwise(bounds)):
            if end - start > self.max_rows:
                raise ValueError(f"max_rows is {self.max_rows}, but sequence {b} has {end - start} rows")
            capacity, needed = self.block_tables.shape[1] * block_size, contexts[b] + end - start
            if needed > capacity:
                raise ValueError(f"block_tables holds {capacity} slots a sequence; sequence {b} needs {needed}")
        if self.block_tables.numel() and int(self.block_tables.max()) >= num_blocks:
            raise ValueError(f"block_tables names block {int(self.block_tables.max())}; the cache has {num_blocks}")


def check_caches(k_cache: torch.Tensor, v_cache: torch.Tensor, dtype: torch.dtype, device: torch.device) -> None:
    """Raise ValueError unless both are [num_blocks, block_size, kv_heads, head_dim] of that type and place."""
    for name, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
        if cache.ndim != 4:
            raise ValueError(
                f"{name} has shape {tuple(cache.shape)}; it must be [num_blocks, block_size, kv_heads, head_dim]"
            )
        if cache.dtype != dtype:
            raise ValueError(f"{name} is {cache.dtype}; the rows are {dtype}; they must agree")
        if cache.device != device:
            raise ValueError(f"{name} is on {cache.device}, not on {device}; move one")
        if cache.stride(3) != 1:
            raise ValueError(f"the last dimension of {name} is strided; make it contiguous")
    if v_cache.shape != k_cache.shape:
        raise ValueError(f"v_cache has shape {tuple(v_cache.shape)}; it must be k_cache's {tuple(k_cache.shape)}")
    block_size = k_cache.shape[1]
    if block_size not in (16, 32, 64):
        raise ValueError(f"block_size is {block_size}; it must be 16, 32 or 64")


@dataclass(frozen=True, slots=True)
class Attention:
    """The arguments of `kernels.attention.tree_attention`, validated; window and softcap are None when off."""

    query: torch.Tensor
    k_cache: torch.Tensor
    v_cache: torch.Tensor
    placement: Placement
    ancestors: torch.Tensor | None
    depths: torch.Tensor | None
    scale: float
    sliding_window: int | None
    softcap: float | None

    def __post_init__(self) -> None:
        query = self.query
        if query.ndim != 3:
            raise ValueError(f"query has shape {tuple(query.shape)}; it must be [num_rows, q_heads, head_dim]")
        if query.dtype not in STATE_TYPES:
            raise ValueError(f"query is {query.dtype}; it must be float32, bfloat16 or float16")
        check_caches(self.k_cache, self.v_cache, query.dtype, query.device)
        num_rows, q_heads, head_dim = query.shape
        num_blocks, block_size, kv_heads, cache_dim = self.k_cache.shape
        if cache_dim != head_dim:
            raise ValueError(f"query has head_dim {head_dim}, the cache {cache_dim}; they must agree")
        if kv_heads == 0 or q_heads % kv_heads:
            raise ValueError(f"query has {q_heads} heads; they must be a multiple of the cache's {kv_heads}")
        if self.sliding_window is not None and self.sliding_window < 1:
            raise ValueError(f"sliding_window is {self.sliding_window}; it must be at least 1, or None for off")
        if self.softcap is not None and not self.softcap > 0:
            raise ValueError(f"softcap is {self.softcap}; it must be above 0, or None for off")
        self.placement.check(num_rows, block_size, num_blocks, query.device)
        self._check_tree(num_rows)

    def _check_tree(self, num_rows: int) -> None:
        for name, value, ndim in (("ancestors", self.ancestors, 2), ("depths", self.depths, 1)):
            if value is None:
                continue
            if value.dtype != torch.int32:
                raise ValueError(f"{name} is {value.dtype}; it must be torch.int32")
            if value.ndim != ndim or len(value) != num_rows:
                raise ValueError(f"{name} has shape {tuple(value.shape)}; it must have {num_rows} rows")
            if value.device != self.query.device:
                raise ValueError(f"{name} is on {value.device}, not on {self.query.device}; move one")
            if not value.is_contiguous():
                raise ValueError(f"{name} is strided; make it contiguous")
        if self.ancestors is None:
            if self.depths is not None:
                raise ValueError("depths is given without ancestors; a chain's depths are its row numbers")
            return
        words = words_for(self.placement.max_rows)
        if self.ancestors.shape[1] < words:
            raise ValueError(
                f"ancestors has {self.ancestors.shape[1]} words a row; {self.placement.max_rows} rows need {words}"
            )
        if self.ancestors.device.type == "cpu":
            self._check_ancestors(self.ancestors)

    def _check_ancestors(self, ancestors: torch.Tensor) -> None:
        bounds = self.placement.cu_rows
        index = torch.arange(len(ancestors), dtype=torch.int32) - bounds[:-1].repeat_interleave(bounds.diff())
        own = ancestors.gather(1, (index >> 5).long()[:, None])[:, 0] >> (index & 31) & 1
        if not bool((own == 1).all()):
            raise ValueError(f"ancestors: row {int((own != 1).nonzero()[0])} does not see itself; set its own bit")

    @property
    def window_depths(self) -> torch.Tensor | None:
        """The depths that a window needs: None when it is off or when the rows are chains."""
        if self.sliding_window is None or self.ancestors is None:
            return None
        from kernels.attention.ancestors import depths_of

        return self.depths if self.depths is not None else depths_of(self.ancestors)
