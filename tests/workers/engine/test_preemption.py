"""A sequence that loses its KV to others goes on later as if nothing had been: the same text, and a pause."""

from __future__ import annotations

import string
from dataclasses import replace
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import workers.engine
from workers.deadlines import DEADLINE, Deadlines, TimeLimits
from workers.kv_cache import BLOCK_SIZE
from workers.scheduler import REPLAY_ROWS
from workers.sequence import GrammarSpec

GREEDY: dict[str, Any] = {"temperature": 0.0}
SEEDED: dict[str, Any] = {"temperature": 0.9, "seed": 11}
LENGTHS = (5, 8, 17, 20, 33, 129)
"""With so many TOKENS more each they need 58 blocks; the largest alone needs 14."""
TOKENS = 80
TIGHT = 16
AMPLE = 100


@pytest.fixture(scope="module")
def texts(prompts):
    return sorted((prompt for prompt in prompts if len(prompt) in LENGTHS), key=len)


def run(engine, ask, drain, texts, **sampling):
    """What came of each text, all submitted at once, and how often one was preempted."""
    for i, prompt in enumerate(texts):
        engine.submit(ask(prompt, f"{i}", **{"max_tokens": TOKENS, **sampling}))
    done = drain(engine)
    assert engine.tables.used == 0
    preemptions = engine.residency.counts.preemptions.total()
    return [done[f"{i}"] for i in range(len(texts))], preemptions


def plain(make_engine, ask, drain, texts, **sampling):
    done, preemptions = run(make_engine(0, "none", eos=(), kv_blocks=AMPLE), ask, drain, texts, **sampling)
    assert preemptions == 0
    return done


@pytest.mark.parametrize("prefix_cache", [True, False], ids=["prefix_cache", "replay"])
@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
@pytest.mark.parametrize("proposer", ["none", "ngram", "close", "eagle", "medusa", "ngram+eagle"])
def test_row_20_preemption_changes_the_text(make_engine, ask, drain, texts, proposer, sampling, prefix_cache) -> None:
    """In vLLM 52522 preemption changed greedy text."""
    engine = make_engine(4, proposer, eos=(), kv_blocks=TIGHT, prefix_cache=prefix_cache)
    done, preemptions = run(engine, ask, drain, texts, **sampling)
    assert preemptions
    expected = plain(make_engine, ask, drain, texts, **sampling)
    assert [d.token_ids for d in done] == [d.token_ids for d in expected]


def test_it_is_where_only_whole_chunks_are_shared_too(make_engine, ask, drain, texts, monkeypatch) -> None:
    """A device on which KV depends on the cut: what is found then must end where a chunk does, or a piece."""
    monkeypatch.setattr(workers.engine, "has_uniform_rows", lambda runner: False)
    engine = make_engine(4, "eagle", eos=(), kv_blocks=TIGHT)
    done, preemptions = run(engine, ask, drain, texts, **SEEDED)
    assert preemptions
    expected = plain(make_engine, ask, drain, texts, **SEEDED)
    assert [d.token_ids for d in done] == [d.token_ids for d in expected]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_kv_that_was_computed_again_has_the_bits_it_had(make_engine, ask, texts, dtype) -> None:
    """Prompt, and answer in pieces of another size than it was emitted in."""

    def kv(preempted: bool) -> list[torch.Tensor]:
        engine = make_engine(3, "close", eos=(), dtype=dtype, prefix_cache=False)
        engine.submit(ask(texts[-1], max_tokens=90))
        while not engine.scheduler.running or engine.scheduler.running[0].completion_length < 80:
            engine.step()
        (sequence,) = engine.scheduler.running
        before = sequence.kv_length
        if preempted:
            engine._set_aside(engine.residency._preempt())
            engine._admit()
            while sequence.kv_length < before:
                engine.target._prefill(engine.scheduler.schedule().prefills)
        target_kv = engine.target.runner.kv
        return [layer[sequence.blocks].flatten(0, 1)[:before] for layer in (*target_kv.keys, *target_kv.values)]

    assert all(torch.equal(a, b) for a, b in zip(kv(False), kv(True), strict=True))


