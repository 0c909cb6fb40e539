"""Token trees through the whole engine: the text is that of plain decoding, and the KV that of a chain."""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tests.workers.engine.conftest import PathDrafter, tiny_model
from workers.api_choice import ChoiceReader
from workers.api_responses import speculation_of
from workers.generation import Outcome
from workers.kv_cache import blocks_for
from workers.model_runner import ModelRunner
from workers.sequence import GrammarSpec
from workers.step_layout import Rows
from workers.token_tree import Trees, read_trees

GREEDY: dict[str, Any] = {"temperature": 0.0}
SEEDED: dict[str, Any] = {"temperature": 0.9, "seed": 11}
MODES = [pytest.param(GREEDY, id="greedy"), pytest.param(SEEDED, id="seeded")]
HIDDEN = 64
"""Heads of 16, which the attention that knows trees computes."""
TREES = read_trees({"2": [-1, -1], "4": [-1, -1, 0, 1], "8": [-1, -1, -1, 0, 0, 1, 3, 5]})
DRAFTERS = ["paths", "eagle", "medusa", "ngram+paths", "ngram+eagle", "ngram+medusa"]
COHORTS = ("default", "a", "b")
K = {"default": 2, "a": 4, "b": 8}
CHARACTERS = string.ascii_lowercase + string.digits + string.ascii_uppercase[:12]
"""As many as the model has tokens."""


@pytest.fixture(scope="module")
def make(make_engine):
    """An engine that drafts trees of two, four or eight nodes, by cohort."""

    def made(proposer: str = "paths", k: Any = K, **options: Any) -> Any:
        return make_engine(k, proposer, trees=TREES, hidden=HIDDEN, **options)

    return made


def run(engine, ask, drain, prompts, sampling, max_tokens=24):
    """What every prompt gave, all submitted at once, in three cohorts by turns."""
    for i, prompt in enumerate(prompts):
        engine.submit(ask(prompt, f"{i}", cohort=COHORTS[i % 3], max_tokens=max_tokens, **sampling))
    done = drain(engine)
    return [done[f"{i}"] for i in range(len(prompts))]


def texts(*args: Any, **options: Any) -> list[list[int]]:
    return [done.token_ids for done in run(*args, **options)]


@pytest.fixture(scope="module", params=MODES)
def sampling(request):
    return request.param


@pytest.fixture(scope="module")
def plain(make_engine, ask, drain, prompts, sampling):
    """Texts of `prompts` by plain decoding."""
    return texts(make_engine(0, "none", hidden=HIDDEN), ask, drain, prompts, sampling)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_it_is_watched_that_trees_are_accepted_beside_their_first_path(make, ask, drain, prompts, dtype) -> None:
    """Else the tests below would prove little."""
    engine = make(dtype=dtype, eos=())
    paths = watch(engine)
    run(engine, ask, drain, prompts, GREEDY)
    spines = {len(tree): tree.spine for tree in TREES.values()}
    assert sum(len(path) >= 2 and path != spines[8][: len(path)] for path in paths) > 5


def watch(engine) -> list[tuple[int, ...]]:
    """Accepted paths of the trees that this engine verifies from now on."""
    paths: list[tuple[int, ...]] = []
    verify = engine.verifier.verify

    def watched(sequences, proposal, score):
        verdicts = verify(sequences, proposal, score)
        paths.extend(v.nodes for v in verdicts if v.nodes is not None)
        return verdicts

    engine.verifier.verify = watched
    return paths


@pytest.mark.parametrize("proposer", DRAFTERS)
def test_text_is_that_of_plain_decoding(make, ask, drain, prompts, proposer, sampling, plain) -> None:
    engine = make(proposer)
    paths = watch(engine)
    assert texts(engine, ask, drain, prompts, sampling) == plain
    assert paths


@pytest.mark.parametrize("proposer", ["paths", "eagle"])
def test_text_does_not_depend_on_batch_mates(make, ask, drain, prompts, proposer, sampling, plain) -> None:
    engine = make(proposer, 8)
    assert [texts(engine, ask, drain, [prompt], sampling)[0] for prompt in prompts] == plain


@pytest.mark.parametrize("proposer", ["paths", "eagle", "ngram+medusa"])
def test_text_survives_preemption(make, make_engine, ask, drain, prompts, proposer, sampling) -> None:
    roomy = make_engine(0, "none", hidden=HIDDEN, eos=())
    expected = texts(roomy, ask, drain, prompts[:6], sampling, max_tokens=60)
    engine = make(proposer, kv_blocks=9, eos=())
    assert texts(engine, ask, drain, prompts[:6], sampling, max_tokens=60) == expected
    assert engine.residency.counts.preemptions.total() > 0


