"""The n-gram index first, another drafter where it is silent: one proposal, exact distributions, no holes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from kernels.verify import verify_chain
from tests.workers.training.conftest import HIDDEN, LAYERS, VOCAB, tiny_target
from workers.attention import IMPLEMENTATION
from workers.model_runner import ModelRunner
from workers.plan_client import constant_plan
from workers.proposers.base import Proposer
from workers.proposers.combined import NGramFirstProposer
from workers.proposers.draft_model import DraftModelProposer
from workers.proposers.eagle import EagleProposer, SharedWeights
from workers.proposers.eagle_model import EagleModel, EagleShape
from workers.proposers.medusa import MedusaProposer
from workers.proposers.medusa_model import MedusaModel
from workers.sequence import EngineRequest, SamplingParams, Sequence
from workers.step_layout import Rows

LOOP = [3, 9, 4, 27, 8]
TEXT = LOOP * 4 + [30, 1, 17]
"""From the third repeated token on the index speaks, up to the new ones at the end."""
SILENT = [*LOOP, 12]


@pytest.fixture(scope="module")
def runner() -> ModelRunner:
    model = tiny_target()
    model.set_attn_implementation(IMPLEMENTATION)
    return ModelRunner(model, 4, 64, "tiny")


def eagle(runner: ModelRunner) -> Proposer:
    torch.manual_seed(5)
    shape = EagleShape(HIDDEN, 4, 2, 8, 48, LAYERS, 10000.0, 1e-6)
    shared = SharedWeights(runner.embeddings, runner.head)
    return EagleProposer(EagleModel(shape), torch.arange(0, VOCAB, 2), shared, 4, 64)


def medusa(runner: ModelRunner) -> Proposer:
    torch.manual_seed(6)
    heads = MedusaModel(HIDDEN, 3)
    with torch.no_grad():
        for parameter in heads.parameters():
            parameter.normal_()
    return MedusaProposer(heads, torch.arange(0, VOCAB, 2), runner.head, runner.num_layers)


def draft_model(runner: ModelRunner) -> Proposer:
    model = tiny_target()
    model.set_attn_implementation(IMPLEMENTATION)
    return DraftModelProposer(ModelRunner(model, 4, 64, "draft"), VOCAB)


SECONDS = [eagle, medusa, draft_model]
Make = Callable[[ModelRunner], Proposer]


def sequence(text, length=None, request_id="r", temperature=0.8, seed=None, prediction=()) -> Sequence:
    sampling = SamplingParams(32, temperature, seed=seed)
    request = EngineRequest(request_id, tuple(text[:4]), sampling, "default", prediction=prediction)
    return Sequence(request, list(text[:length]), noise_seed=4, detokenizer=None)


def features_of(runner: ModelRunner, proposer: Proposer, text: list[int]) -> torch.Tensor | None:
    """[length, layers, hidden] of all of the text, None for a drafter that reads none."""
    if not proposer.feature_layers:
        return None
    return runner.forward_with_features([Rows(range(1, 5), 0, text)], [0], proposer.feature_layers)[1]


def tell(proposer: Proposer, known: Sequence, features: torch.Tensor | None, start: int = 0) -> None:
    if features is not None:
        proposer.learn(known, start, features[start : len(known.token_ids) - 1])


@pytest.fixture
def combined(runner) -> NGramFirstProposer:
    return NGramFirstProposer(eagle(runner))


@pytest.fixture
def mixed(runner, combined):
    """A batch of a sequence in a loop, one with nothing repeated, and one whose K is 0; and its proposal."""
    batch = [sequence(LOOP * 3, request_id="loop"), sequence(SILENT, request_id="new"), sequence(SILENT)]
    for each in batch:
        tell(combined, each, features_of(runner, combined, each.token_ids))
    return batch, combined.propose(batch, [4, 3, 0])


def test_it_is_named_after_both_and_its_least_match_is_part_of_its_version(runner) -> None:
    second = eagle(runner)
    second.version = "abc"
    proposer = NGramFirstProposer(second, 5)
    assert (proposer.name, proposer.version) == ("ngram+eagle", "2.5+abc")


def test_each_sequence_has_the_drafts_of_one_of_them(runner, mixed) -> None:
    batch, proposal = mixed
    alone = eagle(runner)
    tell(alone, batch[1], features_of(runner, alone, SILENT))
    assert [proposal.k(b) for b in range(3)] == [4, 3, 0]
    assert proposal.tokens(0) == LOOP[:4]
    assert proposal.tokens(1) == alone.propose([batch[1]], [3]).tokens(0)


def test_only_what_the_second_computed_is_counted(mixed) -> None:
    assert mixed[1].positions == (0, len(SILENT) - 1 + 2, 0)


@pytest.mark.parametrize("temperature", [1e-4, 0.7, 1.0, 9.0])
def test_a_row_of_the_index_is_one_token_at_any_temperature(mixed, temperature) -> None:
    probs = torch.softmax(mixed[1].draft_logits[:4] / temperature, -1)
    assert torch.equal(probs, torch.nn.functional.one_hot(torch.tensor(LOOP[:4]), VOCAB).float())


def test_a_row_of_the_second_is_what_it_drew_from(runner, mixed) -> None:
    batch, proposal = mixed
    alone = eagle(runner)
    tell(alone, batch[1], features_of(runner, alone, SILENT))
    assert torch.equal(proposal.draft_logits[4:], alone.propose([batch[1]], [3]).draft_logits)


def test_where_the_index_speaks_for_all_there_are_no_logits_and_the_second_computes_nothing(runner, combined) -> None:
    batch = [sequence(LOOP * 3, request_id="a"), sequence(LOOP * 2, request_id="b")]
    proposal = combined.propose(batch, [4, 2])
    assert (proposal.draft_logits, proposal.positions) == (None, (0, 0))


def test_a_match_that_is_too_short_is_left_to_the_second(runner, combined) -> None:
    short = sequence([*LOOP, 12, *LOOP[:2]])
    tell(combined, short, features_of(runner, combined, short.token_ids))
    assert combined.propose([short], [2]).draft_logits is not None


def test_what_is_copied_from_a_prediction_is_said(combined) -> None:
    edited = sequence([1, 2, 3, 4, 20, 21], prediction=(20, 21, 22, 23))
    proposal = combined.propose([edited], [2])
    assert (proposal.tokens(0), proposal.predicted) == ([22, 23], (2,))


@pytest.mark.parametrize("make", SECONDS)
def test_after_ten_steps_of_the_index_the_second_drafts_as_one_that_had_read_the_text_afresh(
    runner, make: Make
) -> None:
    proposer = NGramFirstProposer(make(runner))
    features = features_of(runner, proposer, TEXT)
    from_index, start = 0, 0
    for length in range(6, len(TEXT) + 1):
        known = sequence(TEXT, length)
        tell(proposer, known, features, start)
        proposal = proposer.propose([known], [3])
        from_index += proposal.draft_logits is None
        start = length - 1
    fresh, known = make(runner), sequence(TEXT)
    tell(fresh, known, features)
    expected = fresh.propose([known], [3])
    assert from_index >= 10
    assert proposal.tokens(0) == expected.tokens(0)
    torch.testing.assert_close(proposal.draft_logits, expected.draft_logits)


def test_a_rehearsal_measures_the_second_though_its_text_repeats_itself(combined) -> None:
    made_up = sequence(LOOP * 3)
    combined.prime([made_up])
    assert combined.propose([made_up], [3]).draft_logits is not None


def test_a_released_sequence_leaves_nothing(runner, combined) -> None:
    known = sequence(LOOP * 3)
    combined.prime([known])
    combined.propose([known], [3])
    combined.release(known)
    assert (combined._primed, combined._ngram._known, combined._second._states) == (set(), {}, {})


@pytest.mark.parametrize("coupled", [False, True], ids=["unseeded", "seeded"])
@pytest.mark.parametrize("temperature", [0.0, 1e-4, 0.9, 30.0])
def test_a_batch_is_verified_as_each_of_its_sequences_alone(mixed, coupled, temperature) -> None:
    """The index's rows are known there without logits, and here beside rows with them."""
    _, proposal = mixed
    numbers = torch.Generator().manual_seed(3)
    for seed in range(40):
        target = 2 * torch.randn(10, VOCAB, generator=numbers)
        together = verified(
            target, proposal.draft_token_ids, proposal.draft_logits, [0, 4, 7, 7], temperature, coupled, seed
        )
        index = verified(target[:5], proposal.draft_token_ids[:4], None, [0, 4], temperature, coupled, seed)
        drawn = verified(
            target[5:9], proposal.draft_token_ids[4:], proposal.draft_logits[4:], [0, 3], temperature, coupled, seed
        )
        for b, alone in enumerate((index, drawn)):
            n = int(alone.num_accepted[0])
            assert int(together.num_accepted[b]) == n
            assert together.token_ids[b, : n + 1].tolist() == alone.token_ids[0, : n + 1].tolist()
            examined = range(4 * b, 4 * b + min(n + 1, 4 - b))
            torch.testing.assert_close(together.overlap[list(examined)], alone.overlap[: len(examined)])


