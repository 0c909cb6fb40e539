"""The profile's figures are those of real steps, it keeps to its time, and it leaves nothing behind."""

from __future__ import annotations

import time
from collections import Counter
from types import SimpleNamespace

import pytest
import structlog

from workers.latency_profile import RESEND_S, ROUNDS_LEAST, ROUNDS_MOST, LatencyProfile, StepSize, StepTime, step_sizes
from workers.model_runner import ModelRunner
from workers.proposers.base import NoFeatures, Proposal

RUNGS = (0, 1, 2, 4, 8)
SMALL = (StepSize(1, 0, 16), StepSize(1, 4, 16), StepSize(2, 2, 32))


@pytest.fixture(autouse=True)
def quiet():
    with structlog.testing.capture_logs() as captured:
        yield captured


class Machine:
    """Steps whose times are scripted by size: `seconds(size, nth)`."""

    def __init__(self, seconds, drafted=lambda size: size.sequences * size.k):
        self.now, self.ran = 0.0, Counter()
        self.order = []
        self._seconds, self._drafted = seconds, drafted

    def clock(self):
        return self.now

    def run(self, size):
        seconds = self._seconds(size, self.ran[size])
        self.ran[size] += 1
        self.order.append(size)
        self.now += seconds
        return StepTime(seconds, seconds / 4, self._drafted(size))


def finish(machine, sizes=SMALL, budget_s=100.0):
    profile = LatencyProfile(sizes, machine.run, budget_s, machine.clock)
    while profile.advance():
        pass
    return profile


def test_every_rung_is_measured_at_every_load_and_the_ends_of_the_ladder_first() -> None:
    sizes = step_sizes(RUNGS, 6, 2048)
    assert {(s.sequences, s.k) for s in sizes} == {(n, k) for n in (1, 2, 4, 6) for k in RUNGS}
    assert [s[:2] for s in sizes[:6]] == [(1, 0), (1, 8), (1, 1), (6, 0), (6, 8), (6, 1)]
    assert len(set(sizes)) == len(sizes)


def test_a_second_context_length_tells_the_slope() -> None:
    by_load = Counter((s.sequences, s.k) for s in step_sizes(RUNGS, 8, 2048))
    assert {size for size, contexts in by_load.items() if contexts == 2} == {(1, 0), (1, 8), (8, 0), (8, 8)}


@pytest.mark.parametrize("context", [16, 40, 256, 2048])
def test_no_size_goes_past_the_end_of_a_slot(context) -> None:
    sizes = step_sizes((0, 4, 16), 4, context)
    assert max(s.context + s.k + 1 for s in sizes) <= context
    assert {s.k for s in sizes} >= {0, 4}


def test_the_median_counts_and_the_warm_up_does_not() -> None:
    """The first time is ten times as long, the second round met a busy machine."""
    machine = Machine(lambda size, nth: (1 + size.k) * (10.0 if nth == 0 else 3.0 if nth == 2 else 1.0))
    cells = finish(machine, budget_s=1000.0).cells
    assert [(c[:3], c.seconds, c.draft_seconds) for c in cells] == [
        ((1, 0, 16), 1.0, 0.25), ((1, 4, 16), 5.0, 1.25), ((2, 2, 32), 3.0, 0.75),
    ]  # fmt: skip


def test_a_slow_first_step_does_not_use_up_the_warm_up() -> None:
    machine = Machine(lambda size, nth: 200.0 if size == SMALL[0] and nth == 0 else 1.0)
    assert len(finish(machine, budget_s=100.0).cells) == len(SMALL)


def test_sizes_take_turns() -> None:
    machine = Machine(lambda size, nth: 1.0)
    finish(machine, budget_s=1000.0)
    n = len(SMALL)
    rounds = [machine.order[i : i + n] for i in range(0, len(machine.order), n)]
    assert len(rounds) == 1 + ROUNDS_MOST
    assert all(sorted(r) == sorted(SMALL) for r in rounds)
    assert rounds[1] == rounds[2][::-1]


@pytest.mark.parametrize("step_s", [0.001, 0.03, 0.2, 1.0])
def test_it_keeps_to_its_time(step_s) -> None:
    """Over by the first step and one more of warm-up, four times: in it, and in the rounds that follow."""
    machine = Machine(lambda size, nth: step_s)
    sizes = step_sizes(RUNGS, 8, 2048)
    profile = finish(machine, sizes, 3.0)
    assert machine.now <= 3.0 + 8 * step_s
    assert profile.cells
    assert min(machine.ran[StepSize(*cell[:3])] for cell in profile.cells) >= 1 + ROUNDS_LEAST


def test_a_machine_that_becomes_slow_does_not_keep_it_for_ever() -> None:
    machine = Machine(lambda size, nth: 0.05 if nth == 0 else 1.0)
    profile = finish(machine, step_sizes(RUNGS, 8, 2048), 3.0)
    assert machine.now <= 2 * 3.0 + 1.0
    assert profile.cells == ()


def test_no_time_means_no_profile() -> None:
    machine = Machine(lambda size, nth: 1.0)
    assert (finish(machine, budget_s=0.0).cells, machine.order) == ((), [])


