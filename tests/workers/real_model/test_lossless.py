"""The real model's text is the same at K = 0, 2, 4 and 8, for every proposer, alone and in company."""

from __future__ import annotations

import math
import shutil
import time

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from controlplane.decision.plan import Plan
from controlplane.settings import Settings
from controlplane.telemetry import LOAD_BUCKETS
from workers.engine import Engine
from workers.kv_cache import blocks_for
from workers.load.mix import load_prompts
from workers.meter import Meter
from workers.model_runner import ModelRunner
from workers.models.resolve import resolve_model
from workers.plan_client import PlanClient
from workers.proposers.draft_model import DraftModelProposer, check_vocabulary
from workers.proposers.ngram import NGramProposer
from workers.proposers.none import NoProposer
from workers.sequence import EngineRequest, SamplingParams
from workers.step_layout import Rows
from workers.target import Target
from workers.verifier import Verifier

pytestmark = [pytest.mark.model, pytest.mark.timeout(900)]

LADDER = (2, 4, 8)
TOKENS = 32
SLOTS = 24
CONTEXT = 256
CPU = torch.device("cpu")
GREEDY = {"temperature": 0.0}
SEEDED = {"temperature": 0.8, "top_p": 0.95}

VARIED = (
    "Once upon a time",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
    "The quick brown fox jumps over the lazy dog. The quick brown fox",
    '{"name": "Alice", "age": 31}\n{"name": "Bob", "age": 27}\n{"name":',
    "1, 1, 2, 3, 5, 8, 13,",
    "Zutaten: 200 g Mehl, 3 Eier,",
    "SELECT name, total FROM orders WHERE",
    "Q: What is the capital of France?\nA: Paris.\nQ: What is the capital of Italy?\nA:",
)
"""Texts to go on with; a third of the prompts, beside those of the shipped traffic, which are chats."""


@pytest.fixture(scope="module")
def folder():
    return resolve_model("smollm2-135m-instruct", Settings().model_cache)


@pytest.fixture(scope="module")
def tokenizer(folder):
    return AutoTokenizer.from_pretrained(folder)


@pytest.fixture(scope="module")
def prompts(folder, tokenizer):
    """24 prompts: 16 chats of four kinds, and eight texts to go on with."""
    chats = [p for kind in ("code", "json", "contract", "fiction") for p in load_prompts(kind, folder)[::9][:4]]
    asked = [
        tokenizer.apply_chat_template([{"role": "user", "content": p}], tokenize=False, add_generation_prompt=True)
        for p in chats
    ]
    return [tokenizer(text, add_special_tokens=False).input_ids for text in (*asked, *VARIED)]


@pytest.fixture(scope="module")
def runner(folder):
    return ModelRunner.load(folder, num_slots=SLOTS, context=CONTEXT, device=CPU, dtype=torch.float32)


@pytest.fixture(scope="module")
def draft_folder(folder, tokenizer, tmp_path_factory):
    """The target's first four layers as a model of their own."""
    draft = tmp_path_factory.mktemp("draft")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.model.layers = model.model.layers[:4]
    model.config.num_hidden_layers = 4
    model.save_pretrained(draft)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(folder / name, draft / name)
    return draft


@pytest.fixture(scope="module")
def make_proposer(runner, tokenizer, draft_folder):
    """A fresh proposer by name; the draft model's weights are loaded once."""
    check_vocabulary(tokenizer, AutoTokenizer.from_pretrained(draft_folder))
    drafter = ModelRunner.load(draft_folder, num_slots=SLOTS, context=CONTEXT, device=CPU, dtype=torch.float32)
    return lambda name: {
        "none": NoProposer,
        "ngram": NGramProposer,
        "draft": lambda: DraftModelProposer(drafter, runner.vocab_size),
    }[name]()


@pytest.fixture(scope="module")
def run(runner, tokenizer, make_proposer):
    """Decodes prompts all at once, prompt i at K = ks[i]; gives their token ids and how many drafts were accepted."""

    def decode(prompts, ks, proposer="ngram", sampling=GREEDY, runner=runner):
        cohorts = {f"k{k}": (k,) * len(LOAD_BUCKETS) for k in set(ks)}
        plan = Plan(0, 0, 0.0, math.inf, cohorts, {}, "fixed")
        engine = Engine(
            Target(runner),
            make_proposer(proposer),
            Verifier(sorted(runner.eos_token_ids), backend="naive"),
            PlanClient(plan, time.time),
            Meter("worker", 1, "smollm2", proposer, "cpu", time.time),
            tokenizer,
            runner.eos_token_ids,
        )
        for i, (prompt, k) in enumerate(zip(prompts, ks, strict=True)):
            seed = 1000 + prompt[-1] + len(prompt) if sampling is SEEDED else None
            params = SamplingParams(TOKENS, seed=seed, ignore_eos=True, **sampling)
            engine.submit(EngineRequest(f"{i}", tuple(prompt), params, f"k{k}"))
        texts = [[] for _ in prompts]
        records = []
        while engine.has_work:
            for chunk in engine.step():
                texts[int(chunk.request_id)] += chunk.token_ids
                records += [chunk.record] if chunk.record else []
        assert [len(text) for text in texts] == [TOKENS] * len(prompts)
        assert engine.tables.used == 0
        return texts, sum(record.accepted_tokens for record in records)

    return decode