@pytest.mark.parametrize("proposer", ["paths", "eagle"])
def test_what_the_prefix_cache_has_of_a_text_that_trees_wrote_gives_the_same_text(
    make, ask, drain, prompts, proposer, sampling, plain
) -> None:
    engine, longer = make(proposer, 8), []
    for prompt, text in zip(prompts, plain, strict=True):
        texts(engine, ask, drain, [prompt], sampling)
        longer.append([*prompt, *text[:20]])
    found = texts(engine, ask, drain, longer, {**sampling, "min_tokens": 8}, max_tokens=8)
    fresh = make(proposer, 0, prefix_cache=False)
    assert found == texts(fresh, ask, drain, longer, {**sampling, "min_tokens": 8}, max_tokens=8)
    assert engine.residency.counts.cached_tokens.total() > 0


WISHES = [
    pytest.param({"repetition_penalty": 1.3, "frequency_penalty": 0.4, "presence_penalty": 0.2}, id="penalties"),
    pytest.param({"top_k": 5, "top_p": 0.8}, id="limits"),
    pytest.param({"logit_bias": ((7, 2.0), (9, -3.0)), "min_tokens": 9}, id="bias and least length"),
    pytest.param({"stop_token_ids": (5, 17, 30)}, id="stop tokens"),
    pytest.param({"stop": ("t7", "t19 t")}, id="stop strings"),
]


@pytest.mark.parametrize("wishes", WISHES)
def test_wishes_are_those_of_a_nodes_own_path(make, make_engine, ask, drain, prompts, sampling, wishes) -> None:
    wished = {**sampling, **wishes}
    expected = run(make_engine(0, "none", hidden=HIDDEN), ask, drain, prompts[:8], wished)
    got = run(make(), ask, drain, prompts[:8], wished)
    assert [(d.token_ids, d.text) for d in got] == [(d.token_ids, d.text) for d in expected]


@pytest.mark.parametrize("max_tokens", range(1, 12))
def test_a_text_ends_at_its_budget_inside_a_path(make, ask, drain, prompts, sampling, plain, max_tokens) -> None:
    found = texts(make(eos=()), ask, drain, prompts[:6], sampling, max_tokens=max_tokens)
    assert [text[: len(own)] for text, own in zip(plain, found, strict=False) if len(text) >= max_tokens] == [
        own for text, own in zip(plain, found, strict=False) if len(text) >= max_tokens
    ]
    assert {len(own) for own in found} == {max_tokens}


@pytest.mark.parametrize("proposer", ["eagle", "medusa"])
def test_a_trees_first_path_is_the_chain_that_would_have_been_drafted(make, ask, prompts, proposer, sampling) -> None:
    engine = make(proposer, 0, eos=())
    for i, prompt in enumerate(prompts[:5]):
        engine.submit(ask(prompt, f"{i}", **sampling))
    for _ in range(9):
        engine.step()
    running, tree = engine.scheduler.running, TREES[8]
    trees = engine.proposer.propose(running, [8] * 5, [tree] * 5)
    chains = engine.proposer.propose(running, [tree.depth] * 5)
    for b in range(5):
        tokens = trees.tokens(b)
        assert [tokens[node] for node in tree.spine] == chains.tokens(b)
        assert len(set(tokens[:3])) == 3


def test_eagle_drafts_a_path_beside_the_first_as_if_it_were_the_first(make, ask, prompts) -> None:
    """Its rows see their own ancestors alone."""
    engine = make("eagle", 0, eos=())
    # A bias of nothing: what is drafted as the plain largest logits does not say what it was drawn from.
    engine.submit(ask(prompts[5], logit_bias=((3, 0.0),)))
    for _ in range(5):
        engine.step()
    (sequence,), (tree,) = engine.scheduler.running, read_trees({"4": [-1, -1, 0, 1]}).values()
    proposal = engine.proposer.propose([sequence], [4], [tree])
    second, behind = proposal.tokens(0)[1], proposal.draft_logits[3]
    forced = proposal.draft_logits[0].clone()
    forced[second] = forced.max() + 1.0
    real = engine.proposer._catch_up

    def catch_up(sequences):
        outputs, _ = real(sequences)
        return outputs, forced[None, engine.proposer._vocabulary]

    engine.proposer._catch_up = catch_up
    chain = engine.proposer.propose([sequence], [2])
    assert chain.tokens(0)[0] == second
    torch.testing.assert_close(chain.draft_logits[1], behind, rtol=0.0, atol=1e-5)


FEW = GrammarSpec("regex", "(f|g|h|k|9){4,30}")


