"""With each drafter that comes with the project the real model says what it says without one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from controlplane.policy import parse_policy
from controlplane.settings import load_settings
from workers.build import build_engine
from workers.models.resolve import resolve_model
from workers.models.weights_hash import weights_sha256
from workers.plan_client import constant_plan
from workers.proposers.shipped import shipped_drafters, shipped_for
from workers.sequence import EngineRequest, SamplingParams

pytestmark = [pytest.mark.model, pytest.mark.timeout(600)]

MODEL = "smollm2-135m-instruct"
TOKENS = 24
PROMPTS = (
    "Write a Python function that reverses a list.",
    "Write a JSON object with name and age of two people.",
    "Tell me of the sea at night.",
)
POLICY = """
version: 1
cohorts: [{name: all, match: {}, speculation: {tuner: fixed, ladder: [0, 4], start: 0, fallback: 0}}]
"""
DRAFTERS = ("auto", *(kind for each in shipped_drafters() if each.target.name == MODEL for kind in each.folders))
"""`auto` there always is."""


@pytest.fixture(scope="module")
def folder() -> Path:
    return resolve_model(MODEL, load_settings().model_cache)


@pytest.fixture(scope="module", params=DRAFTERS)
def served(request: pytest.FixtureRequest) -> Iterator[tuple[Any, Any]]:
    """Engine and tokenizer, as serving puts them together, in bf16."""
    before = torch.get_num_threads()
    settings = load_settings(
        model=MODEL, drafter=request.param, device="cpu", max_sequences=8, max_context=128, profile_s=0.0
    )
    made, tokenizer = build_engine(settings, parse_policy(POLICY), "w-1")
    yield made, tokenizer
    made.energy.stop()
    torch.set_num_threads(before)


def said(engine: Any, tokenizer: Any, k: int) -> tuple[list[tuple[int, ...]], int]:
    """Token ids of each prompt, greedy and seeded, all at once at that K; and how many tokens were drafted."""
    engine.plan_client.plan = constant_plan(k, ["all"])
    texts: dict[str, tuple[int, ...]] = {}
    for i, prompt in enumerate(PROMPTS):
        chat = [{"role": "user", "content": prompt}]
        text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        ids = tuple(tokenizer(text, add_special_tokens=False).input_ids)
        for name, sampling in (
            ("greedy", SamplingParams(TOKENS, temperature=0.0)),
            ("seeded", SamplingParams(TOKENS, temperature=0.8, top_p=0.95, seed=7 + i)),
        ):
            request_id = f"{k} {i} {name}"
            texts[request_id] = ()
            engine.submit(EngineRequest(request_id, ids, sampling, "all"))
    drafted = 0
    while engine.has_work:
        for chunk in engine.step():
            texts[chunk.request_id] += chunk.token_ids
            drafted += chunk.record.draft_tokens if chunk.record else 0
    return list(texts.values()), drafted


@pytest.fixture(scope="module")
def plain(served: tuple[Any, Any]) -> list[tuple[int, ...]]:
    texts, drafted = said(*served, 0)
    assert drafted == 0
    return texts


@pytest.mark.parametrize("k", [4, 8])
def test_greedy_and_seeded_text_is_that_of_plain_decoding(
    served: tuple[Any, Any], plain: list[tuple[int, ...]], k: int
) -> None:
    texts, drafted = said(*served, k)
    assert texts == plain
    assert drafted > 0


def test_a_drafter_with_trees_drafts_them(served: tuple[Any, Any]) -> None:
    engine, _ = served
    engine.close_window()
    said(*served, 8)
    shapes = {cell.tree for cohort in engine.close_window().cohorts for cell in cohort.cells}
    known = {tree.parents for tree in engine.proposer.trees.values() if not tree.is_chain}
    assert shapes & known == shapes - {()}
    assert bool(shapes & known) == bool(known)


def test_every_shipped_drafter_of_that_name_is_of_these_weights(folder: Path) -> None:
    cache = load_settings().model_cache
    weights = {each.target.weights for each in shipped_drafters() if each.target.name == MODEL}
    assert weights <= {weights_sha256(folder, cache)}
    assert bool(weights) == (shipped_for(folder, cache) is not None)
