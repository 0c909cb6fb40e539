"""Unseeded sampling through the whole engine has the target's distribution, whatever drafts for it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import chi2

import kernels.verify.naive
import workers.verifier
from kernels.verify import Verdict
from kernels.verify.verdict import RULES
from workers.token_tree import read_trees

REQUESTS = 40
TOKENS = 64
VOCAB = 8
PROMPT = [3, 4, 5, 3, 4]
TEMPERATURE = 1.5


def p_value(engine, ask, drain, own_logits, **model):
    """Of the chi-square test of every sampled token against its law given the text before it.

    Pearson's statistic for laws that differ from draw to draw: with D the sum of (one-hot token - law) and C the sum
    of the laws' covariances, D' C^-1 D is chi-square with V - 1 degrees of freedom. One sum for each preceding token.
    """
    for i in range(REQUESTS):
        engine.submit(ask(PROMPT, f"{i}", max_tokens=TOKENS, temperature=TEMPERATURE))
    texts = [PROMPT + done.token_ids for done in drain(engine).values()]
    logits = own_logits(texts, vocab=VOCAB, **model)[:, len(PROMPT) - 1 : -1].double()
    laws = torch.softmax(logits / TEMPERATURE, -1).numpy().reshape(-1, VOCAB)
    tokens = np.array(texts)
    before, drawn = tokens[:, len(PROMPT) - 1 : -1].ravel(), tokens[:, len(PROMPT) :].ravel()
    statistic, freedom = 0.0, 0
    for token in range(VOCAB):
        law, chosen = laws[before == token], drawn[before == token]
        if len(chosen) < 40:
            continue
        difference = np.bincount(chosen, minlength=VOCAB) - law.sum(0)
        covariance = np.diag(law.sum(0)) - law.T @ law
        statistic += difference @ np.linalg.pinv(covariance) @ difference
        freedom += VOCAB - 1
    assert freedom >= 5 * (VOCAB - 1)
    return chi2.sf(statistic, freedom)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("proposer", ["none", "ngram", "draft", "close", "ngram+draft"])
def test_sampled_tokens_have_the_targets_distribution(
    make_engine, ask, drain, own_logits, proposer, rule, fixed_noise
) -> None:
    engine = make_engine(3, proposer, slots=20, eos=(), vocab=VOCAB, rule=rule)
    assert p_value(engine, ask, drain, own_logits) > 1e-3


@pytest.mark.parametrize("company", [1, 2, 4])
def test_row_21_sampled_text_is_corrupt_with_more_than_two_sequences_only(
    make_engine, ask, drain, own_logits, company, fixed_noise
) -> None:
    """While acceptance looked as ever: it is the text that is judged, at one, two and four sequences."""
    engine = make_engine(3, "close", slots=company, eos=(), vocab=VOCAB)
    assert p_value(engine, ask, drain, own_logits) > 1e-3


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("proposer", ["ngram", "draft", "ngram+draft"])
@pytest.mark.parametrize("mistake", ["every_draft_is_accepted", "rejected_tokens_are_drawn_from_the_target"])
def test_a_broken_acceptance_rule_is_noticed(
    make_engine, ask, drain, own_logits, proposer, mistake, rule, fixed_noise, request
) -> None:
    request.getfixturevalue(mistake)
    engine = make_engine(3, proposer, slots=20, eos=(), vocab=VOCAB, rule=rule)
    assert p_value(engine, ask, drain, own_logits) < 1e-6


def test_a_broken_rule_of_blocks_is_noticed(
    make_engine, ask, drain, own_logits, a_blocks_scale_never_falls, fixed_noise
) -> None:
    engine = make_engine(3, "draft", slots=20, eos=(), vocab=VOCAB, rule="block")
    assert p_value(engine, ask, drain, own_logits) < 1e-6


TREES = read_trees({"8": [-1, -1, -1, 0, 0, 1, 3, 5]})
WIDE = {"hidden_size": 64}
"""Heads of 16, which the attention that knows trees computes."""


@pytest.mark.parametrize(
    ("proposer", "rule"),
    [("paths", "token"), ("eagle", "token"), ("medusa", "token"), ("ngram+paths", "token"), ("ngram+paths", "block")],
)
def test_sampled_tokens_have_the_targets_distribution_whatever_trees_are_drafted(
    make_engine, ask, drain, own_logits, proposer, rule, fixed_noise
) -> None:
    engine = make_engine(8, proposer, slots=20, eos=(), vocab=VOCAB, trees=TREES, hidden=64, nudge=0.1, rule=rule)
    assert p_value(engine, ask, drain, own_logits, **WIDE) > 1e-3
    ranks = [0, 0, 0]
    for count in engine.close_window().cohorts[0].ranks:
        ranks[count.rank] += count.kept
    assert min(ranks) > 20  # children of every rank were kept


@pytest.mark.parametrize("mistake", ["the_best_children_are_drafted", "a_rejected_child_leaves_the_target_as_it_was"])
def test_a_broken_rule_of_trees_is_noticed(make_engine, ask, drain, own_logits, mistake, fixed_noise, request) -> None:
    request.getfixturevalue(mistake)
    engine = make_engine(8, "paths", slots=20, eos=(), vocab=VOCAB, trees=TREES, hidden=64, nudge=0.3)
    assert p_value(engine, ask, drain, own_logits, **WIDE) < 1e-6


@pytest.fixture
def the_best_children_are_drafted(monkeypatch):
    """Instead of children drawn from the distribution that is handed to the verifier."""

    def best(self, sequence, depth, vocab, device):
        return torch.zeros(vocab)

    monkeypatch.setattr("workers.proposers.draws.NoiseRows.of", best)


@pytest.fixture
def a_rejected_child_leaves_the_target_as_it_was(monkeypatch):
    """Instead of what it gives more of than the drafter."""
    monkeypatch.setattr("kernels.verify_tree.rejection.residual_after", lambda residual, _: residual)


@pytest.fixture
def every_draft_is_accepted(monkeypatch):
    def accept_all(logits, draft_token_ids, draft_logits, cu_draft, *args, **kwargs):
        verdict = real(logits, draft_token_ids, draft_logits, cu_draft, *args, **kwargs)
        tokens = verdict.token_ids.clone()
        accepted = cu_draft.diff().to(torch.int32)
        for b, (start, k) in enumerate(zip(cu_draft[:-1].tolist(), accepted.tolist(), strict=True)):
            last = tokens[b][int(verdict.num_accepted[b])].clone()
            tokens[b, :k], tokens[b, k] = draft_token_ids[start : start + k], last
        return Verdict(accepted, tokens, verdict.overlap)

    real = workers.verifier.verify_chain
    monkeypatch.setattr(workers.verifier, "verify_chain", accept_all)


@pytest.fixture
def rejected_tokens_are_drawn_from_the_target(monkeypatch):
    """Instead of from what the target gives more of than the drafter."""
    monkeypatch.setattr(kernels.verify.naive, "_residual", lambda target_probs, *_: target_probs)


@pytest.fixture
def a_blocks_scale_never_falls(monkeypatch):
    """However little the target stands behind a token."""
    monkeypatch.setattr(kernels.verify.naive, "_joint_scale", lambda *_: 1.0)


@pytest.fixture
def fixed_noise(monkeypatch):
    """Unseeded requests draw their noise keys from a fixed sequence, so that the test cannot fail by chance."""
    numbers = np.random.default_rng(123)
    monkeypatch.setattr("workers.engine.secrets.randbits", lambda bits: int(numbers.integers(2**62)))