def test_what_is_computed_again_yields_no_token(make_engine, ask, drain, texts) -> None:
    done, preemptions = run(make_engine(4, "close", eos=(), kv_blocks=TIGHT), ask, drain, texts)
    assert preemptions
    for each in done:
        record = each.record
        steps = record.spec_steps + record.plain_steps
        ended_inside = each.steps[-1][0] > 0 and 1 + record.accepted_tokens + steps > TOKENS
        assert (record.completion_tokens, len(each.token_ids)) == (TOKENS, TOKENS)
        assert record.completion_tokens == 1 + record.accepted_tokens + steps - ended_inside


def test_what_is_computed_again_is_billed_as_positions_and_not_as_input(make_engine, ask, drain, texts) -> None:
    engine = make_engine(0, "none", eos=(), kv_blocks=TIGHT, prefix_cache=False)
    done, _ = run(engine, ask, drain, texts)
    (cohort,) = engine.close_window().cohorts
    (use,) = cohort.tenants
    prompts = sum(map(len, texts))
    assert use.input_tokens == prompts
    assert use.prefill_positions == sum(d.record.prefill_positions for d in done) > prompts
    assert (use.emitted_tokens, cohort.first_tokens) == (TOKENS * len(texts), len(texts))


def test_logprobs_of_prompt_and_output_are_those_of_a_run_without(make_engine, ask, drain, texts) -> None:
    wishes: dict[str, Any] = {"logprobs": 2, "prompt_logprobs": 2}
    done, preemptions = run(make_engine(4, "close", eos=(), kv_blocks=TIGHT), ask, drain, texts, **wishes)
    expected = plain(make_engine, ask, drain, texts, **wishes)
    assert preemptions
    assert [d.logprobs for d in done] == [d.logprobs for d in expected]
    assert [d.prompt_logprobs for d in done] == [d.prompt_logprobs for d in expected]


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_a_prompt_put_off_amid_its_scoring_is_scored_once(make_engine, ask, drain, texts, prefix_cache) -> None:
    engine = make_engine(0, "none", eos=(), prefix_cache=prefix_cache)
    engine.submit(ask(texts[-1], max_tokens=3, prompt_logprobs=1))
    assert engine.step() == []
    engine._set_aside(engine.residency._preempt())
    done = drain(engine)["r"]
    (expected,) = plain(make_engine, ask, drain, texts[-1:], max_tokens=3, prompt_logprobs=1)
    assert done.prompt_logprobs == expected.prompt_logprobs
    # The chunk that was scored need not be computed again where it is kept.
    assert done.record.prefill_positions == (len(texts[-1]) if prefix_cache else 128 + len(texts[-1]))


def test_penalties_stop_strings_and_least_lengths_go_on(make_engine, ask, drain, texts) -> None:
    wishes: dict[str, Any] = {
        "frequency_penalty": 1.5, "presence_penalty": 0.5, "repetition_penalty": 1.2, "min_tokens": 60,
        "stop": ("t9 t",), "temperature": 1.3, "seed": 3,
    }  # fmt: skip
    done, preemptions = run(make_engine(4, "ngram", kv_blocks=TIGHT), ask, drain, texts, **wishes)
    expected, none = run(make_engine(0, "none", kv_blocks=AMPLE), ask, drain, texts, **wishes)
    assert (preemptions > 0, none) == (True, 0)
    assert any(d.record.finish_reason == "stop" for d in done)
    assert [(d.token_ids, d.text) for d in done] == [(d.token_ids, d.text) for d in expected]