@pytest.fixture(scope="module")
def plain(run, prompts):
    """Greedy texts by plain decoding."""
    return run(prompts, [0] * len(prompts), "none")[0]


@pytest.fixture(scope="module")
def plain_seeded(run, prompts):
    return run(prompts[::3], [0] * 8, "none", SEEDED)[0]


@pytest.fixture
def mismatches(runner, tokenizer):
    """One line for each text that differs: the prompt, where, both tokens, and how far apart their logits are."""

    def compare(prompts, expected, got, runner=runner):
        lines = []
        for prompt, a, b in zip(prompts, expected, got, strict=True):
            if a == b:
                continue
            at = next(i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y)
            before = prompt + a[:at]
            rows = Rows(range(1, 1 + blocks_for(len(before))), 0, before)
            logits = runner.forward([rows], [len(before) - 1])[0].float()
            best = logits.topk(2).values.tolist()
            lines.append(
                f"{tokenizer.decode(prompt)[-60:]!r} differs at token {at}: {tokenizer.decode(a[at])!r} against "
                f"{tokenizer.decode(b[at])!r}, logits {logits[a[at]]:.5f} and {logits[b[at]]:.5f}; "
                f"the best two are {best[0] - best[1]:.5f} apart"
            )
        return lines

    return compare


def turned(turn, n):
    """K of n prompts, all of the ladder mixed, so that each prompt meets each K in three turns."""
    return [LADDER[(i + turn) % len(LADDER)] for i in range(n)]


@pytest.mark.parametrize("turn", range(3))
@pytest.mark.parametrize("proposer", ["ngram", "draft"])
def test_greedy_text_is_that_of_plain_decoding(run, prompts, plain, mismatches, proposer, turn) -> None:
    # The draft model computes every draft position, and its cost is most of this file's: every other prompt.
    every = 2 if proposer == "draft" else 1
    chosen, expected = prompts[::every], plain[::every]
    texts, accepted = run(chosen, turned(turn, len(chosen)), proposer)
    assert mismatches(chosen, expected, texts) == []
    assert accepted > 0


def test_greedy_text_alone_is_that_in_company(run, prompts, plain, mismatches) -> None:
    chosen = prompts[2::6]
    alone = [run([prompt], [4])[0][0] for prompt in chosen]
    assert mismatches(chosen, plain[2::6], alone) == []


def test_greedy_text_is_the_librarys_own(folder, prompts, plain) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    for prompt, text in zip(prompts[::4], plain[::4], strict=True):
        with torch.inference_mode():
            logits = model(torch.tensor([prompt + text]), use_cache=False).logits[0, len(prompt) - 1 : -1]
        assert logits.argmax(-1).tolist() == text


@pytest.mark.parametrize("turn", range(3))
@pytest.mark.parametrize("proposer", ["ngram", "draft"])
def test_seeded_text_is_that_of_plain_decoding(run, prompts, plain_seeded, mismatches, proposer, turn) -> None:
    texts, _ = run(prompts[::3], turned(turn, 8), proposer, SEEDED)
    assert mismatches(prompts[::3], plain_seeded, texts) == []


def test_seeded_text_is_not_greedy_text(plain, plain_seeded) -> None:
    assert all(a != b for a, b in zip(plain[::3], plain_seeded, strict=True))


def test_bf16_text_at_k_4_is_that_at_k_0(folder, run, prompts, mismatches) -> None:
    runner = ModelRunner.load(folder, num_slots=SLOTS, context=CONTEXT, device=CPU, dtype=torch.bfloat16)
    chosen = prompts[1::3]
    plain, _ = run(chosen, [0] * 8, "none", runner=runner)
    texts, _ = run(chosen, [4] * 8, "ngram", runner=runner)
    assert mismatches(chosen, plain, texts, runner) == []
