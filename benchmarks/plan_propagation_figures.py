"""What was seen of changes of the plan, of streams and of windows in, figures out. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

BEFORE_S, AROUND_S = 3.0, 1.5
"""Gaps between tokens count as `before` in so many seconds up to a change, as `around` in so many seconds after it."""


@dataclass(frozen=True, slots=True)
class Change:
    """sent, answered: unix seconds. version: of the plan that it made."""

    kind: str
    sent: float
    answered: float
    version: int


@dataclass(frozen=True, slots=True)
class Stream:
    """One streamed answer. at: unix seconds at which each piece of text came."""

    seed: int
    at: tuple[float, ...]
    text: str
    finish_reason: str | None
    tokens: int
    error: str | None = None


@dataclass(frozen=True, slots=True)
class WindowSeen:
    """A worker's window as the ledger has it; unix seconds."""

    worker: str
    started_at: float
    ended_at: float
    plan_version: int


def stream_problems(streams: Iterable[Stream], max_tokens: int) -> list[str]:
    """A sentence for each stream that failed, ended early, or gave other text than the first with its seed."""
    first: dict[int, str] = {}
    problems = []
    for stream in streams:
        is_whole = stream.finish_reason == "stop" or (stream.finish_reason == "length" and stream.tokens == max_tokens)
        if stream.error is not None:
            problems.append(f"seed {stream.seed}: {stream.error}")
        elif not is_whole:
            problems.append(f"seed {stream.seed}: ended after {stream.tokens} tokens ({stream.finish_reason})")
        elif first.setdefault(stream.seed, stream.text) != stream.text:
            problems.append(f"seed {stream.seed}: other text than before")
    return problems


def on_record_s(change: Change, windows: Sequence[WindowSeen], replicas: int) -> float:
    """Seconds from the sending to the end of the last replica's first window with the version.

    Raises ValueError where fewer than `replicas` workers have one.
    """
    first: dict[str, float] = {}
    for window in sorted(windows, key=lambda w: w.ended_at):
        if window.ended_at > change.sent and window.plan_version >= change.version:
            first.setdefault(window.worker, window.ended_at)
    if len(first) < replicas:
        raise ValueError(f"plan {change.version} ({change.kind}) reached {len(first)} of {replicas} replicas")
    return max(first.values()) - change.sent


def gaps(streams: Iterable[Stream], begin: float, end: float) -> list[float]:
    """Seconds between neighbouring pieces of a stream, of the gaps that lie in [begin, end) or reach into it."""
    return [b - a for stream in streams for a, b in pairwise(stream.at) if b > begin and a < end]


def result_rows(
    changes: Sequence[Change], streams: Sequence[Stream], windows: Sequence[WindowSeen], replicas: int
) -> list[dict[str, Any]]:
    """A row for each kind of change, and one for all. Raises ValueError where a replica missed a plan."""
    kinds = [*dict.fromkeys(change.kind for change in changes), "all"]
    return [_row(kind, [c for c in changes if kind in (c.kind, "all")], streams, windows, replicas) for kind in kinds]


def _row(
    kind: str, changes: Sequence[Change], streams: Sequence[Stream], windows: Sequence[WindowSeen], replicas: int
) -> dict[str, Any]:
    answered = [c.answered - c.sent for c in changes]
    recorded = [on_record_s(c, windows, replicas) for c in changes]
    before = [g for c in changes for g in gaps(streams, c.sent - BEFORE_S, c.sent)]
    around = [g for c in changes for g in gaps(streams, c.sent, c.sent + AROUND_S)]
    out: dict[str, Any] = {"change": kind, "changes": len(changes)}
    for name, values in (("acknowledged_s", answered), ("on_record_s", recorded)):
        out |= {f"{name}_median": _rounded(np.median(values)), f"{name}_max": _rounded(max(values))}
    for name, values in (("gap_before_ms", before), ("gap_around_ms", around)):
        ms = 1e3 * np.array(values or [np.nan])
        out |= {
            f"{name}_p50": _rounded(np.percentile(ms, 50)),
            f"{name}_p95": _rounded(np.percentile(ms, 95)),
            f"{name}_max": _rounded(ms.max()),
        }
    return out


def _rounded(value: Any) -> float:
    return round(float(value), 3)
