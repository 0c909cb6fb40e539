"""The promise that everything rests on: the text does not depend on K, drafter or batch-mates."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from workers.plan_client import constant_plan

GREEDY: dict[str, Any] = {"temperature": 0.0}
SEEDED: dict[str, Any] = {"temperature": 0.9, "seed": 11}
MODES = [pytest.param(GREEDY, id="greedy"), pytest.param(SEEDED, id="seeded")]
COHORTS = ("default", "a", "b")
K = {"default": 2, "a": 4, "b": 8}


def run(engine, ask, drain, prompts, sampling, max_tokens=24):
    """Token ids of every prompt, all submitted at once, in three cohorts by turns."""
    for i, prompt in enumerate(prompts):
        engine.submit(ask(prompt, f"{i}", cohort=COHORTS[i % 3], max_tokens=max_tokens, **sampling))
    done = drain(engine)
    return [done[f"{i}"].token_ids for i in range(len(prompts))]


@pytest.fixture(scope="module")
def many_prompts(prompts):
    """200 texts of 1 to 150 tokens, half of them with a repeat for the n-gram proposer to find."""
    numbers = torch.Generator().manual_seed(9)
    lengths = torch.randint(1, 40, (200 - len(prompts),), generator=numbers).tolist()
    drawn = [torch.randint(3, 40, (n,), generator=numbers).tolist() for n in lengths]
    return prompts + [p + p[: len(p) // 2] * (i % 2) for i, p in enumerate(drawn)]


@pytest.fixture(scope="module", params=MODES)
def sampling(request):
    return request.param


@pytest.fixture(scope="module")
def plain(make_engine, ask, drain, many_prompts, sampling):
    """Texts of `many_prompts` by plain decoding."""
    return run(make_engine(0, "none"), ask, drain, many_prompts, sampling, 16)


@pytest.mark.parametrize(
    "proposer", ["ngram", "close", "eagle", "medusa", "ngram+eagle", "ngram+medusa", "ngram+close"]
)
def test_text_is_that_of_plain_decoding(make_engine, ask, drain, many_prompts, proposer, sampling, plain) -> None:
    """Hundreds of texts at K = 2, 4 and 8 at once."""
    assert run(make_engine(K, proposer), ask, drain, many_prompts, sampling, 16) == plain


@pytest.mark.parametrize(
    "proposer", ["ngram", "draft", "eagle", "medusa", "ngram+eagle", "ngram+medusa", "ngram+draft"]
)
@pytest.mark.parametrize("k", [1, 16])
def test_text_is_that_of_plain_decoding_for_extreme_k(
    make_engine, ask, drain, prompts, proposer, k, sampling, plain
) -> None:
    assert run(make_engine(k, proposer), ask, drain, prompts, sampling, 16) == plain[: len(prompts)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_text_does_not_depend_on_batch_mates(make_engine, ask, drain, prompts, sampling, dtype) -> None:
    together = run(make_engine(K, dtype=dtype), ask, drain, prompts, sampling)
    engine = make_engine(4, dtype=dtype)
    assert [run(engine, ask, drain, [p], sampling)[0] for p in prompts] == together


def test_row_22_greedy_text_is_not_the_models_own(make_engine, ask, drain, prompts, own_logits) -> None:
    texts = run(make_engine(K, eos=()), ask, drain, prompts, GREEDY, 12)
    for prompt, text in zip(prompts, texts, strict=True):
        logits = own_logits([prompt + text])[0]
        assert logits[len(prompt) - 1 : -1].argmax(-1).tolist() == text


def test_a_drafter_that_is_the_target_is_always_accepted(make_engine, ask, drain, prompts, sampling) -> None:
    engine = make_engine(4, "target", eos=())
    engine.submit(ask(prompts[3], max_tokens=21, **sampling))
    assert drain(engine)["r"].steps == [(4, 4)] * 4


def test_different_seeds_give_different_texts(make_engine, ask, drain, prompts) -> None:
    texts = [run(make_engine(4), ask, drain, [prompts[4]], {"temperature": 1.0, "seed": s})[0] for s in (1, 2)]
    assert texts[0] != texts[1]


def test_row_2_a_drafter_switched_off_and_on_again_is_worse_than_before(make_engine, ask, prompts) -> None:
    """TensorRT-LLM 16888: K = 0 left holes in the drafter's cache, and acceptance collapsed after it."""
    engine = make_engine(3, "target", eos=())
    engine.submit(ask(prompts[4], max_tokens=60))
    steps: list[tuple[int, int]] = []
    for i in range(30):
        engine.plan_client.plan = constant_plan(0 if 4 <= i < 10 else 3, ["default"])
        steps += [s for chunk in engine.step() for s in chunk.steps]
    drafted = [s for s in steps if s[0]]
    assert (0, 0) in steps
    assert all(accepted == drafted for drafted, accepted in drafted)


def test_row_29_rows_that_accept_less_than_their_batch_mates_keep_garbage(make_engine, ask, drain, prompts) -> None:
    """mlx-vlm 1155: rows that accepted less than their batch-mates kept garbage in the cache."""
    texts = run(make_engine(8, "draft", eos=()), ask, drain, prompts[:8], GREEDY, 40)
    assert texts == run(make_engine(0, "none", eos=()), ask, drain, prompts[:8], GREEDY, 40)
