"""How many blocks of KV a worker holds: as set, else a whole context for each sequence, as far as memory allows."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import PretrainedConfig

from workers.kv_cache import BLOCK_SIZE, blocks_for
from workers.model_support import UnsupportedModel

SHARE_OF_FREE_MEMORY = 0.5
"""That KV may take where its size was not set: features of a drafter, its own KV and steps need the rest."""
MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")


def kv_blocks(
    tokens: int, max_sequences: int, context: int, bytes_per_token: int, device: torch.device, name: str
) -> int:
    """tokens: as the setting kv_cache_tokens says, 0 for none. bytes_per_token: keys and values of all layers.

    Raises UnsupportedModel where memory has no room for one context of it.
    """
    if tokens:
        return blocks_for(tokens)
    wanted = max_sequences * blocks_for(context)
    free = free_memory(device)
    if free is None:
        return wanted
    possible = int(free * SHARE_OF_FREE_MEMORY) // (bytes_per_token * BLOCK_SIZE)
    if possible < blocks_for(context):
        raise UnsupportedModel(
            f"model {name!r} needs {blocks_for(context) * BLOCK_SIZE * bytes_per_token / 1e6:.0f} MB for the KV of "
            f"max_context={context} tokens, and half of the free memory is {free * SHARE_OF_FREE_MEMORY / 1e6:.0f} MB: "
            "lower max_context, or set kv_cache_tokens"
        )
    return min(wanted, possible)


def kv_heads_of(config: PretrainedConfig) -> tuple[int, int]:
    """Key-value heads of a layer, and their size; config: of the text model."""
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    return kv_heads, getattr(config, "head_dim", None) or config.hidden_size // heads


def kv_bytes(config: PretrainedConfig, dtype: torch.dtype) -> int:
    """Of one token, in all layers."""
    config = config.get_text_config()
    kv_heads, head_dim = kv_heads_of(config)
    return 2 * config.num_hidden_layers * kv_heads * head_dim * dtype.itemsize


def free_memory(device: torch.device, meminfo: Path = MEMINFO, cgroup: Path = CGROUP) -> int | None:
    """Bytes that can be had on the device; None where nothing says so."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    known = [n for n in (_machine(meminfo), _container(cgroup)) if n is not None]
    return min(known) if known else None


def _machine(meminfo: Path) -> int | None:
    try:
        lines = meminfo.read_text().splitlines()
    except OSError:
        return None
    found = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return int(found[0]) * 1024 if found else None


def _container(cgroup: Path) -> int | None:
    """What a control group of version 2 leaves of its limit."""
    try:
        limit = (cgroup / "memory.max").read_text().strip()
        used = int((cgroup / "memory.current").read_text())
    except (OSError, ValueError):
        return None
    return max(int(limit) - used, 0) if limit.isdigit() else None
