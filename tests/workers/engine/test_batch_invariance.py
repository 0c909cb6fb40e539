"""A row's logits are the same bit for bit whatever else the forward computes: the ground that losslessness stands on.

What is guaranteed: a chosen layout (rows in multiples of ROW_STEP, query blocks of powers of two, contexts that agree)
under which the kernels of the machine at hand were found to be invariant. PyTorch promises nothing of the kind, so a
CPU whose kernels behave differently fails here, with the sentence below. There, greedy text can depend on load where
two logits are closer than their rounding.
"""

from __future__ import annotations

import random

import pytest
import torch

import workers.attention
from workers.context_sizes import KEY_BLOCK, context_sizes
from workers.kv_cache import KVSlots
from workers.model_runner import ModelRunner
from workers.step_layout import Rows, lay_out, padding

VOCAB = 64
CONTEXT = 640
SLOTS = 8
CPU = torch.device("cpu")
PLACES = KVSlots(SLOTS, CONTEXT)
SHAPE = {"vocab": VOCAB, "hidden_size": 192, "num_attention_heads": 3, "num_key_value_heads": 1}
"""Heads of 64, as small models have: the kernels' choices depend on it."""


@pytest.fixture(scope="module", params=[1, 2], ids=["one_thread", "two_threads"])
def threads(request, one_thread):
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(1)


@pytest.fixture(scope="module", params=["auto", "gathered"])
def attention(request):
    """What the device has, and what serves where it has nothing of its own."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "gathered":
            patch.setattr(workers.attention, "choose_attention_backend", lambda *_: "naive")
        yield request.param


@pytest.fixture(scope="module", params=[torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def runner(request, make_runner, attention) -> ModelRunner:
    return make_runner(
        dtype=request.param,
        slots=SLOTS,
        context=CONTEXT,
        max_position_embeddings=CONTEXT,
        initializer_range=0.1,
        **SHAPE,
    )


def draw(numbers, n):
    return [numbers.randrange(VOCAB) for _ in range(n)]


class Text:
    """A prompt whose KV lies in every slot, and its next tokens with their logits computed one by one."""

    def __init__(self, runner, length):
        numbers = random.Random(0)
        self.runner, self.length = runner, length
        prompt, self.later = draw(numbers, length), draw(numbers, 17)
        for start in range(0, length, 128):
            runner.forward([Rows(PLACES.blocks(0), start, prompt[start : start + 128])], [0])
        self.kv = [tensor[1:].flatten(0, 1)[:length].clone() for tensor in (*runner.kv.keys, *runner.kv.values)]
        self.spread()
        self.logits = [runner.forward([self.rows(0, i, i + 1)], [0])[0] for i in range(17)]

    def spread(self):
        """Put the prompt's KV into every slot."""
        for tensor, of_prompt in zip((*self.runner.kv.keys, *self.runner.kv.values), self.kv, strict=True):
            tensor[1:].view(SLOTS, -1, *tensor.shape[2:])[:, : self.length] = of_prompt

    def rows(self, slot, start, end, wrong=()):
        """Later tokens start to end, and `wrong` ones behind them."""
        return Rows(PLACES.blocks(slot), self.length + start, [*self.later[start:end], *wrong])

    def differing(self, rows, before=(), behind=()):
        """Which of the text's rows differ from those computed one by one."""
        self.spread()
        first = sum(len(r.token_ids) for r in before)
        logits = self.runner.forward([*before, rows, *behind], range(first, first + len(rows.token_ids)))
        right = [i for i, t in enumerate(rows.token_ids) if self.later[: i + 1] == rows.token_ids[: i + 1]]
        return [i for i in right if not torch.equal(logits[i], self.logits[i])]


LENGTHS = [60, 250, 510]
"""Their rows lie in one block of keys or on both sides of a border of it."""


@pytest.fixture(scope="module", params=LENGTHS)
def text(runner, threads, request) -> Text:
    return Text(runner, request.param)


def same(text, differing) -> bool:
    """Fails with what that means where anything differs."""
    assert not differing, (
        f"{str(text.runner.dtype)[6:]} logits depend on the rest of the batch on this CPU "
        f"({torch.backends.cpu.get_cpu_capability()}, {torch.get_num_threads()} threads): {differing}. "
        "Greedy text may depend on load there where two logits nearly tie."
    )
    return True


def test_k_does_not_matter(text) -> None:
    assert same(text, {k: bad for k in range(17) if (bad := text.differing(text.rows(0, 0, k + 1)))})


