"""Random schedules of submit, cancel, K and preemption: texts are those of plain decoding, and no block is lost."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from workers.plan_client import constant_plan

COHORTS = ("default", "a", "b")
HEAD = [3 + i * i % 40 for i in range(60)]
PROMPTS = [HEAD[:4], HEAD[:33], HEAD, HEAD[:48] + [7] * 5, HEAD[::-1][:50], [5], HEAD * 2 + [9] * 20]
WISHES: list[dict[str, Any]] = [{"temperature": 0.0}, {"temperature": 0.9, "seed": 3}]
TOKENS = 40

moves = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.integers(0, len(PROMPTS) - 1), st.integers(0, 1), st.integers(1, TOKENS)),
        st.tuples(st.just("cancel"), st.integers(0, 30)),
        st.tuples(st.just("k"), st.sampled_from([0, 1, 3, 8])),
        st.tuples(st.just("preempt")),
        st.tuples(st.just("step"), st.integers(1, 9)),
    ),
    min_size=4,
    max_size=30,
)


@pytest.fixture(scope="module")
def expected(make_engine, ask, drain):
    """Text of each prompt by each wish, by plain decoding alone."""
    known: dict[tuple[int, int], list[int]] = {}
    for p, prompt in enumerate(PROMPTS):
        for w, wish in enumerate(WISHES):
            engine = make_engine(0, "none", eos=(), prefix_cache=False)
            engine.submit(ask(prompt, max_tokens=TOKENS, **wish))
            known[p, w] = drain(engine)["r"].token_ids
    return known


def check_blocks(engine) -> None:
    """Each block is had or held, and held by as many as have it in their tables."""
    pool = engine.tables._pool
    holders: dict[int, int] = {}
    for sequence in engine.scheduler.running:
        assert len(set(sequence.blocks)) == len(sequence.blocks)
        for block in sequence.blocks:
            holders[block] = holders.get(block, 0) + 1
    assert pool._holders == holders
    assert pool.available + pool.used == pool.num_blocks
    assert all(not sequence.blocks for sequence in engine.scheduler.waiting)


@pytest.mark.parametrize("proposer", ["ngram", "close", "ngram+eagle"])
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(schedule=moves)
def test_texts_are_those_of_plain_decoding_and_no_block_is_lost(
    make_engine, ask, collect, expected, proposer, schedule
) -> None:
    engine = make_engine(3, proposer, eos=(), kv_blocks=14, slots=4)
    asked: dict[str, tuple[int, int, int]] = {}
    out: dict[str, Any] = {}
    for move, *values in [*schedule, ("step", 2000)]:
        if move == "submit":
            p, w, tokens = values
            name = f"{len(asked)}"
            asked[name] = p, w, tokens
            engine.submit(ask(PROMPTS[p], name, cohort=COHORTS[len(asked) % 3], max_tokens=tokens, **WISHES[w]))
        elif move == "cancel" and f"{values[0]}" in asked:
            chunk = engine.cancel(f"{values[0]}")
            collect(out, [chunk] if chunk else [])
        elif move == "k":
            engine.plan_client.plan = constant_plan(values[0], COHORTS)
        elif move == "preempt" and engine.scheduler.running:
            engine._set_aside(engine.residency._preempt())
        elif move == "step":
            for _ in range(values[0]):
                if not engine.has_work:
                    break
                collect(out, engine.step())
                check_blocks(engine)
    assert not engine.has_work
    assert engine.tables.used == 0
    for name, (p, w, tokens) in asked.items():
        done = out[name]
        assert done.token_ids == expected[p, w][: len(done.token_ids)]
        assert len(done.token_ids) == tokens or done.record.finish_reason == "cancelled"
