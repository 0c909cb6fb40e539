"""Times on an accelerator: events on the stream, implementations taking turns, and the copy speed of the device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import median

import torch

from benchmarks.decode_figures import Spread, rotated

FLUSH_BYTES = 512 * 2**20
"""Written between two calls: more than any L2 cache, so that every call reads its tensors from memory."""
COPY_BYTES = 2 * 2**30
WARM_UP_CALLS = 3
Call = Callable[[], object]


def time_in_turns(calls: Mapping[str, Call], rounds: int) -> dict[str, list[float]]:
    """Microseconds of every call in every round, on the stream's clock; in a round all calls meet the same device.

    The order rotates. The write before each call also keeps the device busy while the host queues the call, so that
    short calls are not charged for the host unless it falls behind by more than the write takes.
    """
    flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda")
    names = tuple(calls)
    for name in names:
        for _ in range(WARM_UP_CALLS):
            calls[name]()
    torch.cuda.synchronize()
    events: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {name: [] for name in names}
    for turn in range(rounds):
        for name in rotated(names, turn):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            flush.zero_()
            start.record()
            calls[name]()
            end.record()
            events[name].append((start, end))
        torch.cuda.synchronize()
    return {name: [1000 * start.elapsed_time(end) for start, end in pairs] for name, pairs in events.items()}


def paired_ratio(slow: list[float], fast: list[float]) -> Spread:
    """How many times faster, round by round."""
    return Spread.of([a / b for a, b in zip(slow, fast, strict=True)])


def copy_bytes_per_s(rounds: int = 10) -> float:
    """Median speed of copying a large tensor, bytes read plus bytes written: what memory-bound kernels can hope for."""
    source = torch.zeros(COPY_BYTES // 4, dtype=torch.float32, device="cuda")
    target = torch.empty_like(source)
    times = time_in_turns({"copy": lambda: target.copy_(source)}, rounds)["copy"]
    return 2 * COPY_BYTES / (median(times) * 1e-6)
