"""The search for thresholds in Triton against the definition: equal to the bit.

A process of its own runs the interpreter, as for verification (see tests/kernels/verify/test_fused.py).
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from kernels.filters.limits import Limits, limits_of
from kernels.filters.naive import row_threshold

# top_k, top_p, min_p, temperature and how the row of logits is made.
Row = tuple[int, float, float, float, str]
EVERY_RULE: tuple[Row, ...] = (
    (0, 1.0, 0.0, 1.0, "plain"),
    (5, 1.0, 0.0, 0.7, "plain"),
    (0, 0.9, 0.0, 1.3, "plain"),
    (0, 1.0, 0.05, 1.0, "plain"),
    (50, 0.8, 0.01, 0.2, "masked"),
    (3, 0.99, 0.0, 1.0, "tied"),
    (0, 0.7, 0.0, 1.0, "tied"),
    (1000000, 0.5, 0.0, 1.0, "masked"),
    (0, 0.0, 0.0, 1.0, "plain"),
    (4, 0.5, 0.5, 0.0, "plain"),
    (20, 0.5, 0.0, 1.5, "plain"),  # half of what top-k leaves is not half of the row
)
CASES: dict[str, tuple[int, torch.dtype, tuple[Row, ...]]] = {
    "7": (7, torch.float32, EVERY_RULE),
    "1000-fp16": (1000, torch.float16, EVERY_RULE),
    "32000": (32000, torch.float32, ((40, 1.0, 0.0, 1.0, "plain"), (0, 0.9, 0.0, 1.0, "plain"))),
    # More candidates than there are seats for.
    "32000-flat": (32000, torch.float32, ((0, 0.6, 0.0, 1.0, "flat"), (20000, 0.9, 0.0, 1.0, "flat"))),
    "49152-bf16": (49152, torch.bfloat16, ((20, 0.9, 0.0, 1.0, "plain"), (0, 0.8, 0.02, 0.8, "plain"))),
    "262144-bf16": (262144, torch.bfloat16, ((64, 0.95, 0.0, 0.6, "plain"),)),
}


def build(name: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, Limits]:
    """Logits [rows, V] of chains of 0 or 1 drafts, cu_draft, temperature and limits."""
    vocab, dtype, rows = CASES[name]
    generator = torch.Generator().manual_seed(vocab)
    ks = [b % 2 for b in range(len(rows))] if vocab < 32000 else [0] * len(rows)
    logits = []
    for (*_, kind), k in zip(rows, ks, strict=True):
        row = torch.randn(k + 1, vocab, generator=generator) * (0.05 if kind == "flat" else 3.0)
        if kind == "tied":
            row = row.round()
        if kind == "masked":
            row[:, ::3] = -torch.inf
        logits.append(row)
    temperature = torch.tensor([row[3] for row in rows])
    limits = limits_of(
        torch.tensor([row[0] for row in rows], dtype=torch.int32),
        torch.tensor([row[1] for row in rows]),
        torch.tensor([row[2] for row in rows]),
        temperature,
    )
    assert limits is not None
    cu_draft = torch.tensor([sum(ks[:b]) for b in range(len(ks) + 1)], dtype=torch.int32)
    return torch.cat(logits).to(dtype), cu_draft, temperature, limits


def run_interpreted(output: str) -> None:
    from kernels.filters import fused
    from kernels.filters.launches import launches
    from kernels.interpreter import hasten_interpreter
    from kernels.launch import Launch

    hasten_interpreter()
    listed, unlisted, run, empty = launches(), [], Launch.run, torch.empty

    def recorded(launch: Launch, grid: tuple[int, ...], *arguments: Any) -> None:
        if launch not in listed:
            unlisted.append(launch.name)
        run(launch, grid, *arguments)

    def poisoned(*size: Any, **options: Any) -> torch.Tensor:
        fresh = empty(*size, **options)
        return fresh.fill_(torch.nan if fresh.is_floating_point() else -12345)

    cases = {name: build(name) for name in CASES}
    Launch.run, torch.empty = recorded, poisoned  # type: ignore[method-assign]
    outcome: dict[str, Any] = {}
    for name, (logits, cu_draft, temperature, limits) in cases.items():
        outcome[name] = fused.row_thresholds(logits, cu_draft, temperature, 1.0 / temperature, limits)
    torch.save(outcome | {"unlisted": unlisted}, output)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    pytest.importorskip("triton", reason="Triton is published for Linux only")
    output = tmp_path_factory.mktemp("interpreted") / "outcomes.pt"
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(Path(__file__)), str(output)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    loaded: dict[str, Any] = torch.load(output, weights_only=True)
    return loaded


@pytest.mark.parametrize("name", CASES)
def test_fused_finds_the_same_thresholds(name: str, outcomes: dict[str, Any]) -> None:
    logits, cu_draft, temperature, limits = build(name)
    expected = []
    for b, k in enumerate(cu_draft.diff().tolist()):
        own = (int(limits.top_k[b]), float(limits.top_p[b]), float(limits.log_min_p[b]))
        for row in logits[int(cu_draft[b]) + b :][: k + 1].float() * (1.0 / temperature[b]):
            expected.append(-math.inf if temperature[b] == 0 else row_threshold(row, *own))
    assert outcomes[name].tolist() == expected


def test_the_flat_rows_overflow_the_seats() -> None:
    from kernels.filters.fused_kernels import SEATS

    logits = build("32000-flat")[0]
    assert bool(((logits.amax(1, keepdim=True) - logits <= 2.0).sum(1) > SEATS).all())


def test_whatever_was_launched_is_listed(outcomes: dict[str, Any]) -> None:
    assert outcomes["unlisted"] == []


if __name__ == "__main__":
    run_interpreted(sys.argv[1])
