"""The real model's logits are the same bit for bit in any company, in fp32 and bf16 (tiny ones: ../engine)."""

from __future__ import annotations

import random

import pytest
import torch

from controlplane.settings import Settings
from workers.compiled.background import compile_now
from workers.kv_cache import KVSlots
from workers.model_runner import ModelRunner
from workers.models.resolve import resolve_model
from workers.step_layout import Rows

pytestmark = pytest.mark.model

SLOTS = 6
CONTEXT = 640
TOKENS = 8
PLACES = KVSlots(SLOTS, CONTEXT)


def draw(numbers, n):
    return [numbers.randrange(100, 40_000) for _ in range(n)]


@pytest.mark.timeout(1200)  # the first time, it is compiled here
@pytest.mark.parametrize(
    ("dtype", "is_compiled"),
    [(torch.float32, False), (torch.bfloat16, False), (torch.bfloat16, True)],
    ids=["fp32", "bf16", "bf16_compiled"],
)
def test_a_row_does_not_depend_on_the_rest_of_the_batch(dtype, is_compiled) -> None:
    cache = Settings().model_cache
    folder = resolve_model("smollm2-135m-instruct", cache)
    runner = ModelRunner.load(folder, num_slots=SLOTS, context=CONTEXT, device=torch.device("cpu"), dtype=dtype)
    if is_compiled:
        compile_now(runner.compilables, cache, lambda part, graph: part.adopt(graph))
    numbers = random.Random(0)
    differing, compared = [], 0
    # Around a border of the contexts that attention may cover, well within, and beyond a block of keys.
    for length in (40, 187, 252, 300, 510):
        prompt, later = draw(numbers, length), draw(numbers, TOKENS)
        slot, other = numbers.sample(range(SLOTS), 2)
        for start in range(0, length, 128):
            for s in (slot, other):
                runner.forward([Rows(PLACES.blocks(s), start, prompt[start : start + 128])], [0])
        alone = [runner.forward([Rows(PLACES.blocks(slot), length + i, [t])], [0])[0] for i, t in enumerate(later)]
        i = 0
        while i < TOKENS:
            good = numbers.randrange(1, TOKENS - i + 1)
            rows = Rows(PLACES.blocks(other), length + i, later[i : i + good] + draw(numbers, numbers.randrange(4)))
            mates = []
            for s in numbers.sample([s for s in range(SLOTS) if s != other], numbers.randrange(SLOTS)):
                n = numbers.randrange(1, 9)
                mates.append(Rows(PLACES.blocks(s), numbers.randrange(CONTEXT - n), draw(numbers, n)))
            at = numbers.randrange(len(mates) + 1)
            first = sum(len(mate.token_ids) for mate in mates[:at])
            logits = runner.forward([*mates[:at], rows, *mates[at:]], range(first, first + good))
            differing += [(length, i + j) for j in range(good) if not torch.equal(logits[j], alone[i + j])]
            compared, i = compared + good, i + good
    assert (differing, compared) == ([], 5 * TOKENS)
