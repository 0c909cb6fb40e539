"""On a device the host waits once a step, for the verdict, and once for each level of what a drafter of weights drafts.

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
from tests.workers.engine.tracked_device import DEVICE, kernel, move, moved, tracked, tracking
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
    drafter = engine.proposer
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
def step(make_engine, ask, prompts, device):
    """What one decoding step of three sequences waits for and copies, and the engine after it."""

    def traffic(k, proposer, *, is_recorded=False, trees=None, newcomer=(), **sampling):
        engine = make_engine(k, proposer, slots=4, eos=(), hidden=HIDDEN, trees=trees or {}, prefix_cache=False)
        for i, prompt in enumerate(prompts[4:7]):
            engine.submit(ask(prompt, f"{i}", max_tokens=40, **sampling))
        for _ in range(3):
            engine.step()
        to_device(engine)
        with tracking() as found:
            if is_recorded:
                record_steps(engine, (0, k), GraphFree())
                found.waits.clear()
                found.copies = 0
            if newcomer:
                engine.submit(ask(newcomer, "new", max_tokens=40, **sampling))
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


@pytest.mark.parametrize("wishes", ["greedy", "seeded", "unseeded"])
@pytest.mark.parametrize(
    ("proposer", "trees", "levels"),
    [("close", None, 4), ("eagle", None, 4), ("medusa", None, 3), ("eagle", TREES, 2), ("medusa", TREES, 2)],
    ids=["draft model", "eagle", "medusa", "tree of eagle", "tree of medusa"],
)
def test_a_drafter_of_weights_waits_once_a_level_for_all_sequences(step, proposer, trees, levels, wishes) -> None:
    found = step(4, proposer, trees=trees, **WISHES[wishes])
    assert found.waits == ["copied to the host"] * (levels + 1)


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
