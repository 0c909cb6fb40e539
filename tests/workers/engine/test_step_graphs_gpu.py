"""On a GPU: every rung, 0 too, is captured and replays to the bits of the same step computed without a graph."""

from __future__ import annotations

import copy
import random

import pytest
import torch

from tests.workers.engine.conftest import tiny_model
from workers.batch_invariance import install
from workers.kv_cache import KVSlots
from workers.model_runner import ModelRunner
from workers.step_graphs import step_shapes
from workers.step_layout import Rows

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA or ROCm device"),
]
VOCAB, SLOTS, CONTEXT = 48, 4, 256
RUNGS, LAYERS = (0, 1, 4), (1, 2)
PLACES = KVSlots(SLOTS, CONTEXT)
TREE = (-1, 0, 0, 1, 2)
HEADS = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4, "num_key_value_heads": 2}
"""Of 64, for which the kernels are compiled."""


@pytest.fixture(scope="module", params=[torch.float32, torch.bfloat16, torch.float16], ids=["fp32", "bf16", "fp16"])
def runner(request) -> ModelRunner:
    """Recorded, over the KV of a text in each slot."""
    device = torch.device("cuda")
    assert install(device)
    model = copy.deepcopy(tiny_model(0, 2, request.param, **HEADS)).to(device)
    runner = ModelRunner(model, SLOTS, CONTEXT, "tiny")
    numbers = random.Random(0)
    for slot in range(SLOTS):
        for start in range(0, CONTEXT, 128):
            runner.forward([Rows(PLACES.blocks(slot), start, draw(numbers, 128))], [0])
    runner.record(step_shapes(RUNGS, SLOTS), LAYERS, trees=True)
    return runner


def draw(numbers: random.Random, n: int) -> list[int]:
    return [numbers.randrange(VOCAB) for _ in range(n)]


def computed(runner, rows, is_replayed):
    """Logits, features and KV."""
    keep = range(sum(len(r.token_ids) for r in rows))
    logits, features = runner.forward_with_features(rows, keep, LAYERS, eager=not is_replayed)
    kv = [layer[list(r.blocks)].clone() for r in rows for layer in (*runner.kv.keys, *runner.kv.values)]
    return [logits, features, *kv]


@pytest.mark.parametrize("k", RUNGS)
@pytest.mark.parametrize("sequences", range(1, SLOTS + 1))
def test_a_captured_step_replays_to_the_bits_of_the_step_itself(runner, sequences, k) -> None:
    numbers = random.Random(10 * sequences + k)
    for _ in range(3):
        rows = []
        for slot in numbers.sample(range(SLOTS), sequences):
            n = numbers.randrange(1, k + 2)
            rows.append(Rows(PLACES.blocks(slot), numbers.randrange(CONTEXT - n + 1), draw(numbers, n)))
        alone, replayed = computed(runner, rows, False), computed(runner, rows, True)
        assert all(torch.equal(a, b) for a, b in zip(alone, replayed, strict=True))


def test_a_captured_tree_replays_to_the_bits_of_the_step_itself(runner) -> None:
    numbers = random.Random(1)
    rows = [Rows(PLACES.blocks(0), 50, draw(numbers, len(TREE)), TREE), Rows(PLACES.blocks(2), 9, draw(numbers, 2))]
    alone, replayed = computed(runner, rows, False), computed(runner, rows, True)
    assert all(torch.equal(a, b) for a, b in zip(alone, replayed, strict=True))


@pytest.mark.parametrize("mates", [(1,), (5,), (1, 2, 3)])
def test_a_row_alone_has_the_bits_that_it_has_in_company(runner, mates) -> None:
    numbers = random.Random(len(mates))
    own = Rows(PLACES.blocks(0), 70, draw(numbers, 3))
    others = [Rows(PLACES.blocks(slot), 30 * slot, draw(numbers, n)) for slot, n in enumerate(mates, start=1)]
    alone, together = runner.forward([own], range(3)), runner.forward([own, *others], range(3 + sum(mates)))
    assert torch.equal(alone, together[:3])


def test_a_replay_does_not_have_the_host_wait(runner) -> None:
    rows = [Rows(PLACES.blocks(0), 20, [3, 4])]
    computed(runner, rows, True)
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        runner.forward_with_features(rows, range(2), LAYERS)
    finally:
        torch.cuda.set_sync_debug_mode(before)
