"""The cells of a window's cohorts as arrays: what the controller computes on when there are very many of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from controlplane.telemetry import LATENCY_BOUNDS_S, MAX_K, CohortWindow, RankCount, StepCell

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

_BINS = len(LATENCY_BOUNDS_S) + 1


@dataclass(frozen=True, slots=True, eq=False)
class StepColumns:
    """One window's cells, row by row and cell by cell; `cohorts` names what the cohort indices mean.

    Rows [rows] i64, one per distinct count of a cell: cell (index into the cells), drafted, accepted, steps, and ended
    (bool). Cells [cells] i64: cohort, load_bucket, k (the planned K), and step_seconds (f64), is_shadow (bool);
    overlap f64, overlap_steps i64, propensity f64 [cells, width], as wide as the deepest cell that has any. Latencies
    by cohort: tpot [cohorts, bins] i64 of LATENCY_BOUNDS_S and tpot_sum_s [cohorts] f64.
    is_tree [cells] bool: whether token trees were verified, whose drafted tokens are nodes; ranks: of all cohorts, what
    became of these; trees: (planned K, parents), each once.
    """

    cohorts: tuple[str, ...]
    row_cell: Ints
    drafted: Ints
    accepted: Ints
    ended: Flags
    steps: Ints
    cohort: Ints
    load_bucket: Ints
    k: Ints
    step_seconds: Floats
    is_shadow: Flags
    overlap: Floats
    overlap_steps: Ints
    propensity: Floats
    tpot: Ints
    tpot_sum_s: Floats
    is_tree: Flags
    ranks: tuple[RankCount, ...] = ()
    trees: tuple[tuple[int, tuple[int, ...]], ...] = ()

    @classmethod
    def of(cls, cohorts: Iterable[CohortWindow]) -> StepColumns:
        """Of a window's cohorts, in their order. Positions from MAX_K on are left out of the overlap."""
        windows = tuple(cohorts)
        cells: list[tuple[int, StepCell, bool]] = [
            (index, cell, is_shadow)
            for index, window in enumerate(windows)
            for is_shadow, group in ((False, window.cells), (True, window.shadow))
            for cell in group
        ]
        rows = np.array(
            [(index, *count) for index, (_, cell, _) in enumerate(cells) for count in cell.counts], np.int64
        ).reshape(-1, 5)
        width = max((min(len(cell.overlap), MAX_K) for _, cell, _ in cells), default=0)
        overlap, overlap_steps = np.zeros((len(cells), width)), np.zeros((len(cells), width), np.int64)
        reach = max((min(len(cell.propensity), MAX_K) for _, cell, _ in cells), default=0)
        propensity = np.ones((len(cells), reach))
        for index, (_, cell, _) in enumerate(cells):
            propensity[index, : min(len(cell.propensity), reach)] = cell.propensity[:reach]
            own = min(len(cell.overlap), width)
            overlap[index, :own], overlap_steps[index, :own] = cell.overlap[:own], cell.overlap_steps[:own]
        return cls(
            cohorts=tuple(window.cohort for window in windows),
            row_cell=rows[:, 0],
            drafted=rows[:, 1],
            accepted=rows[:, 2],
            ended=rows[:, 3].astype(np.bool_),
            steps=rows[:, 4],
            cohort=_ints(index for index, _, _ in cells),
            load_bucket=_ints(cell.load_bucket for _, cell, _ in cells),
            k=_ints(cell.k for _, cell, _ in cells),
            step_seconds=np.array([cell.step_seconds for _, cell, _ in cells], np.float64),
            is_shadow=np.array([is_shadow for _, _, is_shadow in cells], np.bool_),
            overlap=overlap,
            overlap_steps=overlap_steps,
            propensity=propensity,
            tpot=np.array([window.tpot.counts for window in windows], np.int64).reshape(-1, _BINS),
            tpot_sum_s=np.array([window.tpot.sum_s for window in windows], np.float64),
            is_tree=np.array([bool(cell.tree) for _, cell, _ in cells], np.bool_),
            ranks=tuple(count for _, cell, _ in cells for count in cell.ranks),
            trees=tuple(sorted({(cell.k, cell.tree) for _, cell, _ in cells if cell.tree})),
        )


def _ints(values: Iterable[Any]) -> Ints:
    return np.fromiter(values, np.int64)
