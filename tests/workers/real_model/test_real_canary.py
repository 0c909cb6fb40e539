"""The canary on the real model: nothing of right text differs, not by a bit, in bf16 and in fp32."""

from __future__ import annotations

import math
import time

import pytest
import torch
from transformers import AutoTokenizer

from controlplane.decision.plan import Plan
from controlplane.settings import Settings
from controlplane.telemetry import LOAD_BUCKETS
from workers.canary import Canary
from workers.engine import Engine
from workers.meter import Meter
from workers.model_runner import ModelRunner
from workers.models.resolve import resolve_model
from workers.plan_client import PlanClient
from workers.proposers.ngram import NGramProposer
from workers.sequence import EngineRequest, SamplingParams
from workers.target import Target
from workers.verifier import Verifier

pytestmark = [pytest.mark.model, pytest.mark.timeout(300)]

MODES = (
    {"temperature": 0.0},
    {"temperature": 0.8, "top_p": 0.95, "seed": 7},
    {"temperature": 1.0, "top_k": 20, "seed": 8},
)
K = (2, 4, 8)
TOKENS = 24
PROMPTS = (
    "The quick brown fox jumps over the lazy dog. The quick brown fox jumps over",
    '{"name": "Alice", "age": 31}\n{"name": "Bob", "age": 27}\n{"name": "Carol", "age":',
    "one, two, three, four, one, two, three, four, one, two,",
)
"""Texts that repeat themselves, so that the n-gram proposer drafts; one for each of MODES and of K."""


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "fp32"])
def test_right_text_is_never_taken_for_wrong(dtype) -> None:
    folder = resolve_model("smollm2-135m-instruct", Settings().model_cache)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    runner = ModelRunner.load(folder, num_slots=4, context=128, device=torch.device("cpu"), dtype=dtype)
    # A cohort of its own for each, so that none takes another's place before its check.
    by_load = {f"cohort {i}": (k,) * len(LOAD_BUCKETS) for i, k in enumerate(K)}
    plan = Plan(0, 0, 0.0, math.inf, by_load, {}, "fixed")
    proposer = NGramProposer()
    engine = Engine(
        Target(runner),
        proposer,
        Verifier(sorted(runner.eos_token_ids), backend="naive"),
        PlanClient(plan, time.time),
        Meter("worker", 1, "smollm2", proposer.name, "cpu", time.time),
        tokenizer,
        runner.eos_token_ids,
    )
    canary = Canary(engine, 0.5)
    for i, prompt in enumerate(PROMPTS):
        sampling = SamplingParams(TOKENS, ignore_eos=True, **MODES[i])
        request = EngineRequest(f"{i}", tuple(tokenizer(prompt).input_ids), sampling, f"cohort {i}")
        engine.submit(request)
        canary.begin(request)
    while engine.has_work:
        for chunk in engine.step():
            canary.follow(chunk)
    checks = []
    until = time.monotonic() + 60
    while len(checks) < len(PROMPTS) and time.monotonic() < until:
        check = canary.piece(busy=False)
        checks += [check] if check else []
    assert [(c.verdict, c.near_ties, c.positions) for c in checks] == [("same", 0, TOKENS)] * len(PROMPTS)
    assert {c.mode for c in checks} == {"greedy", "seeded"}