def test_a_size_whose_drafter_had_less_to_say_is_left_out() -> None:
    machine = Machine(lambda size, nth: 1.0, drafted=lambda size: min(size.k, 2) * size.sequences)
    assert [c[:3] for c in finish(machine, budget_s=1000.0).cells] == [(1, 0, 16), (2, 2, 32)]


def test_it_is_sent_to_each_controller_and_now_and_then() -> None:
    profile = finish(Machine(lambda size, nth: 1.0), budget_s=1000.0)
    times = [(1, 0.0), (1, 1.0), (2, 2.0), (2, 3.0), (2, 2.0 + RESEND_S), (2, 3.0 + RESEND_S)]
    assert [bool(profile.to_send(epoch, now)) for epoch, now in times] == [True, False, True, False, True, False]


def test_before_it_is_measured_nothing_is_sent() -> None:
    profile = LatencyProfile(SMALL, Machine(lambda size, nth: 1.0).run, 100.0)
    assert profile.to_send(1, 0.0) == ()


def rehearse(engine):
    """The profile of an engine's own steps."""
    machine = LatencyProfile(step_sizes((0, 2, 4), 4, 256), engine.rehearse, 1000.0)
    while machine.advance():
        pass
    return machine


@pytest.mark.parametrize("proposer", ["ngram", "close", "eagle"])
def test_it_leaves_no_trace(make_engine, ask, drain, prompts, proposer) -> None:
    """No block, no count, nothing in the drafter; and what its steps wrote into the blocks is never read."""

    def texts(engine):
        for i, prompt in enumerate(prompts):
            engine.submit(ask(prompt, f"{i}", max_tokens=16))
        return [done.token_ids for _, done in sorted(drain(engine).items())]

    engine = make_engine(4, proposer)
    assert {cell[:2] for cell in rehearse(engine).cells} == {(n, k) for n in (1, 2, 4) for k in (0, 2, 4)}
    window = engine.close_window()
    assert (window.cohorts, window.latency, window.busy_s, window.running) == ((), (), 0.0, 0)
    assert engine.tables.used == 0
    kept = engine.proposer._known if proposer == "ngram" else engine.proposer._states
    assert not kept
    assert texts(engine) == texts(make_engine(4, proposer))


def test_its_window_carries_it(make_engine) -> None:
    engine = make_engine(4)
    engine.profile = rehearse(engine)
    assert [len(engine.close_window().profile) for _ in range(2)] == [len(engine.profile.cells), 0]


def test_drafting_is_measured_apart_and_is_idle_at_k_zero(make_engine, monkeypatch) -> None:
    # A clock that every forward, of target or drafter, moves on by as much: a busy machine would stretch either.
    now, run = [0.0], ModelRunner._run

    def counted(*args, **kwargs):
        now[0] += 0.001
        return run(*args, **kwargs)

    monkeypatch.setattr(ModelRunner, "_run", counted)
    clock = SimpleNamespace(perf_counter=lambda: now[0], monotonic=time.monotonic)
    monkeypatch.setattr("workers.engine.time", clock)
    monkeypatch.setattr("workers.target.time", clock)
    cells = {cell[:2]: cell for cell in rehearse(make_engine(4, "target")).cells if cell.context == 64}
    assert cells[1, 0].draft_seconds < 0.1 * cells[1, 0].seconds
    # As deep as the target, and one forward for each draft token.
    assert 0.5 * cells[4, 4].seconds < cells[4, 4].draft_seconds < cells[4, 4].seconds


def test_nothing_is_measured_beside_requests(make_engine, ask) -> None:
    engine = make_engine(4)
    engine.submit(ask([3, 4]))
    assert engine.rehearse(StepSize(1, 0, 16)) is None


def test_a_drafter_that_was_switched_off_is_not_measured(make_engine) -> None:
    engine = make_engine(4)
    engine.plan_client.block_drafter()
    assert engine.rehearse(StepSize(1, 4, 16)) is None
    assert engine.rehearse(StepSize(1, 0, 16)) is not None


def test_blocks_that_are_in_use_are_not_touched(make_engine) -> None:
    engine = make_engine(4, slots=2)
    engine.tables.borrow(engine.tables.num_blocks // 2)
    assert engine.rehearse(StepSize(2, 0, 140)) is None
    assert engine.rehearse(StepSize(1, 0, 140)) is not None
    assert engine.tables.used == engine.tables.num_blocks // 2


def test_a_step_that_fails_leaves_nothing_behind_either(make_engine, monkeypatch) -> None:
    engine = make_engine(4, "close")

    def fail(*args):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(engine.target, "score", fail)
    with pytest.raises(RuntimeError):
        engine.rehearse(StepSize(4, 2, 16))
    assert (engine.tables.used, engine.proposer._states) == (0, {})


def test_a_drafter_that_is_silent_is_asked_for_nothing_at_k_zero(make_engine) -> None:
    class Watched(NoFeatures):
        name, version, is_deterministic = "watched", "1", True

        def __init__(self):
            self.primed = []

        def prime(self, batch):
            self.primed.append(len(batch))

        def propose(self, batch, k):
            return Proposal.of([(3,) * n for n in k])

        def release(self, sequence):
            pass

    proposer = Watched()
    engine = make_engine(4, proposer)
    engine.rehearse(StepSize(2, 0, 16))
    engine.rehearse(StepSize(2, 4, 16))
    assert proposer.primed == [0, 2]
