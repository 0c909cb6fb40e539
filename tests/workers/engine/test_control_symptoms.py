"""What went wrong elsewhere when K changed under load, each as the symptom that was reported."""

from __future__ import annotations

import itertools
import random

import pytest

import workers.shadow
from controlplane.telemetry import LOAD_BUCKETS
from workers.plan_client import constant_plan


def by_load(k, version=0):
    """A plan of one K by number of running sequences."""
    plan = constant_plan(0, [])
    return type(plan)(0, version, 0.0, plan.expires_at, {"default": tuple(map(k, LOAD_BUCKETS))}, {}, "by load")


@pytest.fixture
def watch(monkeypatch):
    """Notes the size of every forward of a model, and how often its drafter was at work."""

    def on(engine):
        forwards, drafts = [], []
        name = "forward_with_features" if engine.proposer.feature_layers else "forward"
        forward, propose = getattr(engine.target.runner, name), engine.proposer.propose

        def watched_forward(rows, *arguments):
            forwards.append(sum(len(r.token_ids) for r in rows))
            return forward(rows, *arguments)

        def watched_propose(batch, k):
            proposal = propose(batch, k)
            drafts.append(sum(proposal.positions) + proposal.cu_draft[-1])
            return proposal

        monkeypatch.setattr(engine.target.runner, name, watched_forward)
        monkeypatch.setattr(engine.proposer, "propose", watched_propose)
        return forwards, drafts

    return on


@pytest.mark.parametrize("proposer", ["ngram", "close", "eagle"])
def test_row_1_eight_requests_across_the_k_zero_threshold_crawl(make_engine, ask, watch, proposer) -> None:
    """Throughput fell to a tenth once K was 0 (vllm 49548). A step beyond it is a plain step, forward by forward."""
    crossing, plain = make_engine(0, proposer, eos=()), make_engine(0, "none", eos=())
    crossing.plan_client.plan = by_load(lambda running: 2 if running <= 4 else 0)
    sizes = []
    for engine in (crossing, plain):
        for i in range(8):
            engine.submit(ask([3 + i, 4, 5], f"{i}", max_tokens=60))
        while engine.scheduler.waiting or any(s.is_prefilling for s in engine.scheduler.running):
            engine.step()
        forwards, drafts = watch(engine)
        for _ in range(5):
            engine.step()
        sizes.append((forwards, drafts))
    assert sizes[0] == sizes[1] == ([8] * 5, [0] * 5)


@pytest.mark.parametrize("sampling", [{"temperature": 0.0}, {"temperature": 0.9, "seed": 11}])
@pytest.mark.parametrize("shadow_depth", [0, 3])
def test_row_2_acceptance_collapses_after_k_was_zero_for_a_while(
    make_engine, ask, prompts, sampling, shadow_depth, monkeypatch
) -> None:
    """K = 0 skipped the drafter's forward and left holes in its cache (TensorRT-LLM 16888); with shadows or without."""
    monkeypatch.setattr(workers.shadow, "TIME_SHARE", 1e9)

    def steps(pause):
        engine = make_engine(3, "target", eos=(), shadow_depth=shadow_depth)
        engine.submit(ask(prompts[4], max_tokens=90, **sampling))
        seen = []
        for i in range(24):
            engine.plan_client.plan = constant_plan(0 if i in pause else 3, ["default"])
            seen += [s for chunk in engine.step() for s in chunk.steps]
        return [s for s in seen if s[0]], seen.count((0, 0))

    paused, plain_steps = steps(range(6, 14))
    never_paused, _ = steps(())
    assert plain_steps == 8
    assert set(paused) == set(never_paused) == {(3, 3)}


@pytest.mark.parametrize("proposer", ["ngram", "close", "eagle"])
def test_row_7_the_engine_hangs_while_a_full_batch_drains_under_changing_k(make_engine, ask, drain, proposer) -> None:
    """Acceptance collapsed and the engine hung as 256 requests drained (vllm 54011). 40 over 8 slots, K at random."""
    lengths = list(itertools.islice(itertools.cycle((1, 3, 9, 14, 30, 41)), 40))

    def submit(engine):
        for i, length in enumerate(lengths):
            engine.submit(ask([3 + i % 40, 4, 5, 4, 5], f"{i}", max_tokens=length))
        return engine

    numbers = random.Random(1)
    engine = submit(make_engine(0, proposer, eos=()))
    texts = {f"{i}": [] for i in range(len(lengths))}
    for version in range(1, 1000):
        if not engine.has_work:
            break
        rungs = [numbers.choice((0, 1, 2, 4, 8)) for _ in LOAD_BUCKETS]
        engine.plan_client.accept(by_load(dict(zip(LOAD_BUCKETS, rungs, strict=True)).get, version))
        for chunk in engine.step():
            texts[chunk.request_id] += chunk.token_ids
    assert not engine.has_work
    assert engine.tables.used == 0
    plain = drain(submit(make_engine(0, "none", eos=())))
    assert texts == {name: done.token_ids for name, done in plain.items()}


@pytest.mark.parametrize(("planned", "used"), [(-1, 0), (99, 16)])
def test_row_3_a_k_outside_of_the_ladder_stops_the_worker(make_engine, ask, drain, planned, used) -> None:
    engine = make_engine(0, "target", eos=())
    engine.plan_client.plan = by_load(lambda running: planned)
    engine.submit(ask([3, 4, 5], max_tokens=40))
    done = drain(engine)["r"]
    assert len(done.token_ids) == 40
    assert max(drafted for drafted, _ in done.steps) == used
    assert engine.plan_client.clamped == 1


def test_row_6_a_batch_is_split_over_two_plans(make_engine, ask, monkeypatch) -> None:
    """Ranks that chose K by themselves ran different steps (vllm 45963, sglang 35898). A plan amid a step waits."""
    engine = make_engine(0, "target", eos=())
    engine.plan_client.plan = by_load(lambda running: 2, version=1)
    for i in range(4):
        engine.submit(ask([3 + i, 4], f"{i}", max_tokens=60))
    for _ in range(5):
        engine.step()
    propose = engine.proposer.propose

    def interrupted(batch, k):
        engine.plan_client.accept(by_load(lambda running: 4, version=2))
        return propose(batch, k)

    monkeypatch.setattr(engine.proposer, "propose", interrupted)
    drafted = [{drafted for chunk in engine.step() for drafted, _ in chunk.steps} for _ in range(2)]
    assert drafted == [{2}, {4}]
