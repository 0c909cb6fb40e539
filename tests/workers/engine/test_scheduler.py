"""First come, first served; prompts go in by chunks beside those that decode."""

from __future__ import annotations

import pytest

from workers.detokenizer import Detokenizer
from workers.scheduler import PREFILL_CHUNK, Batch, Scheduler
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


def test_all_that_decode_run_beside_one_chunk_of_the_oldest_prompt(make_sequence) -> None:
    decoding = [make_sequence("a", 4, 4), make_sequence("b", 9, 9)]
    prompts = [make_sequence("c", 300), make_sequence("d", 5)]
    batch = Scheduler(running=[decoding[0], *prompts, decoding[1]]).schedule()
    assert batch == Batch(tuple(decoding), prompts[0], PREFILL_CHUNK)
    assert (batch.prefill_length, batch.completes_prefill, batch.sequences) == (PREFILL_CHUNK, False, tuple(decoding))


def test_a_chunk_ends_at_a_multiple_of_the_chunk_size(make_sequence) -> None:
    """So a prompt is always cut the same way, whatever runs beside it."""
    batch = Scheduler(running=[make_sequence("a", 300, PREFILL_CHUNK)]).schedule()
    assert (batch.prefill_end, batch.prefill_length) == (2 * PREFILL_CHUNK, PREFILL_CHUNK)


def test_the_last_chunk_completes_the_prompt(make_sequence) -> None:
    sequence = make_sequence("a", 300, 2 * PREFILL_CHUNK)
    batch = Scheduler(running=[sequence]).schedule()
    assert (batch.prefill_length, batch.completes_prefill, batch.sequences) == (44, True, (sequence,))


def test_a_long_prompt_does_not_hold_up_those_that_decode(make_engine, ask) -> None:
    engine = make_engine(0, "none", eos=())
    engine.submit(ask([3, 4], "a", max_tokens=30))
    engine.step()
    engine.submit(ask(LONG, "b"))
    steps = [{chunk.request_id for chunk in engine.step()} for _ in range(3)]
    assert steps == [{"a"}, {"a", "b"}, {"a", "b"}]


def test_first_tokens_come_in_the_order_of_arrival(make_engine, ask) -> None:
    engine = make_engine(0, "none", eos=())
    for name, prompt in (("a", LONG), ("b", [3]), ("c", LONG), ("d", [4, 5])):
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
    assert engine.target.runner.kv.used == 0


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
    assert engine.target.runner.kv.used == 0
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
