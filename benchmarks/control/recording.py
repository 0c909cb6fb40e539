"""What `record.py` wrote, as arrays: steps by domain, and seconds by sequences and K. Raises ProfileError."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.control.profile import MAX_SEQUENCES, ProfileError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

STEP_DIGITS = 3


@dataclass(frozen=True, slots=True)
class RecordedSteps:
    """One domain's steps at the deepest rung, request after request. drafted, accepted: [steps] i64."""

    drafted: Ints
    accepted: Ints


@dataclass(frozen=True, slots=True)
class Recording:
    """depth: draft tokens that every step asked for. domains: by name."""

    depth: int
    domains: dict[str, RecordedSteps]


@dataclass(frozen=True, slots=True)
class StepTable:
    """seconds, draft_seconds: [sequences 0..MAX_SEQUENCES, K 0..depth] f64 of steps whose sequences all draft K.

    Linear between the measured sizes, and on with the last slope beyond them. context: tokens of each sequence.
    """

    seconds: Floats
    draft_seconds: Floats
    context: int
    most_sequences: int


@lru_cache(maxsize=8)
def load_steps(path: Path) -> Recording:
    """The steps in a file of `record.py`."""
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
        depth, steps = int(read["about"]["depth"]), read["steps"]
        domains = {domain: _steps(requests) for domain, requests in steps.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ProfileError(f"recorded.steps: {path} is no recording of steps: {error}") from error
    for domain, recorded in domains.items():
        if not len(recorded.drafted) or not (recorded.accepted <= recorded.drafted).all():
            raise ProfileError(f"recorded.steps: {path}: {domain} has no steps, or keeps more than it drafts")
        if recorded.drafted.max() > depth:
            raise ProfileError(f"recorded.steps: {path}: {domain} drafts beyond the depth of {depth}")
    return Recording(depth, domains)


def _steps(requests: list[str]) -> RecordedSteps:
    """Of strings of three base-36 digits a step: drafted, accepted, running."""
    text = "".join(requests)
    if len(text) % STEP_DIGITS:
        raise ValueError(f"{len(text)} digits are no whole number of steps")
    digits = np.array([int(c, 36) for c in text], np.int64).reshape(-1, STEP_DIGITS)
    return RecordedSteps(digits[:, 0], digits[:, 1])


@lru_cache(maxsize=8)
def load_times(path: Path, depth: int) -> StepTable:
    """The step times in a file of `record.py`, for K up to `depth`."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]
        cells = {(int(r["sequences"]), int(r["k"])): (r["seconds"], r["draft_seconds"]) for r in rows}
        context = int(rows[0]["context"])
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise ProfileError(f"recorded.times: {path} is no table of step times: {error}") from error
    loads, ks = sorted({n for n, _ in cells}), sorted({k for _, k in cells})
    if len(cells) != len(loads) * len(ks) or len(loads) < 2 or ks[0] != 0 or ks[-1] < depth:
        raise ProfileError(
            f"recorded.times: {path}: needs every K from 0 to {depth} or some between, at two loads at least"
        )
    both = np.array([[cells[n, k] for k in ks] for n in loads])
    if not (np.isfinite(both).all() and (both[:, :, 0] > 0).all()):
        raise ProfileError(f"recorded.times: {path}: seconds must be positive")
    seconds, drafting = (_dense(loads, ks, both[:, :, i], depth) for i in (0, 1))
    return StepTable(seconds, drafting, context, loads[-1])


def _dense(loads: list[int], ks: list[int], table: Floats, depth: int) -> Floats:
    """[MAX_SEQUENCES + 1, depth + 1]; no sequences take no time."""
    by_k = np.array([np.interp(np.arange(depth + 1), ks, row) for row in table])
    n = np.arange(MAX_SEQUENCES + 1)
    out = np.empty((len(n), depth + 1))
    for k in range(depth + 1):
        out[:, k] = np.interp(n, loads, by_k[:, k])
        slope = max((by_k[-1, k] - by_k[-2, k]) / (loads[-1] - loads[-2]), 0.0)
        out[:, k] += np.maximum(n - loads[-1], 0) * slope
    out[0] = 0.0
    return out
