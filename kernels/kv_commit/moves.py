"""What a commit of rows is asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

CACHE_TYPES = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True, slots=True)
class Moves:
    """The validated arguments of `kv_commit`; meaning as there.

    keys, values: one stacked tensor [layers, blocks, slots, heads, dim], or a tuple with one [blocks, slots, heads,
    dim] for each layer.
    """

    keys: torch.Tensor | tuple[torch.Tensor, ...]
    values: torch.Tensor | tuple[torch.Tensor, ...]
    block_tables: torch.Tensor
    first_positions: torch.Tensor
    accepted_nodes: torch.Tensor
    num_accepted: torch.Tensor

    @classmethod
    def of(
        cls,
        k_cache: torch.Tensor | Sequence[torch.Tensor],
        v_cache: torch.Tensor | Sequence[torch.Tensor],
        block_tables: torch.Tensor,
        first_positions: torch.Tensor,
        accepted_nodes: torch.Tensor,
        num_accepted: torch.Tensor,
    ) -> Moves:
        """Check everything; caches given as sequences are kept as tuples."""
        keys = k_cache if isinstance(k_cache, torch.Tensor) else tuple(k_cache)
        values = v_cache if isinstance(v_cache, torch.Tensor) else tuple(v_cache)
        moves = cls(keys, values, block_tables, first_positions, accepted_nodes, num_accepted)
        moves._check_caches()
        moves._check_tables()
        # Reading values of a device tensor would stall the stream, so only host tensors are checked further.
        if block_tables.device.type == "cpu":
            moves._check_values()
        return moves

    @property
    def key_layers(self) -> list[torch.Tensor]:
        return list(self.keys)

    @property
    def value_layers(self) -> list[torch.Tensor]:
        return list(self.values)

    @property
    def layer_shape(self) -> tuple[int, int, int, int]:
        """Blocks, slots in a block, KV heads, head dimension."""
        blocks, slots, heads, dim = self.keys[0].shape
        return blocks, slots, heads, dim

    def _check_caches(self) -> None:
        if isinstance(self.keys, torch.Tensor) != isinstance(self.values, torch.Tensor):
            raise ValueError("k_cache and v_cache must both be tensors or both be sequences of tensors")
        if not len(self.keys) or len(self.keys) != len(self.values):
            raise ValueError(f"k_cache has {len(self.keys)} layers and v_cache {len(self.values)}; give both the same")
        for name, cache in (("k_cache", self.keys), ("v_cache", self.values)):
            is_stacked = isinstance(cache, torch.Tensor)
            for layer, tensor in enumerate([cache] if isinstance(cache, torch.Tensor) else cache):
                where = name if is_stacked else f"{name}[{layer}]"
                if tensor.ndim != (5 if is_stacked else 4):
                    wanted = "[layers, blocks, slots, heads, dim]" if is_stacked else "[blocks, slots, heads, dim]"
                    raise ValueError(f"{where} has shape {tuple(tensor.shape)}; it must be {wanted}")
                if tensor.dtype not in CACHE_TYPES:
                    raise ValueError(f"{where} is {tensor.dtype}; it must be float32, bfloat16 or float16")
                if tensor.dtype != self.keys[0].dtype:
                    raise ValueError(f"{where} is {tensor.dtype}, but k_cache is {self.keys[0].dtype}; give one type")
                if tensor.shape[-4:] != self.keys[0].shape:
                    raise ValueError(
                        f"{where} has layers of {tuple(tensor.shape[-4:])}, but k_cache of {tuple(self.keys[0].shape)}"
                    )
                if tensor.stride(-1) != 1:
                    raise ValueError(f"{where} has stride {tensor.stride(-1)} along head_dim; it must be 1")
                if tensor.device != self.block_tables.device:
                    raise ValueError(f"{where} is on {tensor.device}, not on {self.block_tables.device}; move one")

    def _check_tables(self) -> None:
        for name, wanted, ndim in (
            ("block_tables", torch.int32, 2),
            ("first_positions", torch.int64, 1),
            ("accepted_nodes", torch.int32, 2),
            ("num_accepted", torch.int32, 1),
        ):
            value: torch.Tensor = getattr(self, name)
            if value.dtype != wanted:
                raise ValueError(f"{name} is {value.dtype}; it must be {wanted}")
            if value.ndim != ndim:
                raise ValueError(f"{name} has shape {tuple(value.shape)}; it must have {ndim} dimensions")
            if len(value) != len(self.num_accepted):
                raise ValueError(f"{name} has {len(value)} sequences, but num_accepted {len(self.num_accepted)}")
            if value.device != self.block_tables.device:
                raise ValueError(f"{name} is on {value.device}, not on {self.block_tables.device}; move one")

    def _check_values(self) -> None:
        num_blocks, block_size = self.layer_shape[:2]
        if self.block_tables.numel() and not -1 <= int(self.block_tables.min()) <= int(self.block_tables.max()):
            raise ValueError("block_tables has a block below -1, which stands for none")
        if self.block_tables.numel() and int(self.block_tables.max()) >= num_blocks:
            raise ValueError(f"block_tables names block {int(self.block_tables.max())}; the cache has {num_blocks}")
        room = self.block_tables.shape[1] * block_size
        for b, (first, count, path) in enumerate(
            zip(self.first_positions.tolist(), self.num_accepted.tolist(), self.accepted_nodes.tolist(), strict=True)
        ):
            if not 0 <= count <= len(path):
                raise ValueError(f"num_accepted is {count} for sequence {b}; accepted_nodes has {len(path)} a sequence")
            nodes = path[:count]
            if nodes != sorted(set(nodes)) or (nodes and nodes[0] < 0):
                raise ValueError(f"accepted_nodes is {nodes} for sequence {b}; a path's nodes rise from 0 or more")
            if nodes and not (first >= 0 and first + 1 + nodes[-1] < room):
                raise ValueError(
                    f"first_positions is {first} for sequence {b}: its node {nodes[-1]} lies outside the {room} "
                    f"positions of block_tables"
                )
