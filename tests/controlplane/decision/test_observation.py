"""A tick's windows as arrays: merged, censored, nothing counted twice or where it does not belong."""

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.decision.observation import Observation
from controlplane.step_columns import StepColumns
from controlplane.telemetry import MAX_K, CohortWindow, LatencyCell, LatencyHistogram, ProfileCell, StepCell, StepCount

NAMES = ("code", "chat")


def everything(seen: Observation) -> list[Any]:
    """As plain lists, to compare."""
    cells, e = seen.cells, seen.cells.evidence
    arrays = (
        cells.cohort, cells.load_bucket, cells.k, cells.is_shadow, cells.steps, cells.emitted, cells.emitted_squared,
        np.round(cells.seconds, 9), e.planned, e.drafted, e.reached, e.examined, np.round(e.accepted, 9), seen.tpot,
        np.round(seen.tpot_sum_s, 9), np.sort(seen.latency, axis=0), np.sort(seen.power, axis=0),
    )  # fmt: skip
    return [a.tolist() for a in arrays]


step_counts = st.tuples(st.integers(0, 16), st.integers(0, 16), st.booleans(), st.integers(0, 300)).map(
    lambda t: StepCount(t[0], min(t[1], t[0]), t[2], t[3])
)
cells = st.builds(
    lambda bucket, k, counts: StepCell(bucket, k, tuple(counts), 0.5),
    st.integers(0, 8),
    st.integers(0, 16),
    st.lists(step_counts, max_size=4),
)


def keyed(found: list[StepCell]) -> tuple[StepCell, ...]:
    """As a worker sends them: one cell for each load and K."""
    return tuple({(c.load_bucket, c.k): c for c in found}.values())


cohort_windows = st.builds(
    lambda name, real, shadow: CohortWindow(name, keyed(real), shadow=keyed(shadow)),
    st.sampled_from((*NAMES, "gone")),
    st.lists(cells, max_size=3),
    st.lists(cells, max_size=2),
)


@settings(max_examples=30, deadline=None)
@given(st.lists(cohort_windows, max_size=6), st.randoms(use_true_random=False))
def test_the_order_of_windows_changes_nothing(
    loop: Any, cohort_policy: Any, found: list[CohortWindow], rng: random.Random
) -> None:
    control = loop(cohort_policy())
    windows = [control.window(float(i + 1), [w], worker=f"w{i}") for i, w in enumerate(found)]
    shuffled = windows.copy()
    rng.shuffle(shuffled)
    assert everything(Observation.of(shuffled, NAMES)) == everything(Observation.of(windows, NAMES))


@settings(max_examples=30, deadline=None)
@given(st.lists(cohort_windows, max_size=5))
def test_windows_of_many_workers_say_what_one_window_of_all_would(
    loop: Any, cohort_policy: Any, found: list[CohortWindow]
) -> None:
    control = loop(cohort_policy())
    merged: dict[str, CohortWindow] = {}
    for w in found:
        merged[w.cohort] = merged[w.cohort].merge(w) if w.cohort in merged else w
    apart = Observation.of([control.window(1.0, [w]) for w in found], NAMES)
    together = Observation.of([control.window(1.0, tuple(merged.values()))], NAMES)
    assert everything(apart) == everything(together)


@settings(max_examples=20, deadline=None)
@given(st.lists(cohort_windows, max_size=3, unique_by=lambda w: w.cohort))
def test_columns_made_by_the_worker_say_the_same(loop: Any, cohort_policy: Any, found: list[CohortWindow]) -> None:
    plain = loop(cohort_policy()).window(1.0, found)
    with_columns = replace(plain, columns=StepColumns.of(plain.cohorts))
    assert everything(Observation.of([with_columns], NAMES)) == everything(Observation.of([plain], NAMES))


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 16), st.lists(step_counts, max_size=6))
def test_a_cell_counts_what_its_rows_say_one_by_one(observed: Any, k: int, rows: list[StepCount]) -> None:
    cells = observed(CohortWindow("code", (StepCell(3, k, tuple(rows), 0.5),))).cells
    steps = [row for row in rows for _ in range(row.steps)]
    e = cells.evidence
    for j in range(MAX_K):
        kept = sum(row.accepted > j for row in steps)
        examined = kept + sum(row.accepted == j and not row.ended and row.drafted > j for row in steps)
        could_have = sum(row.accepted == j and not row.ended for row in steps) if j < k else 0
        counts = [a[0, j] for a in (e.planned, e.drafted, e.reached, e.examined, e.accepted)]
        assert counts == [
            len(steps) * (j < k),
            sum(row.drafted > j for row in steps),
            max(kept + could_have, examined),
            examined,
            kept,
        ]
    tokens = [row.accepted + (not row.ended) for row in steps]
    assert (cells.steps.sum(), cells.emitted.sum()) == (len(steps), sum(tokens))
    assert cells.emitted_squared.sum() == sum(t * t for t in tokens)


def test_nothing_seen_is_an_observation_too() -> None:
    seen = Observation.of([], NAMES)
    assert (len(seen.cells.k), seen.latency.shape, seen.power.shape, seen.drafters) == (0, (0, 6), (0, 4), ())


def test_a_cohort_that_the_policy_does_not_name_is_left_out(observed: Any, window: Any) -> None:
    seen = observed(window([(2, 1, False, 9)], cohort="gone"), window([(2, 2, False, 5)]))
    assert (seen.cells.cohort.tolist(), seen.cells.steps.tolist()) == ([0], [5.0])


