"""Prompts go in by chunks beside those that decode, in turns, short ones together."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from workers.detokenizer import Detokenizer
from workers.scheduler import PREFILL_CHUNK, Batch, Prefill, Scheduler
from workers.sequence import EngineRequest, SamplingParams, Sequence

LONG = [3 + i % 40 for i in range(200)]


@pytest.fixture
def make_sequence(tokenizer):
    def make(name, length, computed=0):
        prompt = tuple(range(length))
        request = EngineRequest(name, prompt, SamplingParams(8), "default")
        return Sequence(request, list(prompt), 0, Detokenizer(tokenizer), kv_length=computed)

    return make


def test_without_sequences_there_is_nothing_to_do() -> None:
    assert not Scheduler().schedule()


def test_all_that_decode_run_beside_a_chunk_of_a_prompt(make_sequence) -> None:
    decoding = [make_sequence("a", 4, 4), make_sequence("b", 9, 9)]
    prompt = make_sequence("c", 300)
    batch = Scheduler(running=[decoding[0], prompt, decoding[1]]).schedule()
    assert batch == Batch(tuple(decoding), (Prefill(prompt, PREFILL_CHUNK),))
    assert batch.sequences == tuple(decoding)


def test_a_chunk_ends_at_a_multiple_of_the_chunk_size(make_sequence) -> None:
    """So a prompt is always cut the same way, whatever runs beside it."""
    (prefill,) = Scheduler(running=[make_sequence("a", 300, PREFILL_CHUNK)]).schedule().prefills
    assert (prefill.end, prefill.length, prefill.completes) == (2 * PREFILL_CHUNK, PREFILL_CHUNK, False)


def test_the_last_chunk_completes_the_prompt(make_sequence) -> None:
    sequence = make_sequence("a", 300, 2 * PREFILL_CHUNK)
    batch = Scheduler(running=[sequence]).schedule()
    (prefill,) = batch.prefills
    assert (prefill.length, prefill.completes, batch.sequences) == (44, True, (sequence,))


def lengths(batch: Batch) -> dict[str, int]:
    return {prefill.sequence.request.request_id: prefill.length for prefill in batch.prefills}


def test_short_prompts_start_together_within_the_budget(make_sequence) -> None:
    scheduler = Scheduler(running=[make_sequence(name, n) for name, n in (("a", 60), ("b", 50), ("c", 30), ("d", 18))])
    assert lengths(scheduler.schedule()) == {"a": 60, "b": 50, "d": 18}


def test_prompts_take_turns_so_that_a_long_one_holds_others_up_for_a_chunk(make_sequence) -> None:
    scheduler = Scheduler(running=[make_sequence("long", 900), make_sequence("short", 20), make_sequence("later", 300)])
    turns = []
    for _ in range(4):
        batch = scheduler.schedule()
        turns.append(lengths(batch))
        for prefill in batch.prefills:
            prefill.sequence.kv_length = prefill.end
    assert turns == [{"long": 128}, {"short": 20}, {"later": 128}, {"long": 128}]


def test_prompts_that_start_together_give_what_each_gives_alone(make_engine, ask, drain, prompts) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        together, expected = make_engine(3, "close", dtype=dtype, slots=len(prompts)), {}
        for i, prompt in enumerate(prompts):
            alone = make_engine(3, "close", dtype=dtype)
            for engine in (together, alone):
                engine.submit(ask(prompt, f"{i}", max_tokens=8))
            expected |= drain(alone)
        done = drain(together)
        assert {name: d.token_ids for name, d in done.items()} == {name: d.token_ids for name, d in expected.items()}


def test_a_long_prompt_does_not_hold_up_those_that_decode(make_engine, ask) -> None:
    engine = make_engine(0, "none", eos=())
    engine.submit(ask([3, 4], "a", max_tokens=30))
    engine.step()
    engine.submit(ask(LONG, "b"))
    steps = [{chunk.request_id for chunk in engine.step()} for _ in range(3)]
    assert steps == [{"a"}, {"a", "b"}, {"a", "b"}]


def test_first_tokens_come_in_the_order_of_arrival_where_prompts_do_not_fit_together(make_engine, ask) -> None:
    engine = make_engine(0, "none", eos=())
    for name, prompt in (("a", LONG[:100]), ("b", LONG[:90]), ("c", LONG[:80]), ("d", LONG[:70])):
        engine.submit(ask(prompt, name))
    order = []
    while engine.has_work:
        order += [chunk.request_id for chunk in engine.step() if chunk.request_id not in order]
    assert order == ["a", "b", "c", "d"]


def test_more_requests_than_slots_all_finish(make_engine, ask, drain, prompts) -> None:
    engine = make_engine(4, slots=2)
    for i in range(9):
        engine.submit(ask(prompts[i], f"{i}", max_tokens=5))
    engine.step()
    assert (len(engine.scheduler.running), len(engine.scheduler.waiting)) == (2, 7)
    assert {done.record.finish_reason for done in drain(engine).values()} <= {"stop", "length"}
    assert engine.tables.used == 0


def test_one_that_waits_takes_the_slot_of_one_that_ended(make_engine, ask) -> None:
    engine = make_engine(0, "none", slots=1, eos=())
    engine.submit(ask([3], "a", max_tokens=1))
    engine.submit(ask([4], "b", max_tokens=1))
    assert [chunk.request_id for _ in range(2) for chunk in engine.step()] == ["a", "b"]


def test_a_request_that_waits_can_be_cancelled(make_engine, ask, drain) -> None:
    engine = make_engine(0, "none", slots=1)
    engine.submit(ask([3], "a"))
    engine.submit(ask([4], "b"))
    engine.step()
    chunk = engine.cancel("b")
    assert (chunk.finish_reason, chunk.record.ttft_s, chunk.record.completion_tokens) == ("cancelled", None, 0)
    assert set(drain(engine)) == {"a"}


def test_a_prompt_that_is_being_computed_can_be_cancelled(make_engine, ask) -> None:
    engine = make_engine(0, "none")
    engine.submit(ask(LONG, "a"))
    assert engine.step() == []
    assert engine.cancel("a").record.prefill_positions == PREFILL_CHUNK
    assert engine.tables.used == 0
    assert not engine.has_work


def test_a_request_that_is_not_there_is_not_cancelled(make_engine) -> None:
    assert make_engine().cancel("a") is None


@pytest.mark.parametrize(
    ("length", "max_tokens", "message"),
    [
        (0, 5, "prompt has 0 tokens; this model takes 1 to 255"),
        (256, 5, "prompt has 256 tokens; this model takes 1 to 255"),
        (250, 7, "max_tokens is 7; after 250 prompt tokens it may be 1 to 6"),
        (250, 0, "max_tokens is 0; after 250 prompt tokens it may be 1 to 6"),
    ],
)
def test_a_request_that_cannot_fit_is_refused(make_engine, ask, length, max_tokens, message) -> None:
    with pytest.raises(ValueError, match=message):
        make_engine().submit(ask([3] * length, max_tokens=max_tokens))


@pytest.mark.parametrize("k", [0, 8])
def test_a_context_may_be_used_up_to_the_last_token(make_engine, ask, drain, k) -> None:
    engine = make_engine(k, "close", eos=())
    engine.submit(ask([3 + i % 40 for i in range(200)], max_tokens=56))
    assert len(drain(engine)["r"].token_ids) == 56


def test_a_request_id_in_use_is_refused(make_engine, ask) -> None:
    engine = make_engine()
    engine.submit(ask([3]))
    with pytest.raises(ValueError, match="request id 'r' is in use"):
        engine.submit(ask([4]))


def steps_until(engine, name: str) -> int:
    """Steps until the request's first token."""
    steps = 1
    while name not in {chunk.request_id for chunk in engine.step()}:
        steps += 1
    return steps


def test_a_flood_of_one_tenant_does_not_raise_anothers_time_to_first_token_beyond_its_share(make_engine, ask) -> None:
    """Two slots, eight tokens a request: every other slot that becomes free is the quiet tenant's."""
    engine = make_engine(0, "none", slots=2, eos=())
    for i in range(60):
        engine.submit(replace(ask([3, 4], f"flood{i}", max_tokens=8), tenant="flood"))
    engine.step()
    waited = []
    for i in range(4):
        engine.submit(replace(ask([5, 6], f"quiet{i}", max_tokens=8), tenant="quiet"))
        waited.append(steps_until(engine, f"quiet{i}"))
    assert max(waited) <= 2 * 8 + 1
    assert engine.scheduler.waiting
