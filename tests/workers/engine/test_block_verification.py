"""`verification: block` in the engine: unseeded chains keep more, no other text changes, the evidence is right.

That what is emitted has the target's law: test_distribution.py, and exactly in tests/kernels/verify.
"""

from __future__ import annotations

import numpy as np
import pytest

K = {"default": 3, "a": 4, "b": 8}
COHORTS = tuple(K)
UNSEEDED = {"temperature": 1.3}


def texts_of(engine, ask, drain, prompts, sampling):
    """Token ids of every prompt, all at once, at three K."""
    for i, prompt in enumerate(prompts):
        engine.submit(ask(prompt, f"{i}", cohort=COHORTS[i % 3], **sampling))
    done = drain(engine)
    return [done[f"{i}"].token_ids for i in range(len(prompts))]


@pytest.fixture
def fixed_noise(monkeypatch):
    """Unseeded requests draw their noise keys from a fixed sequence, so that no test can fail by chance."""
    numbers = np.random.default_rng(5)
    monkeypatch.setattr("workers.engine.secrets.randbits", lambda bits: int(numbers.integers(2**62)))


@pytest.fixture
def window_of(make_engine, ask, drain, fixed_noise):
    """What a worker reports of unseeded chains of 4 under a rule."""

    def run(rule, proposer="close"):
        engine = make_engine(4, proposer, eos=(), rule=rule)
        for i in range(16):
            engine.submit(ask([3 + i, 4, 5], f"{i}", max_tokens=100, **UNSEEDED))
        drain(engine)
        (cohort,) = engine.close_window().cohorts
        return cohort

    return run


@pytest.mark.parametrize("proposer", ["ngram", "close", "eagle", "ngram+close"])
@pytest.mark.parametrize("sampling", [{"temperature": 0.0}, {"temperature": 0.9, "seed": 11}], ids=["greedy", "seeded"])
def test_greedy_and_seeded_texts_are_those_of_plain_decoding(
    make_engine, ask, drain, prompts, proposer, sampling
) -> None:
    by_block = texts_of(make_engine(K, proposer, rule="block"), ask, drain, prompts, sampling)
    assert by_block == texts_of(make_engine(0, "none"), ask, drain, prompts, sampling)


def test_seeded_texts_do_not_change_beside_unseeded_ones(make_engine, ask, drain, prompts) -> None:
    engine = make_engine(4, "close", rule="block")
    for i, prompt in enumerate(prompts):
        engine.submit(ask(prompt, f"{i}", **({"temperature": 0.9, "seed": 11} if i % 2 else UNSEEDED)))
    beside = drain(engine)
    alone = texts_of(make_engine(0, "none"), ask, drain, prompts, {"temperature": 0.9, "seed": 11})
    assert [beside[f"{i}"].token_ids for i in range(1, len(prompts), 2)] == alone[1::2]


def test_a_step_keeps_more(window_of) -> None:
    by_token, by_block = window_of("token", "draft"), window_of("block", "draft")
    assert by_block.accepted_tokens / by_block.spec_steps > 1.05 * by_token.accepted_tokens / by_token.spec_steps


@pytest.mark.parametrize("proposer", ["draft", "close", "ngram+close"])
@pytest.mark.parametrize("rule", ["token", "block"])
def test_the_reported_chance_of_a_position_is_the_share_that_is_kept(window_of, proposer, rule) -> None:
    """Below it: the smaller of the two laws' masses alone is too small a chance where blocks are kept."""
    cohort = window_of(rule, proposer)
    for position in range(4):
        examined = sum(cell.overlap_steps[position] for cell in cohort.cells if len(cell.overlap) > position)
        mean = sum(cell.overlap[position] for cell in cohort.cells if len(cell.overlap) > position) / examined
        kept = cohort.accepted_at(position) / examined
        assert abs(mean - kept) < 4 * (max(kept * (1 - kept), 0.01) / examined) ** 0.5