def test_its_latencies_are_left_out_too(observed: Any) -> None:
    seen = observed(CohortWindow("gone", tpot=LatencyHistogram().observe(0.02)))
    assert (seen.tpot.sum(), seen.tpot_sum_s.sum()) == (0, 0.0)


def shadowed(*shadow: StepCount, real: tuple[StepCount, ...] = ()) -> CohortWindow:
    return CohortWindow("code", (StepCell(0, 0, real, 1.0),) if real else (), shadow=(StepCell(0, 4, shadow, 7.0),))


def test_shadow_drafts_are_evidence(observed: Any) -> None:
    evidence = observed(shadowed(StepCount(4, 2, False, 10))).cells.evidence
    assert evidence.examined[0, :4].tolist() == [10, 10, 10, 0]
    assert evidence.accepted[0, :4].tolist() == [10, 10, 0, 0]


def test_shadow_drafts_are_neither_steps_nor_tokens_nor_time(observed: Any) -> None:
    seen = observed(shadowed(StepCount(4, 2, False, 10), real=(StepCount(0, 0, False, 25),)))
    for measured, real in (
        (seen.cells.steps, 25.0),
        (seen.cells.emitted, 25.0),
        (seen.cells.emitted_squared, 25.0),
        (seen.cells.seconds, 1.0),
    ):
        assert measured.sum() == real


def overlapped(overlap_steps: tuple[int, ...]) -> CohortWindow:
    cell = StepCell(0, 2, (StepCount(2, 0, False, 4), StepCount(2, 2, False, 6)), 1.0, (7.5, 4.25), overlap_steps)
    return CohortWindow("code", (cell,))


def test_overlap_mass_stands_in_for_the_outcomes(observed: Any) -> None:
    assert observed(overlapped((10, 6))).cells.evidence.accepted[0, :2].tolist() == [7.5, 4.25]


@pytest.mark.parametrize("overlap_steps", [(9, 6), (11, 6), (0, 6)])
def test_overlap_mass_of_some_of_the_steps_does_not(observed: Any, overlap_steps: tuple[int, ...]) -> None:
    """The kept would be the likely ones: only the mass of all of them is unbiased."""
    assert observed(overlapped(overlap_steps)).cells.evidence.accepted[0, :2].tolist() == [6.0, 4.25]


def test_overlap_mass_never_counts_more_than_was_examined(observed: Any) -> None:
    cell = StepCell(0, 1, (StepCount(1, 1, False, 4),), 1.0, (4.0000001,), (4,))
    assert observed(CohortWindow("code", (cell,))).cells.evidence.accepted[0, 0] == 4.0


def test_overlap_mass_of_two_windows_adds_up(loop: Any, cohort_policy: Any) -> None:
    control = loop(cohort_policy())
    windows = [control.window(1.0, [overlapped((10, 6))], worker=name) for name in ("a", "b")]
    assert Observation.of(windows, NAMES).cells.evidence.accepted[0, :2].tolist() == [15.0, 8.5]


@pytest.mark.parametrize(
    ("count", "planned", "drafted", "reached", "examined"),
    [
        ((0, 0, False, 5), [5, 5, 5], [0, 0, 0], [5, 0, 0], [0, 0, 0]),  # silent from the start
        ((1, 1, False, 5), [5, 5, 5], [5, 0, 0], [5, 5, 0], [5, 0, 0]),  # ran dry after one kept token
        ((1, 0, False, 5), [5, 5, 5], [5, 0, 0], [5, 0, 0], [5, 0, 0]),
        ((3, 3, False, 5), [5, 5, 5], [5, 5, 5], [5, 5, 5], [5, 5, 5]),
        ((3, 1, True, 5), [5, 5, 5], [5, 5, 5], [5, 0, 0], [5, 0, 0]),  # the text ended: nothing was offered after
    ],
)
def test_silence_is_told_apart_from_rejection(
    evidence: Any,
    count: tuple[int, int, bool, int],
    planned: list[int],
    drafted: list[int],
    reached: list[int],
    examined: list[int],
) -> None:
    seen = evidence(count, k=3)
    measured = [a[0, :3].tolist() for a in (seen.planned, seen.drafted, seen.reached, seen.examined)]
    assert measured == [planned, drafted, reached, examined]


def test_a_small_k_is_not_silence(evidence: Any) -> None:
    seen = evidence((1, 1, False, 5), k=1)
    assert (seen.planned[0, 1], seen.reached[0, 1]) == (0, 0)


def test_tokens_are_counted_with_the_extra_one_unless_the_text_ended(observed: Any, window: Any) -> None:
    seen = observed(window([(2, 1, False, 3), (2, 2, True, 5)]))
    assert (seen.cells.emitted[0], seen.cells.emitted_squared[0]) == (3 * 2 + 5 * 2, 3 * 4 + 5 * 4)


def test_latencies_profiles_power_and_drafters_are_gathered(loop: Any, cohort_policy: Any) -> None:
    control = loop(cohort_policy(), drafter="draft_model@aa")
    cell, measured = LatencyCell(4, 12, 3, 0.06, 900, 0.01), ProfileCell(4, 2, 64, 0.02, 0.004)
    seen = Observation.of([control.window(1.0, [], [measured], [cell], joules=25.0)], NAMES)
    assert seen.latency.tolist() == [list(cell)]
    assert seen.power.tolist() == [[1.0, 0.9, 0.0, 25.0]]
    assert (seen.profile, seen.drafters) == ((measured,), ("draft_model@aa",))


def test_a_window_without_an_energy_reading_is_not_one_of_nothing(loop: Any, cohort_policy: Any) -> None:
    assert Observation.of([loop(cohort_policy()).window(1.0, [])], NAMES).power.shape == (0, 4)
