"""Step times: from a worker's profile, corrected by what its steps took."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.decision.latency import LOADS, StepTimes, rising, uniform_seconds
from controlplane.telemetry import MAX_K, LatencyCell, ProfileCell

AT = {int(load): i for i, load in enumerate(LOADS)}
KS = (0, 1, 2, 4, 8)


def step_s(n: int, k: int) -> float:
    """20 ms, 0.1 ms a position, and an offset for any draft at all."""
    return 0.020 + 1e-4 * n * (k + 1) + (0.003 if k else 0.0)


def draft_s(n: int, k: int) -> float:
    return 0.001 * k


def profiled(
    loads: Sequence[int] = (1, 2, 4, 8, 16),
    ks: Sequence[int] = KS,
    *,
    verify: Callable[[int, int], float] = step_s,
    draft: Callable[[int, int], float] = draft_s,
    context: int = 64,
) -> list[ProfileCell]:
    return [ProfileCell(n, k, context, verify(n, k) + draft(n, k), draft(n, k)) for n in loads for k in ks]


def times_of(profile: Sequence[ProfileCell]) -> StepTimes:
    times = StepTimes.of(profile)
    assert times is not None
    return times


def latency(*cells: LatencyCell) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    return np.array(cells, np.float64).reshape(-1, 6)


def measured(n: int, k: int, steps: int, ratio: float = 1.0, context: int = 0) -> LatencyCell:
    """Steps that took `ratio` times what was profiled."""
    return LatencyCell(n, n * (k + 1), steps, ratio * steps * (step_s(n, k) + draft_s(n, k)), context * n * steps)


@pytest.mark.parametrize(("n", "k"), [(1, 0), (1, 1), (4, 4), (16, 8)])
def test_a_profiled_size_takes_what_was_measured(n: int, k: int) -> None:
    times = times_of(profiled())
    assert times.verifying[AT[n], k] == pytest.approx(step_s(n, k))
    assert times.drafting[AT[n], k] == pytest.approx(draft_s(n, k))


@pytest.mark.parametrize(("n", "k"), [(3, 4), (12, 3), (32, 4), (256, 0), (16, 12), (64, 16)])
def test_sizes_between_and_beyond_are_read_off_straight_lines(n: int, k: int) -> None:
    assert times_of(profiled()).verifying[AT[n], k] == pytest.approx(step_s(n, k))


def test_the_step_from_no_draft_to_one_is_measured_and_not_extrapolated() -> None:
    """A line through K = 1, 2, 4, 8 would miss K = 0 by the offset of 3 ms."""
    verify = times_of(profiled()).verifying[AT[1]]
    assert verify[1] - verify[0] == pytest.approx(0.0031)


def test_the_first_draft_token_is_not_read_off_a_line_from_no_draft() -> None:
    verify = times_of(profiled(ks=(0, 2, 4))).verifying[AT[1]]
    assert verify[1] == pytest.approx(step_s(1, 2))


def test_no_draft_costs_no_drafting() -> None:
    drafting = times_of(profiled(draft=lambda n, k: 0.005 + 0.001 * k if k else 0.0)).drafting
    assert (drafting[:, 0] == 0.0).all()


@pytest.mark.parametrize("ks", [(0, 1, 2, 4), (0, 2, 4, 8)])
@pytest.mark.parametrize("start", [0.0, 0.005])
def test_drafting_has_a_start_and_passes(ks: tuple[int, ...], start: float) -> None:
    times = times_of(profiled(ks=ks, draft=lambda n, k: start + 0.001 * k if k else 0.0))
    assert times.starting == pytest.approx(np.full(len(LOADS), start), abs=1e-9)
    assert times.drafting[AT[4], 3] == pytest.approx(start + 0.003)


@pytest.mark.parametrize("ks", [(), (4,), (0,)])
def test_a_profile_of_a_single_k_tells_nothing(ks: tuple[int, ...]) -> None:
    assert StepTimes.of(profiled(ks=ks)) is None


def test_several_workers_profiles_count_by_their_median() -> None:
    slow = profiled(verify=lambda n, k: 9 * step_s(n, k))
    times = times_of([*slow, *profiled(), *profiled(verify=lambda n, k: 1.01 * step_s(n, k))])
    assert times.verifying[AT[4], 2] == pytest.approx(1.01 * step_s(4, 2), rel=0.02)


def test_the_order_of_a_profile_changes_nothing() -> None:
    cells = [*profiled(), *profiled(verify=lambda n, k: 1.3 * step_s(n, k), context=512), *profiled(context=512)]
    one, other = times_of(cells), times_of(cells[::-1])
    assert one.context_s == other.context_s
    assert one.verifying.tolist() == other.verifying.tolist()


@pytest.mark.parametrize(
    ("row", "nearest"),
    [
        ([1.0, 2.0, 3.0], [1.0, 2.0, 3.0]),
        ([1.0, 3.0, 2.0, 4.0], [1.0, 2.5, 2.5, 4.0]),
        ([3.0, 2.0, 1.0], [2.0, 2.0, 2.0]),
        ([5.0, 1.0, 1.0, 9.0], [7 / 3, 7 / 3, 7 / 3, 9.0]),
    ],
)
def test_noise_that_makes_time_fall_is_pooled_away(row: list[float], nearest: list[float]) -> None:
    assert rising(np.array([row]))[0] == pytest.approx(nearest)


def test_what_steps_took_outweighs_what_was_only_profiled() -> None:
    """K = 1 turned out twice as slow: the deeper ones, never tried, cannot be quicker than it."""
    times = times_of(profiled(loads=(4,)))
    for _ in range(20):
        times = times.correct(latency(measured(4, 1, 20, ratio=2.0), measured(4, 0, 200)))
    verify = times.verifying[AT[4]]
    assert verify[1] >= 0.8 * 2.0 * step_s(4, 1)
    assert verify[0] == pytest.approx(step_s(4, 0), rel=0.15)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(0.001, 1.0), min_size=len(KS), max_size=len(KS)))
def test_more_positions_never_take_less_time(seconds: list[float]) -> None:
    noise = dict(zip(KS, seconds, strict=True))
    times = times_of(profiled(loads=(1, 4), verify=lambda n, k: noise[k]))
    assert (np.diff(times.verifying, axis=1) >= 0).all()
    assert (times.verifying > 0).all()


# Corrections


def test_nothing_measured_corrects_nothing() -> None:
    times = times_of(profiled())
    assert times.correct(latency()) is times


def test_steps_as_profiled_correct_nothing() -> None:
    times = times_of(profiled())
    after = times.correct(latency(measured(4, 2, 500), measured(8, 4, 500)))
    assert after.verifying == pytest.approx(times.verifying)


def test_a_machine_that_slows_down_slows_every_size() -> None:
    times = times_of(profiled())
    after = times.correct(latency(measured(4, 2, 2000, ratio=2.0)))
    assert after.correction == pytest.approx(np.full_like(after.ratio, 2.0), rel=0.05)


def test_a_size_that_is_slower_than_profiled_is_corrected_alone() -> None:
    times = times_of(profiled())
    for _ in range(20):
        times = times.correct(latency(measured(8, 4, 50, ratio=2.0), measured(8, 0, 50), measured(4, 4, 50)))
    assert times.correction[AT[8], 4] == pytest.approx(2.0, rel=0.1)
    assert times.correction[AT[8], 0] == pytest.approx(1.0, rel=0.2)
    assert times.correction[AT[4], 4] == pytest.approx(1.0, rel=0.2)


def test_a_size_never_seen_is_corrected_as_the_rest_is() -> None:
    times = times_of(profiled()).correct(latency(measured(4, 2, 2000, ratio=1.5)))
    assert times.correction[AT[64], 8] == pytest.approx(1.5, rel=0.05)


def test_a_correction_fades_with_newer_steps() -> None:
    times = times_of(profiled()).correct(latency(measured(4, 2, 2000, ratio=3.0)))
    for _ in range(40):
        times = times.correct(latency(measured(4, 2, 100)))
    assert times.correction[AT[4], 2] == pytest.approx(1.0, rel=0.02)


def test_a_size_that_turns_out_dear_does_not_make_the_others_dear() -> None:
    """Else K = 0 would seem as dear as the K that is too deep, and the way back closed."""
    times = times_of(profiled())
    for _ in range(6):
        times = times.correct(latency(measured(8, 2, 10)))
    for _ in range(30):
        times = times.correct(latency(measured(8, 8, 10, ratio=2.0)))
    assert times.correction[AT[8], 8] == pytest.approx(2.0, rel=0.1)
    assert times.correction[AT[8], 2] < 1.2
    assert times.correction[AT[8], 0] < 1.6


def known(*sizes: tuple[int, int]) -> StepTimes:
    """Sizes that took what was profiled, for a while each."""
    times = times_of(profiled())
    for n, k in sizes:
        for _ in range(40):
            times = times.correct(latency(measured(n, k, 10)))
    return times


def test_a_machine_that_grows_slow_at_a_known_size_is_believed_slow_at_others() -> None:
    times = known((8, 2))
    for _ in range(40):
        times = times.correct(latency(measured(8, 2, 10, ratio=1.5)))
    assert times.correction[AT[8], [2, 8]] == pytest.approx(1.5, rel=0.05)


@pytest.mark.parametrize("ratio", [0.7, 1.5])
@pytest.mark.parametrize("seconds", [1, 5, 30])
def test_sizes_stay_as_far_apart_as_they_were_while_one_alone_meets_another_pace(ratio: float, seconds: int) -> None:
    times = known((8, 8), (8, 2))
    for _ in range(seconds):
        times = times.correct(latency(measured(8, 2, 30, ratio=ratio)))
    assert times.correction[AT[8], 8] / times.correction[AT[8], 2] == pytest.approx(1.0, rel=0.1)


def test_a_size_that_was_never_tried_is_not_believed_as_dear_as_the_one_that_is() -> None:
    """Else a profile in which drafts are too cheap would never be found out, as without drafts nothing is tried."""
    times = times_of(profiled())
    for _ in range(60):
        times = times.correct(latency(measured(8, 2, 20, ratio=1.5)))
    assert times.correction[AT[8], 0] < 0.95 * times.correction[AT[8], 2]


def test_a_known_size_that_becomes_dear_by_itself_is_told_from_a_slow_machine_by_the_others() -> None:
    times = known((8, 8), (8, 2))
    for _ in range(60):
        times = times.correct(latency(measured(8, 2, 15), measured(8, 8, 15, ratio=1.3)))
    assert times.correction[AT[8], 8] / times.correction[AT[8], 2] == pytest.approx(1.3, rel=0.05)


def test_steps_in_which_few_sequences_had_drafts_say_nothing_of_plain_ones() -> None:
    """Eight sequences of which three drafted one token: the jump to verifying drafts was paid."""
    times = times_of(profiled()).correct(latency(LatencyCell(8, 11, 400, 400 * 0.1)))
    assert times.weight[AT[8], 0] == 0.0
    assert times.weight[AT[8], 1] > 0.0


def test_a_silent_drafter_pays_the_jump_to_drafts_only_where_some_sequence_has_one() -> None:
    """Half of the sequences have no draft: one alone pays half of the jump, sixteen nearly all of it."""
    jump = np.array([0.020, *(0.030 + 0.001 * k for k in range(1, MAX_K + 1))])
    table = np.tile(jump, (len(LOADS), 1))
    grid = np.ones_like(table)
    times = StepTimes(table, np.zeros_like(table), grid, np.zeros_like(grid))
    positions = 1.0 + np.concatenate([[0.0], np.full(MAX_K, 0.5).cumsum()])[None, :]
    seconds = uniform_seconds(times, positions)[0]
    assert seconds[0, 2] == pytest.approx(0.5 * 0.020 + 0.5 * 0.032)
    assert seconds[4, 2] == pytest.approx(0.030 + 0.001, abs=1e-5)


@pytest.mark.parametrize("cell", [LatencyCell(0, 0, 5, 1.0), LatencyCell(4, 12, 0, 0.0)])
def test_cells_without_sequences_or_steps_say_nothing(cell: LatencyCell) -> None:
    times = times_of(profiled())
    assert times.correct(latency(cell)) is times


@pytest.mark.parametrize("order", [1, -1])
def test_cells_of_a_tick_may_come_in_any_order(order: int) -> None:
    cells = [measured(4, 2, 30, ratio=2.0), measured(4, 2, 60), measured(8, 0, 10, ratio=1.5)]
    forward, turned = (
        times_of(profiled()).correct(latency(*cells)),
        times_of(profiled()).correct(latency(*cells[::order])),
    )
    assert turned.correction == pytest.approx(forward.correction)


# Context

LONG = profiled(verify=lambda n, k: step_s(n, k) + 1e-6 * n * 448, context=512)


def test_the_price_of_context_is_the_slope_between_two_profiled_contexts() -> None:
    assert times_of([*profiled(), *LONG]).context_s == pytest.approx(1e-6)


def test_a_single_context_tells_no_price() -> None:
    assert times_of(profiled()).context_s == 0.0


def test_longer_contexts_make_steps_longer() -> None:
    times = times_of([*profiled(), *LONG])
    seconds = 2000 * (step_s(4, 2) + draft_s(4, 2) + 4 * 1e-6 * (10_000 - 64))
    after = times.correct(latency(LatencyCell(4, 12, 2000, seconds, 2000 * 4 * 10_000)))
    assert after.verifying[AT[4], 2] == pytest.approx(step_s(4, 2) + 4 * 1e-6 * (10_000 - 64), rel=0.02)
    assert after.correction == pytest.approx(np.ones_like(after.ratio), rel=0.02)


def test_contexts_longer_than_profiled_are_not_taken_for_a_slower_machine() -> None:
    times = times_of([*profiled(), *LONG])
    seconds = 2000 * (step_s(4, 2) + draft_s(4, 2) + 4 * 1e-6 * (10_000 - 64))
    after = times.correct(latency(LatencyCell(4, 12, 2000, seconds, 2000 * 4 * 10_000)))
    assert after.common_ratio == pytest.approx(1.0, abs=0.01)


def test_the_grid_reaches_every_rung() -> None:
    assert times_of(profiled()).verifying.shape == (len(LOADS), MAX_K + 1)


def test_one_measured_k_beside_zero_does_not_make_every_draft_cost_the_same() -> None:
    """What a profile of a few seconds has on a slow device: the deepest rung, and none."""
    times = StepTimes.of(
        [ProfileCell(n, k, 128, s, 0.0) for n, k, s in ((1, 0, 0.05), (1, 8, 0.06), (8, 0, 0.06), (8, 8, 0.18))]
    )
    assert times is not None
    at_eight = times.verifying[LOADS.tolist().index(8.0)]
    assert at_eight[[0, 4, 8]].tolist() == pytest.approx([0.06, 0.12, 0.18])
