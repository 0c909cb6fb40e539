"""How many workers there should be, from what they run and hold: Ray Serve asks twice a minute or oftener.

`replica_count` decides and knows nothing of Ray; `decide` is the function that Serve's AutoscalingPolicy names. Serve
takes this module to its controller by value: nothing heavy is imported here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

TARGET = 0.8
"""Of slots, and of KV tokens, in use: above it another worker is wanted."""
SHRINK = 0.6
"""Fewer workers only where they would be used no more than this: a count that just fits would grow again at once."""
UP_AFTER_S = 10.0
DOWN_AFTER_S = 300.0
"""How long Serve waits before it does what is decided, as long as that goes on being decided: loading a model takes
longer than many a burst lasts.
"""


@dataclass(frozen=True, slots=True)
class WorkerLoad:
    """requests: taken in, running and waiting. slots: sequences it runs at once. kv_share: of its KV tokens, in use."""

    requests: float
    slots: float
    kv_share: float


def replica_count(loads: Sequence[WorkerLoad], queued: float, least: int, most: int) -> int:
    """Workers wanted. loads: of those that run now. queued: requests that have no worker yet, which wake the first one
    where all were let go.
    """
    if not loads:
        return min(max(least, 1 if queued > 0 else 0), most)
    slots = max(sum(load.slots for load in loads) / len(loads), 1.0)
    demand = sum(load.requests for load in loads) + queued
    pressure = sum(load.kv_share for load in loads)

    def wanted(use: float) -> int:
        return max(math.ceil(demand / (slots * use)), math.ceil(pressure / use))

    now = len(loads)
    if wanted(TARGET) >= now:
        return min(max(wanted(TARGET), least), most)
    return min(max(min(wanted(SHRINK), now), least), most)


def decide(context: Any) -> tuple[int, dict[str, Any]]:
    """Ray Serve's hook, with its AutoscalingContext: the number of replicas, and a state, which this needs none of."""
    metrics = context.aggregated_metrics or {}
    requests, slots, kv = (metrics.get(name, {}) for name in ("requests", "slots", "kv_share"))
    loads = [WorkerLoad(requests[r], slots.get(r, 1.0), kv.get(r, 0.0)) for r in requests]
    target: int = context.target_num_replicas
    if len(loads) < context.current_num_replicas and target:
        return target, {}  # some have not said anything yet
    wanted = replica_count(
        loads,
        context.total_queued_requests or 0.0,
        context.capacity_adjusted_min_replicas,
        context.capacity_adjusted_max_replicas,
    )
    return wanted, {}
