"""EAGLE in the engine drafts what it was trained to, and resumes after K = 0 as if it had never paused."""

from __future__ import annotations

import pytest
import torch

from tests.workers.training.conftest import HIDDEN, LAYERS, VOCAB, tiny_target
from workers.attention import IMPLEMENTATION
from workers.model_runner import ModelRunner
from workers.proposers.eagle import EagleProposer, SharedWeights
from workers.proposers.eagle_model import EagleModel, EagleShape, Keys, attend_unrolled
from workers.sequence import EngineRequest, SamplingParams, Sequence
from workers.step_layout import Rows

TEXT = [3, 9, 4, 27, 8, 1, 30, 12, 5, 17, 22, 2]


@pytest.fixture(scope="module")
def runner() -> ModelRunner:
    model = tiny_target()
    model.set_attn_implementation(IMPLEMENTATION)
    return ModelRunner(model, 4, 64, "tiny")


@pytest.fixture(params=[False, True], ids=["as published", "joined"])
def proposer(runner, request) -> EagleProposer:
    torch.manual_seed(5)
    shape = EagleShape(HIDDEN, 4, 2, 8, 48, LAYERS, 10000.0, 1e-6, joined=request.param)
    shared = SharedWeights(runner.embeddings, runner.head)
    return EagleProposer(EagleModel(shape), torch.arange(0, VOCAB, 2), shared, 4, 64)


@pytest.fixture(scope="module")
def features(runner) -> torch.Tensor:
    """Of all of TEXT, [length, layers, hidden]."""
    return runner.forward_with_features([Rows(range(1, 5), 0, TEXT)], [0], LAYERS)[1]


def sequence(length, request_id="r", temperature=0.0) -> Sequence:
    request = EngineRequest(request_id, tuple(TEXT[:4]), SamplingParams(32, temperature, seed=4), "default")
    return Sequence(request, TEXT[:length], noise_seed=4, detokenizer=None)


def unrolled(proposer, runner, features, length, k):
    """The drafts by the definition: the whole text at once, then one position after the other."""
    model = proposer._model
    tokens, feature = TEXT[:length], model.project(features[None, : length - 1])
    ids = torch.tensor(tokens[1:])
    mask = torch.full((length - 1, length - 1), -torch.inf).triu(1)
    feature = model.join(runner.embeddings[ids][None], feature)
    q, keys = model.attend(runner.embeddings[ids][None], feature, torch.arange(length - 1))
    last = model.finish(feature, attend_unrolled(q, [keys], mask))[:, -1:]
    drafts = []
    while True:
        logits = model.logits(last[0], runner.head[proposer._vocabulary])
        drafts.append(int(proposer._vocabulary[logits.argmax()]))
        if len(drafts) == k:
            return drafts
        position = torch.tensor([length - 2 + len(drafts)])
        last = model.join(runner.embeddings[torch.tensor(drafts[-1:])][None], last)
        q, own = model.attend(runner.embeddings[torch.tensor(drafts[-1:])][None], last, position)
        keys = Keys(torch.cat((keys.k, own.k), 2), torch.cat((keys.v, own.v), 2))
        last = model.finish(last, attend_unrolled(q, [keys], torch.zeros(1, keys.k.shape[2])))


def test_its_drafts_are_those_of_the_definition(proposer, runner, features) -> None:
    proposer.learn(sequence(9), 0, features[:8])
    with torch.inference_mode():
        assert proposer.propose([sequence(9)], [5]).tokens(0) == unrolled(proposer, runner, features, 9, 5)


def test_after_a_pause_it_drafts_as_if_it_had_never_paused(proposer, runner, features) -> None:
    for length in (5, 6, 9, 12):
        start = {5: 0, 6: 4, 9: 5, 12: 8}[length]
        proposer.learn(sequence(length), start, features[start : length - 1])
        if length != 9:
            got = proposer.propose([sequence(length)], [3]).tokens(0)
    with torch.inference_mode():
        assert got == unrolled(proposer, runner, features, 12, 3)


def test_asked_twice_for_the_same_text_it_says_the_same(proposer, features) -> None:
    proposer.learn(sequence(9), 0, features[:8])
    first = proposer.propose([sequence(9)], [4]).tokens(0)
    assert proposer.propose([sequence(9)], [4]).tokens(0) == first


def test_batch_mates_do_not_change_a_draft(proposer, runner, features) -> None:
    for name, length in (("a", 9), ("b", 12), ("c", 5)):
        proposer.learn(sequence(length, name), 0, features[: length - 1])
    batch = [sequence(9, "a"), sequence(12, "b"), sequence(5, "c")]
    proposal = proposer.propose(batch, [2, 4, 0])
    with torch.inference_mode():
        alone = [unrolled(proposer, runner, features, 9, 2), unrolled(proposer, runner, features, 12, 4), []]
    assert [proposal.tokens(b) for b in range(3)] == alone


def test_of_a_sequence_whose_beginning_it_never_saw_it_drafts_nothing(proposer, features) -> None:
    proposer.learn(sequence(9), 4, features[4:8])
    assert proposer.propose([sequence(9)], [4]).tokens(0) == []


def test_only_the_draft_vocabulary_is_drafted(proposer, features) -> None:
    proposer.learn(sequence(9, temperature=5.0), 0, features[:8])
    proposal = proposer.propose([sequence(9, temperature=5.0)], [8])
    assert all(token % 2 == 0 for token in proposal.tokens(0))
    assert proposal.draft_logits.shape == (8, VOCAB)
    assert torch.isinf(proposal.draft_logits[:, 1::2]).all()


def test_what_it_computed_is_counted(proposer, features) -> None:
    proposer.learn(sequence(9), 0, features[:8])
    assert proposer.propose([sequence(9)], [3]).positions == (8 + 2,)
    proposer.learn(sequence(12), 8, features[8:11])
    # Three new positions and, once more, the one before them.
    assert proposer.propose([sequence(12)], [1]).positions == (3 + 1,)


def test_a_long_prompt_is_caught_up_in_pieces(runner, proposer, features, monkeypatch) -> None:
    proposer.learn(sequence(12), 0, features[:11])
    whole = proposer.propose([sequence(12)], [4]).tokens(0)
    monkeypatch.setattr("workers.proposers.eagle.CATCH_UP_CHUNK", 4)
    proposer.learn(sequence(12, "again"), 0, features[:11])
    assert proposer.propose([sequence(12, "again")], [4]).tokens(0) == whole


def test_a_released_sequence_leaves_nothing(proposer, features) -> None:
    proposer.learn(sequence(9), 0, features[:8])
    proposer.release(sequence(9))
    assert (proposer._states, proposer._slots.used) == ({}, 0)
