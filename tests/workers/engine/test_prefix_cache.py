"""KV of a text serves the next one that begins alike, and nothing but time and positions shows it."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
import torch

import workers.attention
import workers.engine
from workers.canary import Canary
from workers.kv_cache import KVSlots
from workers.step_layout import Rows
from workers.uniform_rows import has_uniform_rows

GREEDY: dict[str, Any] = {"temperature": 0.0}
SEEDED: dict[str, Any] = {"temperature": 0.9, "seed": 11}
HEAD = [3 + i * i % 40 for i in range(150)]
SHAPE = {"hidden_size": 192, "num_attention_heads": 3, "num_key_value_heads": 1, "initializer_range": 0.1}
"""Of products that PyTorch computes by one kernel for any number of rows, as those of real models are; below 4096
multiplications it takes another one.
"""
TAILS = [[5], [6, 7, 8], [9] * 20]


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def dtype(request):
    return request.param


def one(engine, ask, drain, prompt, name="r", **sampling):
    engine.submit(ask(prompt, name, **sampling))
    return drain(engine)[name]


def computed(done) -> int:
    return done.record.prefill_positions


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
@pytest.mark.parametrize("proposer", ["none", "ngram", "close", "eagle", "medusa", "ngram+eagle"])
def test_text_on_a_hit_is_that_of_a_miss(make_engine, ask, drain, proposer, sampling, dtype) -> None:
    engine = make_engine(4, proposer, eos=(), dtype=dtype)
    one(engine, ask, drain, HEAD)
    hits = [one(engine, ask, drain, HEAD + tail, **sampling) for tail in TAILS]
    assert [computed(hit) for hit in hits] == [len(HEAD + tail) - 144 for tail in TAILS]
    plain = [make_engine(0, "none", eos=(), dtype=dtype, prefix_cache=False) for _ in TAILS]
    misses = [one(e, ask, drain, HEAD + tail, **sampling) for e, tail in zip(plain, TAILS, strict=True)]
    assert [hit.token_ids for hit in hits] == [miss.token_ids for miss in misses]


def test_logprobs_on_a_hit_are_those_of_a_miss(make_engine, ask, drain, dtype) -> None:
    engine = make_engine(4, "close", eos=(), dtype=dtype)
    one(engine, ask, drain, HEAD)
    hit = one(engine, ask, drain, [*HEAD, 5], logprobs=3)
    miss = one(make_engine(0, "none", eos=(), dtype=dtype), ask, drain, [*HEAD, 5], logprobs=3)
    assert (computed(hit), hit.logprobs) == (7, miss.logprobs)


@pytest.mark.parametrize("attention", ["auto", "gathered"])
@pytest.mark.parametrize("threads", [1, 2])
def test_kv_does_not_depend_on_how_its_text_was_cut(make_runner, dtype, threads, attention, monkeypatch) -> None:
    """The ground that sharing stands on: chunks, a hit's rest, drafts, replays, all give the same bits."""
    if attention == "gathered":
        monkeypatch.setattr(workers.attention, "choose_attention_backend", lambda *_: "naive")
    runner = make_runner(dtype=dtype, slots=3, **SHAPE)
    numbers, places = random.Random(0), KVSlots(3, 256)
    text = [numbers.randrange(48) for _ in range(250)]

    def kv(slot: int, cuts: list[int]) -> list[torch.Tensor]:
        torch.set_num_threads(threads)
        start = 0
        for end in (*cuts, len(text)):
            runner.forward([Rows(places.blocks(slot), start, text[start:end])], [0])
            start = end
        torch.set_num_threads(1)
        held = list(places.blocks(slot))
        return [layer[held].flatten(0, 1)[: len(text)].clone() for layer in (*runner.kv.keys, *runner.kv.values)]

    whole = kv(0, [128])
    differing = []
    for trial in range(12):
        most = numbers.choice([1, 3, 9, 33, 128])
        cuts, at = [], 0
        while (at := at + numbers.randrange(1, most + 1)) < len(text):
            cuts.append(at)
        if not all(torch.equal(a, b) for a, b in zip(whole, kv(1 + trial % 2, cuts), strict=True)):
            differing.append(cuts)
    assert not differing


def test_the_device_is_tried_for_it(make_runner, dtype) -> None:
    assert has_uniform_rows(make_runner(dtype=dtype, slots=2, **SHAPE))


