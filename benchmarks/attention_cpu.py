"""`tree_attention` in C++ against PyTorch's own attention, on this CPU: `python -m benchmarks.attention_cpu`.

The other arm is what an engine does without block tables: queries gathered into a block a sequence, a mask, and one
scaled-dot-product call over contiguous slots. Both must agree before either is timed. They take turns over the caches
of several layers, as a model does, so that keys and values come from memory as they would there.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import torch
import typer
from torch.nn.functional import scaled_dot_product_attention

from benchmarks import decode
from benchmarks.decode_figures import Spread, append_lines, rotated
from kernels.attention import tree_attention

BLOCK_SIZE = 16
LAYER_BYTES = 3e8
"""Caches of all layers together, where 30 layers would hold more: several times what this CPU's own caches hold."""
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 2e-2}


@dataclass(frozen=True, slots=True)
class Shape:
    """sequences x rows each, behind `context` committed tokens."""

    sequences: int
    rows: int
    context: int
    q_heads: int = 9
    kv_heads: int = 3
    head_dim: int = 64
    dtype: str = "bfloat16"


@dataclass(frozen=True, slots=True)
class Figures:
    """Microseconds of one layer; ratio: of the two, round by round, above 1 where native is faster."""

    native_us: float
    native_us_min: float
    sdpa_us: float
    sdpa_us_min: float
    ratio: float
    ratio_min: float
    ratio_max: float


BATCHES = ((1, 1), (1, 8), (8, 1), (8, 5), (32, 1), (32, 5), (1, 128))
CONTEXTS = (128, 512, 2048)
MODELS: tuple[dict[str, Any], ...] = (
    {}, {"dtype": "float32"}, {"q_heads": 32, "kv_heads": 8, "head_dim": 128},
)  # fmt: skip


def shapes() -> list[Shape]:
    return [Shape(*batch, context, **model) for model in MODELS for batch in BATCHES for context in CONTEXTS]


class Arms:
    """Both implementations over the same numbers; a call goes through all layers."""

    def __init__(self, shape: Shape, max_layers: int = 30) -> None:
        dtype, batch, rows = getattr(torch, shape.dtype), shape.sequences, shape.rows
        self.shape = shape
        slots = -(-(shape.context + rows) // BLOCK_SIZE) * BLOCK_SIZE
        blocks = batch * slots // BLOCK_SIZE
        size = (blocks, BLOCK_SIZE, shape.kv_heads, shape.head_dim)
        layer_bytes = 2 * blocks * BLOCK_SIZE * shape.kv_heads * shape.head_dim * dtype.itemsize
        self.layers = max(2, min(max_layers, int(LAYER_BYTES / layer_bytes)))
        generator = torch.Generator().manual_seed(0)
        normal = functools.partial(torch.randn, generator=generator)
        self.query = normal(batch * rows, shape.q_heads, shape.head_dim).to(dtype)
        self.caches = [(normal(size).to(dtype), normal(size).to(dtype)) for _ in range(self.layers)]
        # Blocks in their order, so that the same memory is also one run of slots a sequence.
        self.tables = (
            torch.arange(blocks, dtype=torch.int32).view(batch, -1),
            torch.full((batch,), shape.context, dtype=torch.int32),
            torch.arange(0, batch * rows + 1, rows, dtype=torch.int32),
        )
        # Query blocks of a power of two, as the contiguous arm needs them for equal sums in every batch.
        self.block = max(4, 1 << (rows - 1).bit_length())
        self.places = torch.tensor([b * self.block + r for b in range(batch) for r in range(rows)])
        last = shape.context + torch.arange(self.block)
        self.mask = (torch.arange(slots) <= last[:, None]).expand(batch, 1, self.block, slots)

    def native(self) -> torch.Tensor:
        rows, context = self.shape.rows, self.shape.context
        for caches in self.caches:
            out = tree_attention(
                self.query, *caches, *self.tables, max_rows=rows, max_context=context, backend="native"
            )  # fmt: skip
        return out

    def sdpa(self) -> torch.Tensor:
        batch, _, heads, head_dim = self.shape.sequences, self.block, self.shape.q_heads, self.shape.head_dim
        for caches in self.caches:
            keys, values = (c.view(batch, -1, self.shape.kv_heads, head_dim).transpose(1, 2) for c in caches)
            blocks = self.query.new_zeros(batch * self.block, heads, head_dim)
            blocks.index_copy_(0, self.places, self.query)
            query = blocks.view(batch, self.block, heads, head_dim).transpose(1, 2)
            attended = scaled_dot_product_attention(query, keys, values, attn_mask=self.mask, enable_gqa=True)
            out = attended.transpose(1, 2).reshape(-1, heads, head_dim).index_select(0, self.places)
        return out


def measured(arms: Arms, rounds: int) -> Figures:
    """Medians over `rounds` turns of each. Raises ValueError where the two disagree."""
    native, sdpa = arms.native(), arms.sdpa()
    if not torch.allclose(native.float(), sdpa.float(), rtol=0.0, atol=TOLERANCE[native.dtype]):
        raise ValueError(f"{arms.shape}: native is off by {float((native.float() - sdpa.float()).abs().max()):.3g}")
    calls: dict[str, Callable[[], torch.Tensor]] = {"native": arms.native, "sdpa": arms.sdpa}
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(rounds):
        for name in rotated(tuple(calls), turn):
            begun = time.perf_counter()
            calls[name]()
            times[name].append((time.perf_counter() - begun) / arms.layers * 1e6)
    ratio = Spread.of([b / a for a, b in zip(times["native"], times["sdpa"], strict=True)])
    of = {name: (round(median(t), 1), round(min(t), 1)) for name, t in times.items()}
    return Figures(*of["native"], *of["sdpa"], *(round(x, 2) for x in (ratio.median, ratio.min, ratio.max)))


def main(
    rounds: Annotated[int, typer.Option(min=2, help="Times that both take their turn.")] = 20,
    threads: Annotated[int, typer.Option(min=1, help="Threads of PyTorch.")] = 2,
    output: Annotated[Path | None, typer.Option(help="Rows are appended to this CSV.")] = None,
) -> None:
    """Time native attention against PyTorch's over contiguous slots; exits with 1 where it is slower or wrong."""
    torch.set_num_threads(threads)
    conditions = {"date": datetime.now(UTC).date().isoformat(), **machine(threads)}
    slower = 0
    for shape in shapes():
        figures = measured(Arms(shape), rounds)
        slower += figures.ratio < 1
        line = {**conditions, **asdict(shape), **asdict(figures)}
        typer.echo(" ".join(str(value) for value in (asdict(shape) | asdict(figures)).values()))
        if output is not None:
            append_lines(output, [line])
    raise typer.Exit(1 if slower else 0)


def machine(threads: int) -> dict[str, Any]:
    """What the figures were measured on."""
    said = decode.machine(threads)
    names = ("cpu", "cores", "threads", "omp_wait_policy")
    return {name: said[name] for name in names} | {"load": round(os.getloadavg()[0], 1), "torch": said["torch"]}


if __name__ == "__main__":
    typer.run(main)
