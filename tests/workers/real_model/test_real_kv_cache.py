"""The real model's text is the same on a hit, after a preemption and alone, with a drafter that reads its features."""

from __future__ import annotations

import time

import pytest
import torch
from transformers import AutoTokenizer

from controlplane.settings import Settings, load_settings
from workers.build import build_proposer
from workers.engine import Engine
from workers.meter import Meter
from workers.model_runner import ModelRunner
from workers.models.resolve import resolve_model
from workers.plan_client import PlanClient, constant_plan
from workers.proposers.none import NoProposer
from workers.sequence import EngineRequest, SamplingParams
from workers.target import Target
from workers.uniform_rows import has_uniform_rows
from workers.verifier import Verifier

pytestmark = [pytest.mark.model, pytest.mark.timeout(900)]

MODEL = "smollm2-135m-instruct"
CONTEXT = 512
TOKENS = 24
CPU = torch.device("cpu")
HEAD = "You are a careful assistant. Answer in one short sentence, and say so when you do not know the answer. " * 6
QUESTIONS = ["What is the capital of France?", "Name three colours.", "What is 7 times 8?", "Who wrote Hamlet?"]


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(resolve_model(MODEL, Settings().model_cache))


@pytest.fixture(scope="module", params=[torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def runner(request):
    folder = resolve_model(MODEL, Settings().model_cache)
    return ModelRunner.load(folder, num_slots=4, context=CONTEXT, device=CPU, dtype=request.param)


@pytest.fixture(scope="module")
def prompts(tokenizer) -> list[list[int]]:
    return [tokenizer(HEAD + question).input_ids for question in QUESTIONS]


@pytest.fixture(scope="module")
def answers(runner, tokenizer, prompts):
    """Token ids of each prompt's answer, and the engine that gave them. preempt_every: so many steps one is put off."""

    def give(drafter: str, prefix_cache: bool, preempt_every: int = 0):
        proposer = NoProposer()
        if drafter != "none":
            settings = load_settings(model=MODEL, drafter=drafter, max_sequences=4, max_context=CONTEXT)
            proposer = build_proposer(settings, runner, tokenizer, CPU, runner.dtype)
        engine = Engine(
            Target(runner, proposer.feature_layers),
            proposer,
            Verifier(sorted(runner.eos_token_ids)),
            PlanClient(constant_plan(0 if drafter == "none" else 4, ["default"]), time.time),
            Meter("worker", 1, MODEL, drafter, "cpu", time.time),
            tokenizer,
            runner.eos_token_ids,
            prefix_cache=prefix_cache,
        )
        texts: list[list[int]] = [[] for _ in prompts]
        for i, prompt in enumerate(prompts):
            params = SamplingParams(TOKENS, temperature=0.0 if i % 2 else 0.8, seed=i, ignore_eos=True)
            engine.submit(EngineRequest(f"{i}", tuple(prompt), params, "default"))
        steps = 0
        while engine.has_work:
            for chunk in engine.step():
                texts[int(chunk.request_id)] += chunk.token_ids
            steps += 1
            if preempt_every and steps % preempt_every == 0 and engine.scheduler.running:
                engine._set_aside(engine.residency._preempt())
        assert engine.tables.used == 0
        return texts, engine.residency.counts

    return give


@pytest.fixture(scope="module")
def plain(answers):
    return answers("none", prefix_cache=False)[0]


def test_the_device_gives_a_position_the_same_kv_however_its_text_is_cut(runner) -> None:
    assert has_uniform_rows(runner)


def test_a_hit_changes_nothing(answers, plain) -> None:
    texts, counts = answers("ngram+eagle", prefix_cache=True)
    assert counts.cached_tokens.total() > 300
    assert texts == plain


@pytest.mark.parametrize(("prefix_cache", "every"), [(True, 5), (False, 9)], ids=["prefix_cache", "replay"])
def test_preemption_changes_nothing(answers, plain, prefix_cache, every) -> None:
    texts, counts = answers("ngram+eagle", prefix_cache, every)
    assert counts.preemptions.total() > 0
    assert texts == plain
