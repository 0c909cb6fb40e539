"""On a device the host waits once a step, for the verdict, whoever drafts.

Nothing of that can be timed on a CPU. The engine runs over tensors that say they are on another device
(tracked_device.py), and what a GPU would wait for is counted. Its kernels run as they are: that they read nothing back
is theirs to keep (kernels/*/fused.py).
"""

from __future__ import annotations

import copy

import pytest
import torch

import workers.attention
import workers.proposers.draws
import workers.target
import workers.verifier
from tests.workers.engine.conftest import TREES
from tests.workers.engine.tracked_device import DEVICE, kernel, move, moved, real_of, tracked, tracking
from workers.attention import IMPLEMENTATION
from workers.model_runner import ModelRunner
from workers.proposers.eagle import EagleProposer
from workers.proposers.medusa import MedusaProposer
from workers.step_graphs import GraphFree
from workers.step_recording import record_steps

HIDDEN = 64
"""Heads of 16, which the attention that reads blocks computes."""
WISHES = {
    "greedy": {"temperature": 0.0},
    "seeded": {"temperature": 0.8, "seed": 5},
    "unseeded": {"temperature": 0.8},
    "limited": {"temperature": 0.8, "top_k": 9, "top_p": 0.9, "min_p": 0.01},
    "penalised": {"temperature": 0.0, "repetition_penalty": 1.2, "presence_penalty": 0.3},
    "biased": {"temperature": 0.0, "logit_bias": ((7, 2.0), (9, -1.0)), "min_tokens": 30},
    "measured": {"temperature": 0.0, "logprobs": 3},
}


@pytest.fixture
def device(monkeypatch):
    """Every kernel that a step calls takes tensors of the tracked device."""
    for module, name in (
        (workers.attention, "tree_attention"), (workers.attention, "write_kv"), (workers.verifier, "verify_chain"),
        (workers.verifier, "verify_tree"), (workers.target, "kv_commit"), (workers.proposers.draws, "gumbel_noise"),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, kernel(getattr(module, name)))


def to_device(engine) -> None:
    """An engine whose requests are amid their answers, moved there."""
    runners = [engine.target.runner, *(p for p in engine.proposer.compilables if isinstance(p, ModelRunner))]
    for runner in runners:
        runner._model = copy.deepcopy(runner._model)  # tests share one
        runner._model.set_attn_implementation(IMPLEMENTATION)
        move(runner._model)
        runner.device = DEVICE
        runner.kv.keys, runner.kv.values = moved(runner.kv.keys), moved(runner.kv.values)
        runner.kv.features = tracked(runner.kv.features)
    drafter = getattr(engine.proposer, "_second", engine.proposer)
    if isinstance(drafter, EagleProposer):
        move(drafter._model)
        drafter._kv.keys, drafter._kv.values = moved(drafter._kv.keys), moved(drafter._kv.values)
        for state in drafter._states.values():
            state.features = moved(state.features)
    if isinstance(drafter, MedusaProposer):
        move(drafter._model)
        for known in drafter._known.values():
            known.last = tracked(known.last)
    for name in ("_vocabulary", "_embeddings", "_head"):
        if hasattr(drafter, name):
            setattr(drafter, name, tracked(getattr(drafter, name)))


@pytest.fixture
def started(make_engine, ask, prompts, monkeypatch):
    """An engine with three requests, amid their answers; what is not seeded has one seed."""
    monkeypatch.setattr("workers.engine.secrets.randbits", lambda _: 11)

    def make(k, proposer, trees=None, **sampling):
        engine = make_engine(k, proposer, slots=4, eos=(), hidden=HIDDEN, trees=trees or {}, prefix_cache=False)
        for i, prompt in enumerate(prompts[4:7]):
            engine.submit(ask(prompt, f"{i}", max_tokens=40, **sampling))
        for _ in range(3):
            engine.step()
        return engine

    return make


@pytest.fixture
def step(started, ask, device):
    """What decoding steps wait for and copy, one of them unless told otherwise."""

    def traffic(k, proposer, *, steps=1, is_recorded=False, trees=None, newcomer=(), **sampling):
        engine = started(k, proposer, trees, **sampling)
        to_device(engine)
        with tracking() as found:
            if is_recorded:
                record_steps(engine, (0, k), GraphFree())
                found.waits.clear()
                found.copies = 0
            if newcomer:
                engine.submit(ask(newcomer, "new", max_tokens=40, **sampling))
            for _ in range(steps):
                committed = engine.step()
        assert len(committed) == 3 + bool(newcomer)
        return found

    return traffic


