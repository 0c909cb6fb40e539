"""Unseeded tokens have the target's law as each sampler setting makes it, whatever drafts for it.

All settings are sampled side by side in one engine. The laws are worked out here, in doubles, from the logits that the
library gives.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chi2

from kernels.filters.naive import restricted
from workers.detokenizer import Detokenizer
from workers.sampling import restrict, restrict_batch
from workers.sequence import EngineRequest, SamplingParams, Sequence

VOCAB = 8
PROMPT = [3, 4, 5, 3, 4]
REQUESTS = 12
TOKENS = 30
FAIR, DAMNING = 1e-4, 1e-7
SETTINGS: dict[str, dict[str, Any]] = {
    "cold": {"temperature": 0.6},
    "top_k": {"temperature": 1.5, "top_k": 3},
    "top_p": {"temperature": 1.5, "top_p": 0.7},
    "min_p": {"temperature": 1.5, "min_p": 0.2},
    "repetition": {"temperature": 1.0, "repetition_penalty": 2.5},
    "presence": {"temperature": 1.0, "presence_penalty": 2.0},
    "frequency": {"temperature": 1.0, "frequency_penalty": 1.0},
    "bias": {"temperature": 1.0, "logit_bias": ((3, 1.5), (6, -2.0))},
    "min_tokens": {"temperature": 1.0, "min_tokens": 7, "logit_bias": ((2, 3.0),)},
    "all": {"temperature": 1.3, "repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.5}
    | {"logit_bias": ((1, 1.0),), "top_k": 6, "top_p": 0.95, "min_p": 0.02, "min_tokens": 3},
}


def law(logits, prompt, emitted, sampling, end=2):
    """Probabilities [VOCAB] of the token after `emitted`, by the definitions of the settings."""
    scores = logits.copy()
    for token in set(prompt + emitted):
        r = sampling.get("repetition_penalty", 1.0)
        scores[token] = scores[token] / r if scores[token] > 0 else scores[token] * r
    for token in set(emitted):
        scores[token] -= sampling.get("frequency_penalty", 0.0) * emitted.count(token)
        scores[token] -= sampling.get("presence_penalty", 0.0)
    for token, bias in sampling.get("logit_bias", ()):
        scores[token] += bias
    if len(emitted) < sampling.get("min_tokens", 0):
        scores[end] = -np.inf
    weights = np.exp((scores - scores.max()) / sampling["temperature"])
    ranked = np.argsort(-weights)
    weights[ranked[sampling.get("top_k", 0) or VOCAB :]] = 0.0
    before = np.cumsum(weights[ranked]) - weights[ranked]
    weights[ranked[before >= sampling.get("top_p", 1.0) * weights.sum()]] = 0.0
    weights[weights < sampling.get("min_p", 0.0) * weights.max()] = 0.0
    return weights / weights.sum()


def p_values(engine, ask, drain, own_logits, names=tuple(SETTINGS), **model):
    """Of each setting, as in test_distribution.py: D' C^+ D of what was drawn less its law, by the rank of C."""
    for name, i in itertools.product(names, range(REQUESTS)):
        engine.submit(ask(PROMPT, f"{name}/{i}", max_tokens=TOKENS, ignore_eos=True, **SETTINGS[name]))
    done = drain(engine)
    found = {}
    for name in names:
        texts = [done[f"{name}/{i}"].token_ids for i in range(REQUESTS)]
        found_logits = own_logits([PROMPT + text for text in texts], vocab=VOCAB, **model)
        logits = found_logits[:, len(PROMPT) - 1 : -1].double().numpy()
        laws = [
            law(logits[i, n], PROMPT, text[:n], SETTINGS[name]) for i, text in enumerate(texts) for n in range(TOKENS)
        ]
        drawn = [token for text in texts for token in text]
        found[name] = p_value(np.array(laws), np.array(drawn))
    return found


def p_value(laws, drawn):
    if bool((laws[np.arange(len(drawn)), drawn] == 0).any()):
        return 0.0
    difference = np.bincount(drawn, minlength=VOCAB) - laws.sum(0)
    covariance = np.diag(laws.sum(0)) - laws.T @ laws
    statistic = difference @ np.linalg.pinv(covariance, rcond=1e-9, hermitian=True) @ difference
    return chi2.sf(statistic, np.linalg.matrix_rank(covariance, tol=1e-7))


@pytest.fixture
def fixed_noise(monkeypatch):
    """Unseeded requests draw their noise keys from a fixed sequence, so that the test cannot fail by chance."""
    numbers = np.random.default_rng(4)
    monkeypatch.setattr("workers.engine.secrets.randbits", lambda bits: int(numbers.integers(2**62)))


