"""The numpy form of a window's cells says what the cells say."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.step_columns import StepColumns
from controlplane.telemetry import (
    LATENCY_BOUNDS_S,
    MAX_K,
    CohortWindow,
    LatencyHistogram,
    RankCount,
    StepCell,
    StepCount,
)

step_counts = st.tuples(st.integers(0, 16), st.integers(0, 16), st.booleans(), st.integers(0, 300)).map(
    lambda t: StepCount(t[0], min(t[1], t[0]), t[2], t[3])
)
cells = st.builds(
    lambda bucket, k, counts, seconds, overlap, propensity: StepCell(
        bucket, k, tuple(counts), seconds, tuple(overlap), tuple(range(len(overlap))), tuple(propensity)
    ),
    st.integers(0, 8),
    st.integers(0, MAX_K),
    st.lists(step_counts, max_size=4),
    st.floats(0, 9),
    st.lists(st.floats(0, 5), max_size=MAX_K),
    st.lists(st.floats(0.1, 1), max_size=MAX_K),
)
histograms = st.lists(st.floats(0, 40), max_size=5).map(
    lambda values: LatencyHistogram().observe(values[0]) if values else LatencyHistogram()
)
cohorts = st.lists(st.tuples(st.lists(cells, max_size=3), st.lists(cells, max_size=2), histograms), max_size=4).map(
    lambda rows: tuple(
        CohortWindow(f"c{i}", tuple(real), shadow=tuple(shadow), tpot=tpot)
        for i, (real, shadow, tpot) in enumerate(rows)
    )
)


def read_back(columns: StepColumns) -> tuple[CohortWindow, ...]:
    """The cells again, from the columns alone."""
    out: dict[int, dict[bool, list[StepCell]]] = {i: {False: [], True: []} for i in range(len(columns.cohorts))}
    for c in range(len(columns.k)):
        rows = np.flatnonzero(columns.row_cell == c)
        counts = tuple(
            StepCount(int(columns.drafted[r]), int(columns.accepted[r]), bool(columns.ended[r]), int(columns.steps[r]))
            for r in rows
        )
        cell = StepCell(
            int(columns.load_bucket[c]), int(columns.k[c]), counts, float(columns.step_seconds[c]),
            tuple(columns.overlap[c].tolist()), tuple(columns.overlap_steps[c].tolist()),
            tuple(columns.propensity[c].tolist()),
        )  # fmt: skip
        out[int(columns.cohort[c])][bool(columns.is_shadow[c])].append(cell)
    return tuple(
        CohortWindow(
            name, tuple(out[i][False]), shadow=tuple(out[i][True]),
            tpot=LatencyHistogram(tuple(columns.tpot[i].tolist()), float(columns.tpot_sum_s[i])),
        )
        for i, name in enumerate(columns.cohorts)
    )  # fmt: skip


def widened(windows: tuple[CohortWindow, ...]) -> tuple[CohortWindow, ...]:
    """With every overlap and propensity as wide as the widest: that is all that the columns add."""
    reach = max((len(c.propensity) for w in windows for c in (*w.cells, *w.shadow)), default=0)
    width = max((len(c.overlap) for w in windows for c in (*w.cells, *w.shadow)), default=0)

    def wide(cell: StepCell) -> StepCell:
        rest = width - len(cell.overlap)
        return StepCell(
            cell.load_bucket, cell.k, cell.counts, cell.step_seconds,
            (*cell.overlap, *(0.0,) * rest), (*cell.overlap_steps, *(0,) * rest),
            (*cell.propensity, *(1.0,) * (reach - len(cell.propensity))),
        )  # fmt: skip

    return tuple(
        CohortWindow(w.cohort, tuple(map(wide, w.cells)), shadow=tuple(map(wide, w.shadow)), tpot=w.tpot)
        for w in windows
    )


@settings(max_examples=40, deadline=None)
@given(cohorts)
def test_the_cells_can_be_read_back_from_the_columns(windows: tuple[CohortWindow, ...]) -> None:
    assert read_back(StepColumns.of(windows)) == widened(windows)


def test_a_window_without_cohorts_has_empty_columns_of_the_right_shapes() -> None:
    columns = StepColumns.of(())
    assert columns.cohorts == ()
    assert columns.overlap.shape == (0, 0)
    assert columns.tpot.shape == (0, len(LATENCY_BOUNDS_S) + 1)


@pytest.mark.parametrize("extra", [0, 3])
def test_overlap_beyond_the_deepest_rung_is_left_out(extra: int) -> None:
    cell = StepCell(0, 16, (), 1.0, (0.5,) * (MAX_K + extra), (1,) * (MAX_K + extra))
    assert StepColumns.of([CohortWindow("code", (cell,))]).overlap.shape == (1, MAX_K)


def test_ranks_of_all_cohorts_are_gathered() -> None:
    windows = [
        CohortWindow(name, (StepCell(0, 2, (), 0.0, tree=(-1, -1), ranks=(RankCount(0, rank, 9, 4),)),))
        for rank, name in enumerate(("code", "chat"))
    ]
    columns = StepColumns.of(windows)
    assert columns.ranks == (RankCount(0, 0, 9, 4), RankCount(0, 1, 9, 4))
    assert (columns.is_tree.tolist(), columns.trees) == ([True, True], ((2, (-1, -1)),))
