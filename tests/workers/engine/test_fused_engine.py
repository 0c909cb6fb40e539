"""The engine over the Triton kernels says what it says over the definitions, token for token, chains and trees.

As tests/kernels/attention/test_fused.py, this file runs itself once as a program with TRITON_INTERPRET=1, in which
every operation that the engine asks for is taken from its Triton kernels, whatever the device.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from kernels import attention, kv_commit, verify, verify_tree
from tests.workers.engine.conftest import COHORT, PathDrafter, tiny_model, word_tokenizer
from workers.engine import Engine
from workers.meter import Meter
from workers.model_runner import ModelRunner
from workers.plan_client import PlanClient, constant_plan
from workers.sequence import EngineRequest, SamplingParams
from workers.target import Target
from workers.token_tree import read_trees
from workers.verifier import Verifier

PROMPTS = ([7, 3, 9], [5, 5, 8, 31, 12, 4])
TREES = read_trees({"5": [-1, -1, 0, 1, 3]})
MODES = {"greedy": {"temperature": 0.0}, "seeded": {"temperature": 0.8, "seed": 3}}
KS = {"chain": 2, "tree": 5}
TOKENS = 7


def runner(nudge: float = 0.0) -> ModelRunner:
    """One layer, with heads of 64, for which the Triton kernels are."""
    heads = {"hidden_size": 128, "num_attention_heads": 2, "num_key_value_heads": 1}
    return ModelRunner(tiny_model(0, 1, nudge=nudge, **heads), 2, 64, "tiny")


def said(k: int, sampling: dict[str, Any]) -> list[list[int]]:
    """Token ids of both prompts, at once."""
    now, target = (lambda: 0.0), runner()
    proposer = PathDrafter(runner(0.02), TREES)
    meter = Meter("w", 1, "tiny", "paths@1", "cpu", now)
    plan = PlanClient(constant_plan(k, [COHORT]), now)
    engine = Engine(Target(target), proposer, Verifier([]), plan, meter, word_tokenizer(), (), now, prefix_cache=False)
    for i, prompt in enumerate(PROMPTS):
        engine.submit(EngineRequest(str(i), tuple(prompt), SamplingParams(TOKENS, **sampling), COHORT))
    texts: dict[str, list[int]] = {str(i): [] for i in range(len(PROMPTS))}
    while engine.has_work:
        for chunk in engine.step():
            texts[chunk.request_id] += chunk.token_ids
    (window,) = engine.close_window().cohorts
    drafted_trees = sum(cell.steps for cell in window.cells if cell.tree)
    return [*texts.values(), [drafted_trees]]


def run_all() -> dict[str, list[list[int]]]:
    return {f"{shape} {mode}": said(k, sampling) for shape, k in KS.items() for mode, sampling in MODES.items()}


@pytest.fixture(scope="module")
def fused(interpreted: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
    return interpreted(Path(__file__))


@pytest.fixture(scope="module")
def defined() -> dict[str, list[list[int]]]:
    with pytest.MonkeyPatch.context() as patch:
        force(patch, "naive")
        return run_all()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("shape", KS)
def test_the_fused_engine_says_what_the_definitions_say(fused, defined, shape, mode) -> None:
    assert fused["texts"][f"{shape} {mode}"][:-1] == defined[f"{shape} {mode}"][:-1]


@pytest.mark.parametrize("mode", MODES)
def test_chains_and_trees_say_the_same(fused, mode) -> None:
    chain, tree = (fused["texts"][f"{shape} {mode}"] for shape in KS)
    assert chain[:-1] == tree[:-1]
    assert (chain[-1][0], tree[-1][0] > 0) == (0, True)


def test_every_operation_ran_fused(fused) -> None:
    assert {"tree_attention", "write_kv", "verify_chain", "verify_tree", "kv_commit"} <= set(fused["ran"])


def force(patch: Any, backend: str) -> None:
    """Have every operation take that backend; where attention is forced, trees are drafted whatever their bits."""
    for op in (verify, verify_tree, kv_commit):
        patch.setattr(op, "choose_backend", lambda *_: backend)
    patch.setattr(attention, "choose_attention_backend", lambda *_: backend)
    patch.setattr("workers.attention.choose_attention_backend", lambda *_: "native")
    patch.setattr("workers.engine.tree_obstacle", lambda _: None)


def run_interpreted() -> None:
    from kernels.attention import fused as fused_attention
    from kernels.interpreter import correct_interpreter, hasten_interpreter
    from kernels.kv_commit import fused as fused_commit
    from kernels.verify import fused as fused_chains
    from kernels.verify_tree import fused as fused_trees

    correct_interpreter()
    hasten_interpreter()
    torch.set_num_threads(1)
    ran: set[str] = set()

    def watched(module: Any, name: str) -> None:
        real = getattr(module, name)

        def call(*args: Any, **options: Any) -> Any:
            ran.add(name)
            return real(*args, **options)

        setattr(module, name, call)

    for module, names in (
        (fused_attention, ("tree_attention", "write_kv")), (fused_commit, ("kv_commit",)),
        (fused_chains, ("verify_chain",)), (fused_trees, ("verify_tree",)),
    ):  # fmt: skip
        for name in names:
            watched(module, name)
    with pytest.MonkeyPatch.context() as patch:
        force(patch, "fused")
        print(json.dumps({"texts": run_all(), "ran": sorted(ran)}))


if __name__ == "__main__":
    run_interpreted()