@pytest.mark.parametrize(("proposer", "names"), [("close", tuple(SETTINGS)), ("ngram", ("min_p", "bias", "all"))])
def test_tokens_have_the_law_of_each_setting(make_engine, ask, drain, own_logits, proposer, names, fixed_noise) -> None:
    found = p_values(make_engine(3, proposer, slots=36, vocab=VOCAB), ask, drain, own_logits, names)
    assert min(found.values()) > FAIR, found


def test_tokens_have_the_law_of_each_setting_whatever_trees_are_drafted(
    make_engine, ask, drain, own_logits, fixed_noise
) -> None:
    """Also where a setting leaves fewer tokens than there are children."""
    engine = make_engine(8, "paths", slots=36, vocab=VOCAB, hidden=64, nudge=0.1)
    found = p_values(engine, ask, drain, own_logits, hidden_size=64)
    assert min(found.values()) > FAIR, found


def test_a_row_that_does_not_count_the_drafts_before_it_is_noticed(
    make_engine, ask, drain, own_logits, fixed_noise, blind_penalties
) -> None:
    found = p_values(
        make_engine(3, "close", slots=36, vocab=VOCAB), ask, drain, own_logits, ("presence", "frequency", "all")
    )
    assert min(found.values()) < DAMNING, found


@pytest.fixture
def make_sequence(tokenizer):
    def make(output, **sampling):
        request = EngineRequest("r", (1, 2), SamplingParams(20, **sampling), "default")
        return Sequence(request, [1, 2, *output], 0, Detokenizer(tokenizer))

    return make


@pytest.mark.parametrize("name", SETTINGS)
def test_two_tokens_have_the_law_of_plain_decoding_exactly(make_sequence, name) -> None:
    """Every pair of drafts of four tokens, every acceptance and every recovered token, summed in doubles.

    The target's logits depend on the token before, and the drafter's are others: the rule of rejection sampling on the
    rows that verification is given must yield the product of the laws that decoding without drafts has.
    """
    size, numbers = 4, torch.Generator().manual_seed(8)
    target, draft = torch.randn(2, size + 1, size, generator=numbers) * 2
    limits = {k: tuple(b for b in v if b[0] < size) if k == "logit_bias" else v for k, v in SETTINGS[name].items()}

    def rows(output, drafts):
        """Probabilities [len(drafts) + 1, size] after `output`, of which the last token decides the next logits."""
        sequence = make_sequence(output, **limits)
        logits = torch.stack([target[token] for token in (sequence.token_ids[-1], *drafts)])
        allowed = restrict_batch(logits, [sequence], [range(len(drafts) + 1)], drafts, [2])
        return torch.softmax(allowed.double() / limits["temperature"], -1)

    draft_probs = torch.softmax(draft.double(), -1)
    law = torch.zeros(size, size, dtype=torch.float64)
    for first, second in itertools.product(range(size), range(size)):
        weight = draft_probs[2, first] * draft_probs[first, second]
        target_probs = rows([1, 3], [first, second])
        accept = torch.minimum(target_probs[0, first] / draft_probs[2, first], torch.tensor(1.0))
        rest = (target_probs[0] - draft_probs[2]).clamp(min=0)
        for token in range(size):  # recovered; the second token comes from a step of its own
            chance = weight * (1 - accept) * (rest[token] / rest.sum() if accept < 1 else 0.0)
            law[token] += chance * rows([1, 3, token], [])[0]
        accept_second = torch.minimum(target_probs[1, second] / draft_probs[first, second], torch.tensor(1.0))
        law[first, second] += weight * accept * accept_second
        rest = (target_probs[1] - draft_probs[first]).clamp(min=0)
        if accept_second < 1:
            law[first] += weight * accept * (1 - accept_second) * rest / rest.sum()
    plain = rows([1, 3], [])[0][:, None] * torch.stack([rows([1, 3, token], [])[0] for token in range(size)])
    assert 0.5 * float((law - plain).abs().sum()) < 1e-6


@pytest.mark.parametrize("min_p", [0.0, 0.01, 0.3, 1.0])
@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.7])
def test_min_p_ends_where_that_of_the_kernels_ends(min_p, temperature) -> None:
    logits = torch.randn(6, 500, generator=torch.Generator().manual_seed(2)).bfloat16().float() * 3
    ours = restrict(logits, SamplingParams(1, temperature=temperature, min_p=min_p))
    for row, kept in zip(logits, ours, strict=True):
        theirs = restricted(row * (1.0 / torch.tensor(temperature)), 0, 1.0, float(torch.tensor(min_p).log()))
        assert torch.equal(kept.isfinite(), theirs.isfinite())
