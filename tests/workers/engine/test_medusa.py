"""Medusa in the engine drafts what its heads say, and resumes after K = 0 as if it had never paused."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from tests.workers.training.conftest import HIDDEN, VOCAB, tiny_target
from workers.attention import IMPLEMENTATION
from workers.model_runner import ModelRunner
from workers.proposers.medusa import MedusaProposer
from workers.proposers.medusa_model import MedusaModel
from workers.sequence import EngineRequest, SamplingParams, Sequence
from workers.step_layout import Rows

TEXT = [3, 9, 4, 27, 8, 1, 30, 12, 5, 17, 22, 2]
HEADS = 3
VOCABULARY = torch.arange(0, VOCAB, 2)


@pytest.fixture(scope="module")
def runner() -> ModelRunner:
    model = tiny_target()
    model.set_attn_implementation(IMPLEMENTATION)
    return ModelRunner(model, 4, 64, "tiny")


@pytest.fixture(scope="module")
def features(runner) -> torch.Tensor:
    """Of all of TEXT, [length, 1, hidden]: what the target hands on of its last layer."""
    return runner.forward_with_features([Rows(range(1, 5), 0, TEXT)], [0], (runner.num_layers,))[1]


def heads() -> MedusaModel:
    torch.manual_seed(5)
    model = MedusaModel(HIDDEN, HEADS)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    return model


@pytest.fixture
def proposer(runner) -> MedusaProposer:
    return MedusaProposer(heads(), VOCABULARY, runner.head, runner.num_layers)


def sequence(length, request_id="r", temperature=0.0) -> Sequence:
    request = EngineRequest(request_id, tuple(TEXT[:4]), SamplingParams(32, temperature, seed=4), "default")
    return Sequence(request, TEXT[:length], noise_seed=4, detokenizer=None)


@torch.no_grad()
def by_definition(runner, features, length, k) -> list[int]:
    """Residual x + silu(W x + b) of the position before the last token's, through the target's LM head."""
    x = features[length - 2, 0]
    drafts = []
    for block in heads().blocks[:k]:
        scores = runner.head @ (x + functional.silu(block.weight @ x + block.bias))
        drafts.append(int(VOCABULARY[scores[VOCABULARY].argmax()]))
    return drafts


@torch.no_grad()
def test_what_it_reads_is_what_the_lm_head_reads(runner, features) -> None:
    logits = runner.forward([Rows(range(5, 9), 0, TEXT)], range(len(TEXT)))
    torch.testing.assert_close(features[:, 0] @ runner.head.T, logits)


def test_its_drafts_are_those_of_the_heads(proposer, runner, features) -> None:
    proposer.learn(sequence(9), 0, features[:8])
    assert proposer.propose([sequence(9)], [3]).tokens(0) == by_definition(runner, features, 9, 3)


def test_it_drafts_no_more_tokens_than_it_has_heads(proposer, features) -> None:
    proposer.learn(sequence(9), 0, features[:8])
    assert len(proposer.propose([sequence(9)], [8]).tokens(0)) == HEADS


def test_after_a_pause_it_drafts_as_if_it_had_never_paused(proposer, runner, features) -> None:
    for start, end in ((0, 4), (4, 5), (5, 8), (8, 11)):
        proposer.learn(sequence(end + 1), start, features[start:end])
    assert proposer.propose([sequence(12)], [2]).tokens(0) == by_definition(runner, features, 12, 2)


def test_batch_mates_do_not_change_a_draft(proposer, runner, features) -> None:
    for name, length in (("a", 9), ("b", 12), ("c", 5)):
        proposer.learn(sequence(length, name), 0, features[: length - 1])
    proposal = proposer.propose([sequence(9, "a"), sequence(12, "b"), sequence(5, "c")], [1, 3, 0])
    expected = [by_definition(runner, features, 9, 1), by_definition(runner, features, 12, 3), []]
    assert [proposal.tokens(b) for b in range(3)] == expected


def test_of_a_sequence_whose_beginning_it_never_saw_it_drafts_nothing(proposer, features) -> None:
    proposer.learn(sequence(9), 4, features[4:8])
    assert proposer.propose([sequence(9)], [3]).tokens(0) == []


def test_behind_a_hole_in_what_it_was_told_it_drafts_nothing(proposer, features) -> None:
    proposer.learn(sequence(5), 0, features[:4])
    proposer.learn(sequence(9), 6, features[6:8])
    assert proposer.propose([sequence(9)], [3]).tokens(0) == []


def test_only_the_draft_vocabulary_is_drafted(proposer, features) -> None:
    proposer.learn(sequence(9, temperature=5.0), 0, features[:8])
    proposal = proposer.propose([sequence(9, temperature=5.0)], [3])
    assert all(token % 2 == 0 for token in proposal.tokens(0))
    assert torch.isinf(proposal.draft_logits[:, 1::2]).all()


def test_a_released_sequence_leaves_nothing(proposer, features) -> None:
    proposer.learn(sequence(9), 0, features[:8])
    proposer.release(sequence(9))
    assert proposer._known == {}