@pytest.mark.parametrize("is_recorded", [False, True], ids=["eager", "recorded"])
@pytest.mark.parametrize("k", [0, 4])
@pytest.mark.parametrize("wishes", WISHES)
def test_a_step_waits_once(step, k, wishes, is_recorded) -> None:
    found = step(k, "ngram", is_recorded=is_recorded, **WISHES[wishes])
    assert found.waits == ["copied to the host"]


def test_a_prompt_in_the_step_costs_a_copy_and_no_waiting(step) -> None:
    found = step(4, "ngram", newcomer=[3, 4, 5, 6, 7], temperature=0.0)
    assert (found.waits, found.copies) == (["copied to the host"], 3)


@pytest.mark.parametrize("is_recorded", [False, True], ids=["eager", "recorded"])
def test_a_plain_step_copies_its_tables_at_once_and_the_verifiers_at_once(step, is_recorded) -> None:
    assert step(4, "ngram", is_recorded=is_recorded).copies == 2


CHAINS = ["close", "eagle", "medusa", "ngram+close", "ngram+eagle", "ngram+medusa"]


@pytest.mark.parametrize("is_recorded", [False, True], ids=["eager", "recorded"])
@pytest.mark.parametrize("wishes", ["greedy", "seeded", "unseeded", "limited", "biased"])
@pytest.mark.parametrize("proposer", CHAINS)
def test_drafts_are_not_waited_for(step, proposer, wishes, is_recorded) -> None:
    """Nor later: what the drafter was fed with, the verifier has read."""
    found = step(4, proposer, steps=2, is_recorded=is_recorded, **WISHES[wishes])
    assert found.waits == ["copied to the host"] * 2


@pytest.mark.parametrize(
    ("proposer", "trees", "wishes", "levels"),
    [
        ("close", None, "penalised", 4), ("eagle", None, "penalised", 4), ("medusa", None, "penalised", 3),
        ("eagle", TREES, "greedy", 2), ("medusa", TREES, "unseeded", 2),
    ],
)  # fmt: skip
def test_drafts_that_must_be_read_are_once_a_level_for_all_sequences(step, proposer, trees, wishes, levels) -> None:
    """Penalties count the drafts before a row, and the rows of a tree are laid out by the host."""
    found = step(4, proposer, trees=trees, **WISHES[wishes])
    assert found.waits == ["copied to the host"] * (levels + 1)


@pytest.mark.parametrize("wishes", ["greedy", "seeded", "unseeded", "penalised"])
@pytest.mark.parametrize("proposer", CHAINS)
def test_drafts_that_nobody_read_are_those_that_would_have_been(started, device, proposer, wishes) -> None:
    """Whether they stand or not: tokens, and what they were drawn from."""
    here, there = (started(4, proposer, **WISHES[wishes]) for _ in range(2))
    expected = here.proposer.propose(here.scheduler.schedule().decoding, [4, 2, 3])
    to_device(there)
    with tracking():
        found = there.proposer.propose(there.scheduler.schedule().decoding, [4, 2, 3])
        tokens, logits = [found.tokens(b) for b in range(3)], found.draft_logits
    assert tokens == [expected.tokens(b) for b in range(3)]
    assert found.positions == expected.positions
    if expected.draft_logits is not None:
        assert torch.equal(real_of(logits), expected.draft_logits)


@pytest.mark.parametrize("is_recorded", [False, True], ids=["eager", "recorded"])
@pytest.mark.parametrize("wishes", ["greedy", "seeded", "unseeded", "penalised"])
@pytest.mark.parametrize("proposer", CHAINS)
def test_with_drafts_that_nobody_read_the_text_is_the_same(started, device, proposer, wishes, is_recorded) -> None:
    """And so are the counts of drafts, step by step, and what a drafter computed for them."""
    here, there = (started(4, proposer, **WISHES[wishes]) for _ in range(2))
    expected = [[(c.request_id, c.token_ids, c.steps) for c in here.step()] for _ in range(5)]
    to_device(there)
    with tracking():
        if is_recorded:
            record_steps(there, (0, 4), GraphFree())
        found = [[(c.request_id, c.token_ids, c.steps) for c in there.step()] for _ in range(5)]
    assert found == expected
    here, there = ([s.draft_positions for s in engine._sequences.values()] for engine in (here, there))
    assert here == there
    assert any(drafted for chunks in expected for _, _, steps in chunks for drafted, _ in steps)


def test_what_waits_is_found() -> None:
    """Else the rest would prove nothing."""
    there = tracked(torch.arange(6.0))
    with tracking() as found:
        int(there.argmax())
        there.tolist()
        bool((there > 0).any())
        there[[1, 2]]
        there[there > 2]
        there.nonzero()
        torch.tensor([1, 2], device=there.device)
        torch.zeros(3).to(there.device)
        there.copy_(torch.zeros(6))
    assert len(found.waits) == 9
    assert found.copies == 0