def test_rejected_drafts_behind_a_row_do_not_matter(text) -> None:
    wrong = draw(random.Random(1), 6)
    assert same(text, {n: bad for n in range(1, 7) if (bad := text.differing(text.rows(0, 0, 2, wrong[:n])))})


def test_the_slot_does_not_matter(text) -> None:
    assert same(text, {slot: bad for slot in range(SLOTS) if (bad := text.differing(text.rows(slot, 0, 3)))})


def test_where_its_blocks_lie_does_not_matter(text) -> None:
    """As a sequence grows it takes whichever block is free, and of a known text those of whoever computed it."""
    rows = text.rows(0, 0, 3)
    scattered = list(range(1, 1 + SLOTS * PLACES.blocks_per_slot))
    random.Random(5).shuffle(scattered)
    scattered = scattered[: len(rows.blocks)]
    text.spread()
    for layer in (*text.runner.kv.keys, *text.runner.kv.values):
        layer[scattered] = layer[list(rows.blocks)].clone()
    logits = text.runner.forward([Rows(scattered, rows.start, rows.token_ids)], range(3))
    assert same(text, [i for i in range(3) if not torch.equal(logits[i], text.logits[i])])


def test_the_number_of_batch_mates_and_the_place_among_them_do_not_matter(text) -> None:
    found = {}
    for n in range(1, SLOTS):
        mates = [text.rows(slot, 0, 1 + slot % 3) for slot in range(1, n + 1)]
        for at in range(n + 1):
            if bad := text.differing(text.rows(0, 0, 2), mates[:at], mates[at:]):
                found[n, at] = bad
    assert same(text, found)


def test_what_batch_mates_say_and_how_long_they_are_does_not_matter(text) -> None:
    numbers = random.Random(2)
    found = {}
    for end in (1, 64, 100, 200, 257, 320, 400, 513, 600, CONTEXT - 9):
        mate = Rows(PLACES.blocks(1), end - 1, draw(numbers, numbers.randrange(1, 10)))
        if bad := text.differing(text.rows(0, 0, 4), [mate]):
            found[end] = bad
    assert same(text, found)


def test_prompts_in_the_same_forward_do_not_matter(text) -> None:
    """A chunk's rows are those computed alone, whatever chunks of other prompts share its budget."""
    numbers = random.Random(4)
    found = {}
    for length in (1, 5, 16, 17):
        for mates in ((40,), (64, 30), (3, 100), (20, 20, 20, 20)):
            others = [Rows(PLACES.blocks(slot), 0, draw(numbers, n)) for slot, n in enumerate(mates, start=1)]
            at = numbers.randrange(len(others) + 1)
            if bad := text.differing(text.rows(0, 0, length), others[:at], others[at:]):
                found[length, mates] = bad
    assert same(text, found)


def test_everything_at_once_does_not_matter(text) -> None:
    numbers = random.Random(3)
    found = {}
    for trial in range(20):
        slot = numbers.randrange(SLOTS)
        mates = []
        for other in numbers.sample([s for s in range(SLOTS) if s != slot], numbers.randrange(SLOTS)):
            n = numbers.randrange(1, 17)
            mates.append(Rows(PLACES.blocks(other), numbers.randrange(CONTEXT - n), draw(numbers, n)))
        at, k = numbers.randrange(len(mates) + 1), numbers.randrange(9)
        rows = text.rows(slot, 0, k + 1, draw(numbers, numbers.randrange(6)))
        if bad := text.differing(rows, mates[:at], mates[at:]):
            found[trial] = bad
    assert same(text, found)


def test_rows_are_padded_to_a_multiple_of_four() -> None:
    assert [n + padding(n) for n in (1, 3, 4, 5, 8, 9)] == [4, 4, 4, 8, 8, 12]


def test_the_context_of_a_forward_is_the_least_that_agrees() -> None:
    rows = [Rows(PLACES.blocks(0), 70, [1, 2]), Rows(PLACES.blocks(1), 3, [1])]
    layout = lay_out(rows, [0], (64, 192, 300))
    assert (layout.gathering.context, layout.num_rows, len(layout.token_ids)) == (192, 3, 4)


@pytest.mark.parametrize("context", [1, 64, 100, 256, 300, 512, 1000, 1024])
def test_contexts_rise_up_to_that_of_a_slot(context) -> None:
    sizes = context_sizes(context, 3, 1, 64, torch.float32, CPU)
    assert sizes[-1] == context
    assert list(sizes) == sorted(set(sizes))
    assert all(end in sizes for end in range(KEY_BLOCK, context, KEY_BLOCK))
