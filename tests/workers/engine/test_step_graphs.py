"""Recorded steps: what pads a step to a shape changes no bit of it, and every rung, 0 too, is recorded and replayed.

Here nothing is recorded, the same call over the same tables is made again (GraphFree). That a GPU's graphs do as much
is in test_step_graphs_gpu.py.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from workers.kv_cache import NULL_BLOCK, KVSlots
from workers.latency_profile import StepSize
from workers.model_runner import ModelRunner
from workers.step_graphs import GraphFree, StepShape, padded, step_shapes
from workers.step_layout import ROW_STEP, Rows
from workers.step_recording import record_steps
from workers.token_tree import read_trees

VOCAB = 48
SLOTS, CONTEXT = 5, 256
HIDDEN = 64
"""Heads of 16, which the attention that reads blocks computes."""
RUNGS = (0, 1, 4)
LAYERS = (1, 2)
PLACES = KVSlots(SLOTS, CONTEXT)
TREE = (-1, 0, 0, 1, 2)
TREES = read_trees({"4": [-1, -1, 0, 1]})


class CountingGraphFree(GraphFree):
    """recorded, replayed: how often."""

    def __init__(self) -> None:
        self.recorded = self.replayed = 0

    def record(self, compute: Callable[[], None]) -> Callable[[], None]:
        again = super().record(compute)
        self.recorded += 1

        def replay() -> None:
            self.replayed += 1
            again()

        return replay


def draw(numbers: random.Random, n: int) -> list[int]:
    return [numbers.randrange(VOCAB) for _ in range(n)]


def test_every_rung_and_zero_has_a_shape_at_every_number_of_sequences() -> None:
    assert set(step_shapes((2, 5), 6)) == {StepShape(n, k) for n in (1, 2, 4, 6) for k in (0, 2, 5)}


def test_the_shapes_of_a_ladder_without_a_drafter_are_those_of_zero() -> None:
    assert [shape.k for shape in step_shapes((), 4)] == [0, 0, 0]


def test_a_sequence_without_drafts_is_one_row() -> None:
    """vllm#51907 and #49652: a capture at K = 0 took its rows from another K, and had none, or fewer."""
    assert StepShape(8, 0).rows == StepShape(8, 0).seats == 8
    assert [len(r.token_ids) for r in padded([], StepShape(8, 0))] == [1] * 8


@given(
    st.integers(1, 40),
    st.integers(0, 9),
    st.data(),
)
@settings(max_examples=200, deadline=None)
def test_whatever_fits_a_shape_is_padded_to_all_its_rows_and_seats(most, k, data) -> None:
    lengths = data.draw(st.lists(st.integers(1, k + 1), min_size=0, max_size=most))
    shape = StepShape(most, k)
    rows = [Rows([7, 8, 9], 3, [5] * n) for n in lengths]
    filled = padded(rows, shape)
    own, others = filled[: len(rows)], filled[len(rows) :]
    assert own == rows
    assert (len(filled), sum(len(r.token_ids) for r in filled)) == (shape.seats, shape.rows)
    assert shape.rows % ROW_STEP == 0
    assert max((len(r.token_ids) for r in filled), default=1) <= k + 1
    assert {block for r in others for block in r.blocks} <= {NULL_BLOCK}


