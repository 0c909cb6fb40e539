"""Decode steps of every K and batch: recorded against eager, to the bit and in time; and rows alone and in company.

    python -m benchmarks.gpu_steps --dtype bfloat16

Every shape that a worker records at its start is recorded here, over a small model of random weights, and replayed with
full and with ragged drafts. Each must give the bits of the same rows computed eagerly, and of each sequence computed
alone. Only then is anything timed: a step by the library's products, by those whose rows do not depend on each other,
and replayed.
"""

from __future__ import annotations

import json
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Annotated

import torch
import typer

from benchmarks.decode_figures import append_lines
from benchmarks.gpu_decode import MODELS, write_model
from benchmarks.kernels import machine
from workers.batch_invariance import install
from workers.build import DTYPES
from workers.kv_cache import KVSlots
from workers.model_runner import ModelRunner
from workers.step_graphs import GraphFree, StepShape, step_shapes
from workers.step_layout import Rows

RUNGS = (0, 1, 2, 4, 8)
PREFILL = 128
CONTEXT = {"cuda": 1024, "cpu": 64}


@dataclass(frozen=True, slots=True)
class Row:
    """One shape. Milliseconds of a step, medians: eager by the library's products (None where they are the only ones),
    eager by those that are batch-invariant, and recorded.
    """

    sequences: int
    k: int
    rows: int
    library_ms: float | None
    eager_ms: float
    recorded_ms: float


class Steps:
    """A model over the KV of random texts, one a sequence."""

    def __init__(self, folder: Path, device: torch.device, dtype: torch.dtype, max_sequences: int) -> None:
        self.context, self.device = CONTEXT[device.type], device
        self.runner = ModelRunner.load(
            folder, num_slots=max_sequences, context=self.context, device=device, dtype=dtype
        )
        self._places = KVSlots(max_sequences, self.context)
        self._numbers = random.Random(0)
        for slot in range(max_sequences):
            for start in range(0, self.context, PREFILL):
                n = min(PREFILL, self.context - start)
                self.runner.forward([Rows(self._places.blocks(slot), start, self.tokens(n))], [0])

    def tokens(self, n: int) -> list[int]:
        return [self._numbers.randrange(self.runner.vocab_size) for _ in range(n)]

    def drafted(self, shape: StepShape, is_ragged: bool) -> list[Rows]:
        """A step of that shape: all drafts of K, or of 0 to K, at any contexts."""
        rows = []
        for slot in range(shape.sequences):
            n = 1 + (self._numbers.randrange(shape.k + 1) if is_ragged and slot else shape.k)
            start = self._numbers.randrange(self.context - n + 1)
            rows.append(Rows(self._places.blocks(slot), start, self.tokens(n)))
        return rows

    def logits(self, rows: Sequence[Rows], is_recorded: bool) -> torch.Tensor:
        return self.runner.forward(rows, range(sum(len(r.token_ids) for r in rows)), eager=not is_recorded)

    def seconds(self, compute: Callable[[], object], rounds: int) -> float:
        times = []
        for _ in range(rounds):
            self._wait()
            started = time.perf_counter()
            compute()
            self._wait()
            times.append(time.perf_counter() - started)
        return median(times)

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def differences(steps: Steps, shape: StepShape) -> list[str]:
    """What is not equal to the bit and must be: a sentence each."""
    found = []
    for is_ragged in (False, True):
        rows, kind = steps.drafted(shape, is_ragged), "ragged" if is_ragged else "full"
        eager, recorded = steps.logits(rows, False), steps.logits(rows, True)
        if not torch.equal(eager, recorded):
            found.append(f"{shape}, {kind}: recorded differs from eager")
        alone = torch.cat([steps.logits([r], True) for r in rows])
        if not torch.equal(recorded, alone):
            found.append(f"{shape}, {kind}: rows in company differ from rows alone")
    return found


def main(
    device: Annotated[str, typer.Option(help="cuda, or cpu: a tiny model, nothing is recorded but called again.")] = (
        "cuda"
    ),
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "bfloat16",
    sequences: Annotated[int, typer.Option(min=1, help="The most of a step.")] = 8,
    rounds: Annotated[int, typer.Option(min=1, help="Times that every step is timed.")] = 30,
    output: Annotated[Path | None, typer.Option(help="Rows are appended to this CSV.")] = None,
) -> None:
    """Record every shape, compare, time; one JSON object on stdout, exit code 1 where bits differ that must not."""
    if device not in MODELS:
        raise typer.BadParameter(f"--device {device}: use cuda or cpu")
    if dtype not in DTYPES:
        raise typer.BadParameter(f"--dtype {dtype}: use {', '.join(DTYPES)}")
    place, shapes = torch.device(device), step_shapes(RUNGS, sequences)
    with tempfile.TemporaryDirectory() as name:
        write_model(Path(name), MODELS[device])
        steps = Steps(Path(name), place, DTYPES[dtype], sequences)
    by_library: dict[StepShape, float] = {}
    if device == "cuda":
        for shape in shapes:
            step = steps.drafted(shape, False)
            steps.logits(step, False)
            by_library[shape] = steps.seconds(lambda step=step: steps.logits(step, False), rounds)  # type: ignore[misc]
    is_invariant = install(place)
    started = time.perf_counter()
    recorded = steps.runner.record(shapes, recorder=None if device == "cuda" else GraphFree())
    record_s = time.perf_counter() - started
    faults = [] if recorded == shapes else [f"{len(recorded)} of {len(shapes)} shapes were recorded"]
    faults += [line for shape in shapes for line in differences(steps, shape)]
    rows = []
    for shape in () if faults else shapes:
        step = steps.drafted(shape, False)
        eager, replayed = (
            steps.seconds(lambda step=step, is_recorded=is_recorded: steps.logits(step, is_recorded), rounds)  # type: ignore[misc]
            for is_recorded in (False, True)
        )
        library = by_library.get(shape)
        rows.append(Row(*shape, shape.rows, None if library is None else 1e3 * library, 1e3 * eager, 1e3 * replayed))
    conditions = {
        "date": datetime.now(UTC).date().isoformat(),
        **machine(place),
        "dtype": dtype,
        "batch_invariant": is_invariant,
        "record_s": round(record_s, 2),
    }
    if output is not None and rows:
        append_lines(output, [{**conditions, **asdict(row)} for row in rows])
    shown = [asdict(row) for row in rows]
    typer.echo(json.dumps({"machine": conditions, "correct": not faults, "differences": faults, "rows": shown}))
    if faults:
        typer.echo("\n".join([*faults, "no figures are reported"]), err=True)
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