def test_a_stream_only_pauses(make_engine, ask, collect, texts) -> None:
    engine = make_engine(4, "close", eos=(), kv_blocks=TIGHT)
    for i, prompt in enumerate(texts):
        engine.submit(ask(prompt, f"{i}", max_tokens=TOKENS))
    out: dict[str, Any] = {}
    gaps = dict.fromkeys(map(str, range(len(texts))), 0)
    longest = 0
    while engine.has_work:
        chunks = engine.step()
        collect(out, chunks)
        seen = {chunk.request_id for chunk in chunks}
        for name in gaps:
            begun = name in out and out[name].record is None
            gaps[name] = gaps[name] + 1 if begun and name not in seen else 0
        longest = max(longest, *gaps.values())
    assert longest > 1
    assert all(len(done.token_ids) == TOKENS and done.error is None for done in out.values())


def test_the_state_of_its_drafter_goes_and_comes_back(make_engine, ask, drain, prompts) -> None:
    """TensorRT-LLM 16888: a drafter with holes in its cache is accepted less."""
    engine = make_engine(4, "target", eos=())
    engine.submit(ask(prompts[4], max_tokens=60))
    for _ in range(5):
        engine.step()
    engine._set_aside(engine.residency._preempt())
    assert engine.proposer._states == {}
    steps = drain(engine)["r"].steps
    assert steps
    assert all(accepted == drafted for drafted, accepted in steps)


@pytest.mark.parametrize("prefix_cache", [True, False])
@pytest.mark.parametrize("proposer", ["eagle", "medusa"])
def test_a_drafter_that_reads_features_drafts_as_if_it_had_not_stopped(
    make_engine, ask, drain, prompts, proposer, prefix_cache
) -> None:
    def steps(preempted: bool):
        engine = make_engine(3, proposer, eos=(), prefix_cache=prefix_cache)
        engine.submit(ask(prompts[10], max_tokens=60))
        found = []
        for _ in range(8):
            found += [step for chunk in engine.step() for step in chunk.steps]
        if preempted:
            engine._set_aside(engine.residency._preempt())
        return found + drain(engine)["r"].steps

    assert steps(True) == steps(False)