@pytest.fixture(scope="module", params=[torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def runner(request, make_runner) -> ModelRunner:
    """Its KV is that of five texts, one a slot."""
    runner = make_runner(dtype=request.param, slots=SLOTS, context=CONTEXT, hidden_size=HIDDEN)
    numbers = random.Random(0)
    for slot in range(SLOTS):
        for start in range(0, CONTEXT, 128):
            runner.forward([Rows(PLACES.blocks(slot), start, draw(numbers, 128))], [0])
    return runner


@pytest.fixture
def recorder(runner) -> CountingGraphFree:
    recorder = CountingGraphFree()
    runner.record(step_shapes(RUNGS, SLOTS), LAYERS, trees=True, recorder=recorder)
    return recorder


def computed(runner, rows, is_replayed):
    """Logits and features of rows, and the KV of all blocks but the one that nobody reads; the KV stays as it was."""
    keep = range(sum(len(r.token_ids) for r in rows))
    layers = (*runner.kv.keys, *runner.kv.values)
    before = [layer.clone() for layer in layers]
    logits, features = runner.forward_with_features(rows, keep, LAYERS, eager=not is_replayed)
    kv = [layer[1:].clone() for layer in layers]
    for layer, old in zip(layers, before, strict=True):
        layer.copy_(old)
    return [logits, features, *kv]


def ragged(numbers: random.Random, sequences: int, most: int) -> list[Rows]:
    slots = numbers.sample(range(SLOTS), sequences)
    rows = []
    for slot in slots:
        n = numbers.randrange(1, most + 2)
        rows.append(Rows(PLACES.blocks(slot), numbers.randrange(CONTEXT - n + 1), draw(numbers, n)))
    return rows


@pytest.mark.parametrize("sequences", range(1, SLOTS + 1))
@pytest.mark.parametrize("k", range(max(RUNGS) + 1))
def test_a_padded_step_gives_the_bits_of_the_step_itself(runner, recorder, sequences, k) -> None:
    """Logits, features and every block of KV, after whatever steps there were before."""
    numbers = random.Random(10 * sequences + k)
    for _ in range(3):
        rows = ragged(numbers, sequences, k)
        alone, replayed = computed(runner, rows, False), computed(runner, rows, True)
        assert all(torch.equal(a, b) for a, b in zip(alone, replayed, strict=True))
    assert recorder.replayed == 3


@pytest.mark.parametrize("end", [1, 15, 16, 17, 64, 129, CONTEXT])
def test_the_length_of_a_context_does_not_matter(runner, recorder, end) -> None:
    numbers = random.Random(end)
    rows = [Rows(PLACES.blocks(0), end - 1, draw(numbers, 1)), Rows(PLACES.blocks(3), 40, draw(numbers, 3))]
    alone, replayed = computed(runner, rows, False), computed(runner, rows, True)
    assert all(torch.equal(a, b) for a, b in zip(alone, replayed, strict=True))
    assert recorder.replayed == 1


def test_a_tree_is_replayed_with_chains_and_gives_the_bits_of_the_step_itself(runner, recorder) -> None:
    numbers = random.Random(1)
    rows = [
        Rows(PLACES.blocks(1), 30, draw(numbers, 3)),
        Rows(PLACES.blocks(0), 50, draw(numbers, len(TREE)), TREE),
        Rows(PLACES.blocks(4), 0, draw(numbers, 1)),
    ]
    alone, replayed = computed(runner, rows, False), computed(runner, rows, True)
    assert all(torch.equal(a, b) for a, b in zip(alone, replayed, strict=True))
    assert recorder.replayed == 1


def test_every_rung_is_recorded_and_replayed(runner, recorder) -> None:
    shapes = step_shapes(RUNGS, SLOTS)
    assert recorder.recorded == len(shapes) == 12
    for n, shape in enumerate(shapes, start=1):
        rows = [Rows(PLACES.blocks(slot), 8, [3] * (shape.k + 1)) for slot in range(shape.sequences)]
        assert runner._steps.fit(rows, range(shape.sequences * (shape.k + 1))) == shape
        runner.forward_with_features(rows, range(shape.sequences * (shape.k + 1)), LAYERS)
        assert recorder.replayed == n


@pytest.mark.parametrize(
    ("rows", "kept"),
    [
        ([Rows(PLACES.blocks(0), 0, [3] * 6)], 6),
        ([Rows(PLACES.blocks(slot % SLOTS), 0, [3]) for slot in range(SLOTS + 1)], SLOTS + 1),
        ([Rows(PLACES.blocks(0), 0, [3] * 4)], 1),
        ([Rows([*PLACES.blocks(0), *PLACES.blocks(1)], CONTEXT - 1, [3, 3])], 2),
    ],
    ids=["longer than any rung", "more sequences", "a chunk of a prompt", "beyond the context"],
)
def test_what_fits_no_shape_is_computed_without(runner, recorder, rows, kept) -> None:
    assert len(runner.forward_with_features(rows, range(kept), LAYERS)[0]) == kept
    assert recorder.replayed == 0


def test_a_tree_is_computed_without_where_none_was_recorded(runner) -> None:
    recorder = CountingGraphFree()
    runner.record(step_shapes(RUNGS, SLOTS), LAYERS, recorder=recorder)
    runner.forward_with_features([Rows(PLACES.blocks(0), 9, [3] * 5, TREE)], range(5), LAYERS)
    assert recorder.replayed == 0


def rows_said(runner: ModelRunner, sequences: int, deepest: int, positions: int) -> int:
    return int(runner.padded(sequences, np.array([[deepest]]), np.array([[positions]]))[0, 0])


@pytest.mark.parametrize("sequences", range(1, SLOTS + 1))
@pytest.mark.parametrize("deepest", range(max(RUNGS) + 1))
def test_a_recorded_step_is_said_to_compute_the_rows_of_the_shape_that_it_fits(
    runner, recorder, sequences, deepest
) -> None:
    rows = [Rows(PLACES.blocks(slot), 8, [3] * (1 + deepest * (slot == 0))) for slot in range(sequences)]
    positions = sequences + deepest
    said = rows_said(runner, sequences, deepest, positions)
    assert said == runner._steps.fit(rows, range(positions)).rows


@pytest.mark.parametrize(("sequences", "deepest", "positions"), [(SLOTS + 1, 1, 9), (2, max(RUNGS) + 1, 10)])
def test_a_step_that_fits_no_shape_is_said_to_compute_its_own_rows(
    runner, recorder, sequences, deepest, positions
) -> None:
    assert rows_said(runner, sequences, deepest, positions) == 12


@pytest.mark.parametrize(("positions", "rows"), [(1, ROW_STEP), (ROW_STEP, ROW_STEP), (ROW_STEP + 1, 2 * ROW_STEP)])
def test_a_step_that_is_not_recorded_is_said_to_compute_its_rows_and_what_pads_them(
    make_runner, positions, rows
) -> None:
    assert rows_said(make_runner(slots=1, context=16), 1, positions, positions) == rows


def test_results_are_nobody_elses_after_the_next_replay(runner, recorder) -> None:
    first, second = ([Rows(PLACES.blocks(0), 9, [token])] for token in (5, 11))
    kept, _ = runner.forward_with_features(first, [0], LAYERS)
    before = kept.clone()
    runner.forward_with_features(second, [0], LAYERS)
    assert torch.equal(kept, before)


def test_gathered_attention_is_not_recorded(make_runner) -> None:
    """Its keys are as many as a step's longest text needs. The tiny model's own heads are of 8."""
    runner = make_runner()
    with pytest.raises(RuntimeError, match="gathers keys"):
        runner.record(step_shapes((), 2), recorder=GraphFree())
    assert runner.forward([Rows(range(1, 3), 0, [3])], [0]).shape == (1, VOCAB)


def texts(engine, ask, drain, prompts, **sampling):
    for i, prompt in enumerate(prompts):
        engine.submit(ask(prompt, f"{i}", max_tokens=17, **sampling))
    return {name: done.token_ids for name, done in drain(engine).items()}


@pytest.mark.parametrize("sampling", [{"temperature": 0.0}, {"temperature": 0.8, "seed": 3}], ids=["greedy", "seeded"])
@pytest.mark.parametrize("proposer", ["none", "ngram", "close", "eagle", "paths"])
def test_an_engine_says_the_same_whether_its_steps_are_recorded(
    make_engine, ask, drain, prompts, proposer, sampling
) -> None:
    def engine():
        trees = TREES if proposer in ("eagle", "paths") else {}
        return make_engine(4, proposer, slots=4, eos=(), hidden=HIDDEN, trees=trees, prefix_cache=False)

    recorded, recorder = engine(), CountingGraphFree()
    record_steps(recorded, RUNGS, recorder)
    expected = texts(engine(), ask, drain, prompts[:7], **sampling)
    assert texts(recorded, ask, drain, prompts[:7], **sampling) == expected
    assert recorder.replayed > 20


def test_the_forwards_of_a_draft_model_are_recorded_too(make_engine) -> None:
    engine, recorder = make_engine(4, "close", slots=4, eos=(), hidden=HIDDEN), CountingGraphFree()
    record_steps(engine, RUNGS, recorder)
    assert recorder.recorded == len(step_shapes(RUNGS, 4)) + len(step_shapes((), 4))
    engine.rehearse(StepSize(3, 4, 20))
    assert recorder.replayed == 1 + 4


class Failing:
    def record(self, compute: Callable[[], None]) -> Callable[[], None]:
        raise RuntimeError("operation not permitted when stream is capturing\nand more")


def test_where_a_step_cannot_be_recorded_steps_stay_eager(make_engine, ask, drain, prompts, capsys) -> None:
    engine = make_engine(4, "ngram", eos=(), hidden=HIDDEN)
    record_steps(engine, RUNGS, Failing())
    out = capsys.readouterr().out
    assert "steps are not recorded" in out
    assert "operation not permitted when stream is capturing" in out
    assert len(texts(engine, ask, drain, prompts[:2])["1"]) == 17