@pytest.mark.parametrize("proposer", ["paths", "eagle"])
def test_a_grammar_holds_along_every_path(make, make_engine, ask, drain, proposer, sampling) -> None:
    backend = Tokenizer(models.BPE({c: i for i, c in enumerate(CHARACTERS)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    characters = PreTrainedTokenizerFast(tokenizer_object=backend)
    found = []
    for engine in (
        make_engine(0, "none", hidden=HIDDEN, tokenizer=characters), make(proposer, 8, tokenizer=characters)
    ):  # fmt: skip
        for i in range(6):
            engine.submit(replace(ask([3 + i, 4, 5], f"{i}", max_tokens=24, **sampling), grammar=FEW))
        found.append({name: (done.token_ids, done.text) for name, done in drain(engine).items()})
    plain, trees = found
    assert trees == plain
    assert all(set(text.rstrip("c")) <= set("fghk9") for _, text in trees.values())  # c is the end


def test_log_probabilities_are_those_of_plain_decoding(make, make_engine, ask, drain, prompts, sampling) -> None:
    wished = {**sampling, "logprobs": 3}
    expected = run(make_engine(0, "none", hidden=HIDDEN), ask, drain, prompts[:8], wished)
    assert [d.logprobs for d in run(make(), ask, drain, prompts[:8], wished)] == [d.logprobs for d in expected]


def test_tokens_that_a_tree_gave_are_counted_as_kept_and_its_nodes_as_drafted(make, ask, drain, prompts) -> None:
    done = run(make(k=8, eos=()), ask, drain, prompts, GREEDY, 40)
    for each in done:
        drafted, accepted = (sum(step[i] for step in each.steps) for i in (0, 1))
        assert each.record.draft_tokens == drafted
        assert each.record.completion_tokens == 1 + accepted + len(each.steps)
        assert {n for n, _ in each.steps} > {8}


def under_way(engine, ask, prompts):
    """Sequences after a few steps, the length of their KV, and as many blocks beside to compute it again."""
    for prompt in prompts[:4]:
        engine.submit(ask(prompt, f"{len(prompt)}", max_tokens=60))
    for _ in range(9):
        engine.step()
    return [(s, s.kv_length, engine.tables.borrow(blocks_for(s.kv_length))) for s in engine.scheduler.running]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_kv_and_features_behind_a_kept_path_are_those_of_the_text_computed_as_a_chain(
    make, ask, prompts, dtype
) -> None:
    engine = make("paths", 8, dtype=dtype, eos=())
    runner = engine.target.runner
    for sequence, length, blocks in under_way(engine, ask, prompts):
        start, end = 0, sequence.prompt_length
        while start < length:
            runner.forward([Rows(blocks, start, sequence.token_ids[start:end])], [0])
            start, end = end, min(end + 1, length)
        assert length > sequence.prompt_length + 9
        for layer in (*runner.kv.keys, *runner.kv.values):
            assert torch.equal(held(layer, sequence.blocks, length), held(layer, blocks, length))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_a_drafter_is_taught_the_features_of_the_kept_path(make, ask, prompts, dtype) -> None:
    learner = Learner(ModelRunner(tiny_model(0, 2, dtype, nudge=0.05, hidden_size=HIDDEN), 8, 256, "near"), TREES)
    engine = make(learner, 8, dtype=dtype, eos=())
    runner = engine.target.runner
    for sequence, length, blocks in under_way(engine, ask, prompts):
        rows = Rows(blocks, 0, sequence.token_ids[:length])
        expected = runner.forward_with_features([rows], [0], learner.feature_layers)[1]
        assert torch.equal(torch.cat(learner.told[sequence.request.request_id]), expected)
        assert torch.equal(runner.kv.read_features(sequence.blocks, 0, length), expected)


class Learner(PathDrafter):
    """Notes what it is taught."""

    feature_layers = (1, 2)

    def __init__(self, runner: ModelRunner, trees: Trees) -> None:
        super().__init__(runner, trees)
        self.told: dict[str, list[torch.Tensor]] = {}

    def learn(self, sequence: Any, start: int, features: torch.Tensor) -> None:
        told = self.told.setdefault(sequence.request.request_id, [])
        assert start == sum(map(len, told))
        told.append(features)


def held(layer: torch.Tensor, blocks: Sequence[int], length: int) -> torch.Tensor:
    return layer[torch.tensor(blocks)].flatten(0, 1)[:length]


def test_the_deepest_draft_of_a_response_counts_the_levels_of_a_tree(make, ask, drain, prompts) -> None:
    engine, request = make(k=8, eos=()), ask(prompts[4], max_tokens=30)
    engine.submit(request)
    done = drain(engine)["r"]
    outcome = Outcome(ChoiceReader(None, request, False, None), steps=done.steps, record=done.record)
    block = speculation_of([outcome])["speculative_decoding"]
    assert max(drafted for drafted, _ in done.steps) == 8
    assert block["num_spec_tokens"] == done.record.max_k == TREES[8].depth
    assert sum(block["acceptance_histogram"]) == len([drafted for drafted, _ in done.steps if drafted])