def test_a_device_on_which_the_cut_matters_is_found_out(make_runner, monkeypatch) -> None:
    runner = make_runner(slots=2)
    real = runner.forward

    def by_rows(rows, keep):
        logits = real(rows, keep)
        if len(rows[0].token_ids) < 8:
            runner.kv.keys[1][rows[0].blocks[rows[0].start // 16]] *= 1 + 1e-6
        return logits

    monkeypatch.setattr(runner, "forward", by_rows)
    assert not has_uniform_rows(runner)


def test_where_the_cut_matters_only_whole_chunks_are_shared(make_engine, ask, drain, monkeypatch) -> None:
    monkeypatch.setattr(workers.engine, "has_uniform_rows", lambda runner: False)
    engine = make_engine(4, "close", eos=())
    first = one(engine, ask, drain, HEAD)
    assert computed(one(engine, ask, drain, [*HEAD, 5], "again")) == len(HEAD) + 1 - 128
    assert computed(one(engine, ask, drain, HEAD + first.token_ids + [5], "turn")) == len(HEAD) + 24 + 1 - 128


def test_another_tenant_computes_its_own(make_engine, ask, drain) -> None:
    engine = make_engine(0, "none", eos=())
    for name, tenant, positions in (("a", "a", 150), ("b", "b", 150), ("a2", "a", 6), ("b2", "b", 6)):
        engine.submit(replace(ask(HEAD, name), tenant=tenant))
        assert computed(drain(engine)[name]) == positions


def test_without_a_tenant_a_cohort_shares(make_engine, ask, drain) -> None:
    engine = make_engine(0, "none", eos=())
    positions = [computed(one(engine, ask, drain, HEAD, f"{i}", cohort=c)) for i, c in enumerate(("a", "b", "a"))]
    assert positions == [150, 150, 6]


def test_the_next_turn_of_a_chat_computes_what_is_new(make_engine, ask, drain) -> None:
    engine = make_engine(4, "close", eos=())
    first = one(engine, ask, drain, HEAD[:40], max_tokens=60)
    turn = HEAD[:40] + first.token_ids + [7, 8, 9]
    second = one(engine, ask, drain, turn, max_tokens=20)
    assert computed(second) == len(turn) - 96
    assert second.token_ids == one(make_engine(0, "none", eos=()), ask, drain, turn, max_tokens=20).token_ids


def test_requests_that_come_together_compute_their_common_head_once(make_engine, ask, drain) -> None:
    engine = make_engine(0, "none", eos=())
    head = HEAD + HEAD[:50]
    for i in range(4):
        engine.submit(ask([*head, 3 + i], f"{i}", max_tokens=4))
    done = drain(engine)
    assert sum(map(computed, done.values())) <= len(head) + 1 + 3 * (len(head) + 1 - 192)


def test_what_is_shared_is_held_once(make_engine, ask, drain) -> None:
    engine = make_engine(0, "none", eos=())
    one(engine, ask, drain, HEAD)
    for i in range(4):
        engine.submit(ask([*HEAD, 3 + i], f"{i}", max_tokens=4))
    engine.step()
    assert engine.close_window().kv_used == 16 * (9 + 4)


def test_one_of_those_who_share_may_end_and_the_others_go_on(make_engine, ask, drain, collect) -> None:
    engine = make_engine(4, "close", eos=(), kv_blocks=24)
    one(engine, ask, drain, HEAD)
    for i in range(3):
        engine.submit(ask([*HEAD, 3 + i], f"{i}", max_tokens=30))
    begun: dict[str, Any] = {}
    collect(begun, engine.step())
    engine.cancel("0")
    # Whoever takes the blocks that are free now must not get those that are held.
    engine.submit(ask(HEAD[::-1][:60], "other", max_tokens=30))
    done = drain(engine)
    for i in (1, 2):
        expected = one(make_engine(0, "none", eos=()), ask, drain, [*HEAD, 3 + i], max_tokens=30)
        assert begun[f"{i}"].token_ids + done[f"{i}"].token_ids == expected.token_ids


@pytest.mark.parametrize("proposer", ["eagle", "medusa"])
def test_a_drafter_that_reads_features_drafts_on_a_hit_as_on_a_miss(make_engine, ask, drain, proposer) -> None:
    """TensorRT-LLM 16888: positions that nobody told it of would be holes in its state."""
    engine = make_engine(3, proposer, eos=())
    one(engine, ask, drain, HEAD)
    hit = one(engine, ask, drain, [*HEAD, 5], max_tokens=40)
    miss = one(make_engine(3, proposer, eos=()), ask, drain, [*HEAD, 5], max_tokens=40)
    assert (computed(hit), hit.steps) == (7, miss.steps)
    assert any(drafted for drafted, _ in hit.steps)


def test_a_draft_model_catches_up_on_a_hit(make_engine, ask, drain) -> None:
    engine = make_engine(4, "target", eos=())
    one(engine, ask, drain, HEAD)
    hit = one(engine, ask, drain, [*HEAD, 5], max_tokens=21)
    assert hit.steps == [(4, 4)] * 4


def test_a_prompt_that_is_to_be_scored_is_computed(make_engine, ask, drain) -> None:
    engine = make_engine(0, "none", eos=())
    one(engine, ask, drain, HEAD)
    scored = one(engine, ask, drain, HEAD, prompt_logprobs=1)
    fresh = one(make_engine(0, "none", eos=(), prefix_cache=False), ask, drain, HEAD, prompt_logprobs=1)
    assert (computed(scored), scored.prompt_logprobs) == (len(HEAD), fresh.prompt_logprobs)


def test_rejected_drafts_are_never_shared(make_engine, ask, drain) -> None:
    """mlx-vlm 1155: what was rejected stayed in the cache. Here it would be another request's text."""
    engine = make_engine(8, "draft", eos=())
    first = one(engine, ask, drain, HEAD[:10], max_tokens=90)
    assert any(accepted < drafted for drafted, accepted in first.steps)
    turn = HEAD[:10] + first.token_ids + [5]
    hit = one(engine, ask, drain, turn, max_tokens=30)
    assert computed(hit) < len(turn) - 60
    assert hit.token_ids == one(make_engine(0, "none", eos=()), ask, drain, turn, max_tokens=30).token_ids


def test_hits_are_counted_for_clients_and_operators(make_engine, ask, drain) -> None:
    engine = make_engine(0, "none", eos=())
    one(engine, ask, drain, HEAD)
    engine.submit(ask(HEAD, "again"))
    chunks = []
    while engine.has_work:
        chunks += engine.step()
    assert (chunks[0].cached_tokens, chunks[-1].cached_tokens) == (144, 144)
    counts = engine.residency.counts
    assert (counts.prompt_tokens, counts.cached_tokens) == ({"default": 300}, {"default": 144})


def test_only_what_was_computed_is_billed(make_engine, ask, drain) -> None:
    engine = make_engine(0, "none", eos=())
    for tenant, name in (("a", "1"), ("a", "2"), ("b", "3")):
        engine.submit(replace(ask(HEAD, name, max_tokens=2), tenant=tenant))
        drain(engine)
    (cohort,) = engine.close_window().cohorts
    uses = {use.tenant: (use.prefill_positions, use.input_tokens) for use in cohort.tenants}
    assert uses == {"a": (150 + 6, 300), "b": (150, 150)}


def test_off_is_off(make_engine, ask, drain) -> None:
    engine = make_engine(0, "none", eos=(), prefix_cache=False)
    assert [computed(one(engine, ask, drain, HEAD)) for _ in range(2)] == [150, 150]


def test_the_canary_is_not_fooled_by_wrong_kv_that_is_shared(make_engine, ask, drain, collect) -> None:
    """It computes the text anew: were it to read the same cache, it would agree with whatever came of it."""
    engine = make_engine(4, "close", eos=())
    one(engine, ask, drain, HEAD)
    kv = engine.target.runner.kv
    for block in engine.tables._pool._known:
        kv.values[0][block] *= -1
    canary = Canary(engine, share=1.0)
    request = ask(HEAD, "wrong", max_tokens=40)
    canary.begin(request)
    engine.submit(request)
    while engine.has_work:
        for chunk in engine.step():
            canary.follow(chunk)
    checks = []
    while canary.is_due(busy=False):
        checks.append(canary.piece(busy=False))
    assert [check.verdict for check in checks if check] == ["mismatch"]


def test_a_check_leaves_nothing_in_the_cache(make_engine, ask, drain) -> None:
    engine = make_engine(4, "close", eos=())
    canary = Canary(engine, share=1.0)
    request = ask(HEAD, max_tokens=40)
    canary.begin(request)
    engine.submit(request)
    while engine.has_work:
        for chunk in engine.step():
            canary.follow(chunk)
    cached = engine.tables.cached
    checks = [canary.piece(busy=False) for _ in range(6) if canary.is_due(busy=False)]
    assert [check.verdict for check in checks if check] == ["same"]
    assert (engine.tables.cached, engine.tables.used) == (cached, 0)