def test_a_grammar_goes_on_where_it_was(make_engine, ask, drain, prompts) -> None:
    characters = string.ascii_lowercase + string.digits + string.ascii_uppercase[:12]  # a token for each
    backend = Tokenizer(models.BPE({c: i for i, c in enumerate(characters)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend)
    spec = GrammarSpec("regex", "(f|g|h|k|9){30,50}")

    def text(preempted: bool):
        engine = make_engine(3, "ngram", tokenizer=tokenizer)
        engine.submit(replace(ask(prompts[4], max_tokens=60, **SEEDED), grammar=spec))
        for _ in range(4):
            engine.step()
        if preempted:
            engine._set_aside(engine.residency._preempt())
        done = drain(engine)["r"]
        assert done.error is None
        return done.token_ids

    assert len(text(True)) > 10
    assert text(True) == text(False)


def test_one_that_waits_again_can_be_cancelled(make_engine, ask, drain, prompts) -> None:
    engine = make_engine(0, "none", eos=())
    engine.submit(ask(prompts[4]))
    for _ in range(3):
        engine.step()
    engine._set_aside(engine.residency._preempt())
    chunk = engine.cancel("r")
    assert (chunk.finish_reason, chunk.record.completion_tokens) == ("cancelled", 3)
    assert (engine.has_work, engine.tables.used, len(engine.scheduler.waiting)) == (False, 0, 0)


def test_a_cancelled_request_leaves_its_blocks_to_the_next_step(make_engine, ask, prompts) -> None:
    engine = make_engine(0, "none", eos=(), kv_blocks=11)
    engine.submit(ask(prompts[10], "long", max_tokens=20))
    engine.submit(ask(prompts[9], "next", max_tokens=20))
    engine.step()
    assert [s.request.request_id for s in engine.scheduler.running] == ["long"]
    engine.cancel("long")
    engine.step()
    assert [s.request.request_id for s in engine.scheduler.running] == ["next"]


def test_a_request_that_does_not_fit_alone_is_refused_by_the_name_of_the_setting(make_engine, ask, prompts) -> None:
    engine = make_engine(0, "none", kv_blocks=10)
    with pytest.raises(ValueError, match=r"come to 161 tokens; the KV cache holds 160: .* setting kv_cache_tokens"):
        engine.submit(ask(prompts[9], max_tokens=161 - len(prompts[9])))
    engine.submit(ask(prompts[9], max_tokens=160 - len(prompts[9])))


def test_one_that_fills_the_cache_alone_is_served(make_engine, ask, drain, prompts) -> None:
    engine = make_engine(8, "close", eos=(), kv_blocks=10)
    engine.submit(ask(prompts[9], max_tokens=160 - len(prompts[9])))
    assert len(drain(engine)["r"].token_ids) == 160 - len(prompts[9])


def test_the_oldest_gets_on_in_every_step(make_engine, ask, texts) -> None:
    engine = make_engine(0, "none", eos=(), kv_blocks=TIGHT)
    for i, prompt in enumerate(texts):
        engine.submit(ask(prompt, f"{i}", max_tokens=TOKENS))
    while engine.has_work:
        sequences = sorted(engine._sequences.values(), key=lambda s: s.arrival)
        before = [(s.kv_length, len(s.token_ids)) for s in sequences]
        engine.step()
        running = [(s, at) for s, at in zip(sequences, before, strict=True) if s.finish_reason is None and s.blocks]
        if running:
            sequence, at = running[0]
            assert (sequence.kv_length, len(sequence.token_ids)) > at


def test_one_that_waits_again_is_not_taken_for_stalled_and_its_deadline_goes_on(make_engine, ask, prompts) -> None:
    now = [0.0]
    engine = make_engine(0, "none", eos=())
    engine.deadlines = Deadlines(TimeLimits(queue_wait_s=5.0, stall_s=5.0), lambda: now[0])
    engine.submit(replace(ask(prompts[4]), deadline_at=engine._clock() + 100.0))
    engine.step()
    engine._set_aside(engine.residency._preempt())
    now[0] = 50.0
    assert engine.end_overdue() == []
    now[0] = 101.0
    assert [chunk.error for chunk in engine.end_overdue()] == [DEADLINE]


def test_the_watchdog_goes_on_once_it_is_back(make_engine, ask, prompts) -> None:
    now = [0.0]
    engine = make_engine(0, "none", eos=())
    engine.deadlines = Deadlines(TimeLimits(stall_s=5.0), lambda: now[0])
    engine.submit(ask(prompts[4]))
    engine.step()
    engine._set_aside(engine.residency._preempt())
    now[0] = 50.0
    engine.step()
    now[0] = 56.0
    assert [chunk.error for chunk in engine.end_overdue()] == ["stalled"]


def test_an_answer_goes_in_again_by_pieces_of_the_size_of_decoding(make_engine, ask, prompts) -> None:
    engine = make_engine(0, "none", eos=(), prefix_cache=False)
    engine.submit(ask(prompts[4], max_tokens=100))
    for _ in range(80):
        engine.step()
    engine._set_aside(engine.residency._preempt())
    engine._admit()
    (sequence,) = engine.scheduler.running
    pieces = []
    while sequence.is_prefilling:
        (prefill,) = engine.scheduler.schedule().prefills
        pieces.append(prefill.length)
        engine.target._prefill([prefill])
    assert pieces == [len(prompts[4]), REPLAY_ROWS, REPLAY_ROWS, 79 - 2 * REPLAY_ROWS]


def test_the_gauges_never_say_more_than_there_is(make_engine, ask, texts) -> None:
    engine = make_engine(4, "close", eos=(), kv_blocks=TIGHT)
    for i, prompt in enumerate([*texts, *texts]):
        engine.submit(ask(prompt, f"{i}", max_tokens=TOKENS))
    seen = []
    while engine.has_work:
        engine.step()
        window = engine.close_window()
        seen.append(window.kv_used)
        assert window.kv_total == TIGHT * BLOCK_SIZE
    assert max(seen) <= TIGHT * BLOCK_SIZE
    assert seen[-1] == 0
