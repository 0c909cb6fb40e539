"""The definition of the commit: read all rows of a path, then write them where they belong."""

from __future__ import annotations

import torch

from kernels.kv_commit.moves import Moves


def kv_commit(moves: Moves) -> None:
    """See `kernels.kv_commit.kv_commit`."""
    block_size = moves.layer_shape[1]
    tables, paths = moves.block_tables.tolist(), moves.accepted_nodes.tolist()
    sources: list[tuple[int, int]] = []
    destinations: list[tuple[int, int]] = []
    for table, first, path, count in zip(
        tables, moves.first_positions.tolist(), paths, moves.num_accepted.tolist(), strict=True
    ):
        for depth, node in enumerate(path[:count]):
            source, destination = first + 1 + node, first + 1 + depth
            source_block, destination_block = table[source // block_size], table[destination // block_size]
            if source != destination and source_block >= 0 and destination_block >= 0:
                sources.append((source_block, source % block_size))
                destinations.append((destination_block, destination % block_size))
    if not sources:
        return
    device = moves.block_tables.device
    source_blocks, source_slots = torch.tensor(sources, device=device).unbind(1)
    destination_blocks, destination_slots = torch.tensor(destinations, device=device).unbind(1)
    for cache in (*moves.key_layers, *moves.value_layers):
        # Indexing with tensors copies, so no row is lost where destinations are sources of others.
        cache[destination_blocks, destination_slots] = cache[source_blocks, source_slots]