def verified(target, tokens, logits, cu_draft, temperature, coupled, seed):
    batch = len(cu_draft) - 1
    return verify_chain(
        target,
        tokens,
        logits,
        torch.tensor(cu_draft, dtype=torch.int32),
        torch.full((batch,), temperature),
        torch.full((batch,), seed, dtype=torch.int64),
        torch.full((batch,), 9, dtype=torch.int64),
        torch.full((batch,), coupled),
        backend="naive",
    )


RANDOM = ["ngram+eagle", "ngram+medusa"]
"""The engine's fixtures give these random weights."""


@pytest.mark.parametrize("proposer", RANDOM)
@pytest.mark.parametrize("sampling", [{"temperature": 0.0}, {"temperature": 0.9, "seed": 11}], ids=["greedy", "seeded"])
def test_a_drafter_of_random_weights_never_changes_the_text_however_k_changes(
    make_engine, ask, collect, prompts, proposer, sampling
) -> None:
    def texts(engine, ks):
        out = {}
        for i, prompt in enumerate(prompts):
            engine.submit(ask(prompt, f"{i}", max_tokens=24, **sampling))
        for k in ks:
            if not engine.has_work:
                return [out[f"{i}"] for i in range(len(prompts))]
            engine.plan_client.plan = constant_plan(k, ["default"])
            collect(out, engine.step())
        raise AssertionError("the engine did not come to an end")

    plain = texts(make_engine(0, "none"), [0] * 500)
    random = texts(make_engine(0, proposer), [0, 5, 1, 0, 0, 8] * 80)
    assert [each.token_ids for each in random] == [each.token_ids for each in plain]
    rejected = sum(drafted > accepted for each in random for drafted, accepted in each.steps)
    assert rejected > 20


def test_shadow_drafts_of_a_paused_pair_change_nothing(make_engine, ask, drain, prompts) -> None:
    engines = make_engine(0, "ngram+eagle", shadow_depth=4), make_engine(0, "none")
    for engine in engines:
        for i, prompt in enumerate(prompts):
            engine.submit(ask(prompt, f"{i}"))
    shadowed, plain = (drain(engine) for engine in engines)
    assert {name: each.token_ids for name, each in shadowed.items()} == {
        name: each.token_ids for name, each in plain.items()
    }
