"""Decode steps recorded once for each shape and replayed: a GPU then starts one graph, not hundreds of kernels.

A shape is a number of sequences and a K; K = 0 is one like the others, of one row a sequence. A recorded step reads
tables that stay where they are, so each step's are padded to the shape's. What pads them are sequences of their own,
in the block that nobody reads: to the kernels they are rows like all others, and no row depends on another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple, Protocol

import torch

from kernels.attention.ancestors import words_for
from workers.kv_cache import NULL_BLOCK, blocks_for
from workers.late_tokens import LateTokens
from workers.step_layout import Bounds, Rows, StepLayout, lay_out, padding
from workers.upload import Packing

WARM_UPS = 2
"""Runs before a recording: kernels are compiled, and libraries take their scratch memory, in the first."""


class StepShape(NamedTuple):
    """Up to `sequences` of them, with up to `k` draft tokens each."""

    sequences: int
    k: int

    @property
    def rows(self) -> int:
        """That are computed, whatever there is to compute."""
        rows = self.sequences * (self.k + 1)
        return rows + padding(rows)

    @property
    def seats(self) -> int:
        """Sequences in the tables: besides the real ones as many as hold what is left of the rows, k + 1 each.

        The most are needed where all real ones are there and none has drafts.
        """
        return self.sequences + -(-(self.rows - self.sequences) // (self.k + 1))


def step_shapes(rungs: Iterable[int], max_sequences: int) -> tuple[StepShape, ...]:
    """Every K of `rungs`, and 0, at 1, 2, 4, ... and `max_sequences` sequences; those with the fewest rows first."""
    counts = {max_sequences, *(1 << i for i in range(max_sequences.bit_length()) if 1 << i <= max_sequences)}
    shapes = (StepShape(n, k) for n, k in product(counts, {0, *rungs}))
    return tuple(sorted(shapes, key=lambda shape: (shape.rows, shape)))


def padded(rows: Sequence[Rows], shape: StepShape) -> list[Rows]:
    """`rows`, which fit the shape, and sequences behind them: all its seats are taken, and it has all its rows."""
    left = shape.rows - sum(len(r.token_ids) for r in rows)
    filled = list(rows)
    for _ in range(shape.seats - len(rows)):
        n = min(left, shape.k + 1)
        filled.append(Rows([NULL_BLOCK] * blocks_for(n), 0, [0] * n))
        left -= n
    return filled


class Recorder(Protocol):
    """How a function that reads and writes tensors which stay where they are is made repeatable."""

    def record(self, compute: Callable[[], None]) -> Callable[[], Any]:
        """Run `compute`, and return what does the same again. Raises RuntimeError where it cannot be recorded."""
        ...


class GraphFree:
    """Nothing is recorded, the function is called again: for a device without graphs, and to compare with."""

    def record(self, compute: Callable[[], None]) -> Callable[[], Any]:
        compute()
        return compute


class CudaGraphs:
    """CUDA graphs (HIP's on ROCm) over one pool of memory: recordings run one after the other and may share it."""

    def __init__(self) -> None:
        self._pool: Any = torch.cuda.graph_pool_handle()

    def record(self, compute: Callable[[], None]) -> Callable[[], Any]:
        beside = torch.cuda.Stream()
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):
            for _ in range(WARM_UPS):
                compute()
        torch.cuda.current_stream().wait_stream(beside)
        graph = torch.cuda.CUDAGraph()
        # Other threads may use the device meanwhile.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            compute()
        return graph.replay


@dataclass(frozen=True, slots=True)
class _Recording:
    """packing, tables: of its inputs [bytes] uint8 on the device; layout: over these. bounds: they were made for."""

    packing: Packing
    tables: torch.Tensor
    layout: StepLayout
    bounds: Bounds
    replay: Callable[[], Any]


class StepGraphs:
    """The steps of one model, recorded.

    compute: a step by its tables, on the device: logits of all rows, and features of all rows or None. context: tokens
    that a sequence may have. trees: whether rows may be trees; else their masks cost nothing.
    """

    def __init__(
        self,
        shapes: Iterable[StepShape],
        compute: Callable[[StepLayout], tuple[torch.Tensor, torch.Tensor | None]],
        context: int,
        trees: bool,
        device: torch.device,
        recorder: Recorder,
    ) -> None:
        self._compute, self._context, self._device = compute, context, device
        self._outputs: tuple[torch.Tensor, torch.Tensor | None] | None = None
        self._recordings: dict[StepShape, _Recording] = {}
        # The largest first: its results have room for all others', and so has the memory of its recording.
        for shape in sorted(shapes, key=lambda shape: (-shape.rows, shape)):
            self._recordings[shape] = self._record(shape, trees, recorder)
        self._shapes = tuple(sorted(self._recordings, key=lambda shape: (shape.rows, shape)))

    @property
    def shapes(self) -> tuple[StepShape, ...]:
        """Those with the fewest rows first."""
        return self._shapes

    def rows_for(self, sequences: int, k: int) -> int | None:
        """Rows that a step of so many sequences, the deepest with k draft tokens, computes; None: no shape fits."""
        return next((shape.rows for shape in self._fitting(sequences, k)), None)

    def _fitting(self, sequences: int, k: int) -> Iterator[StepShape]:
        """Those with the fewest rows first."""
        return (shape for shape in self._shapes if shape.sequences >= sequences and shape.k >= k)

    def fit(self, rows: Sequence[Rows], keep: Sequence[int]) -> StepShape | None:
        """The shape with the fewest rows that `rows` fit into; None where none was recorded, or not all are kept."""
        longest, most = max(len(r.token_ids) for r in rows), self._shapes[-1]
        if longest > most.rows or len(keep) != sum(len(r.token_ids) for r in rows):
            return None
        if any(r.start + len(r.token_ids) > self._context for r in rows):
            return None
        has_tree = any(r.parents is not None for r in rows)
        fitting = self._fitting(len(rows), longest - 1)
        return next((s for s in fitting if self._recordings[s].bounds.words or not has_tree), None)

    def run(
        self, rows: Sequence[Rows], shape: StepShape, late: LateTokens | None = None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Compute `rows` by the recording of a shape that they fit; copies of what it gave of them. late: of rows."""
        recording = self._recordings[shape]
        tables = lay_out(padded(rows, shape), range(shape.rows), None, recording.bounds).tables
        recording.tables.copy_(recording.packing.filled(tables, self._device), non_blocking=True)
        recording.layout.put(late)
        recording.replay()
        assert self._outputs is not None
        logits, features = self._outputs
        n = sum(len(r.token_ids) for r in rows)
        # Copies: the next replay writes to the same place, and a drafter keeps the logits of several.
        return logits[:n].clone(), None if features is None else features[:n].clone()

    def _record(self, shape: StepShape, trees: bool, recorder: Recorder) -> _Recording:
        words = words_for(shape.k + 1) if trees and shape.k else 0
        bounds = Bounds(blocks_for(self._context), shape.k + 1, self._context, words)
        layout = lay_out(padded([], shape), range(shape.rows), None, bounds)
        packing = Packing.of(layout.tables)
        tables = packing.filled(layout.tables, self._device).to(self._device)
        layout = layout.with_tables(packing.views(tables))
        if self._outputs is None:
            logits, features = self._compute(layout)
            self._outputs = logits.clone(), None if features is None else features.clone()
        outputs = self._outputs

        def compute() -> None:
            for out, found in zip(outputs, self._compute(layout), strict=True):
                if out is not None and found is not None:
                    out[: shape.rows].copy_(found)

        return _Recording(packing, tables, layout, bounds, recorder.record(compute))
