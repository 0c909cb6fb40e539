"""Children are taken as verification wants them: without replacement, or the best ones first."""

from __future__ import annotations

from collections import Counter
from itertools import permutations

import pytest
import torch
from scipy.stats import chisquare

from workers.proposers.draws import (
    NoiseRows,
    draw_children,
    largest,
    over_target_vocabulary,
    read_tokens,
    takes_largest,
)
from workers.sequence import EngineRequest, SamplingParams, Sequence

LOGITS = torch.tensor([[1.0, 0.2, -0.5, 0.9, -torch.inf]])
DRAWS = 6000
CPU = torch.device("cpu")


def sequence(noise_seed=4, **sampling) -> Sequence:
    sampling.setdefault("temperature", 1.0)
    request = EngineRequest("r", (3, 4), SamplingParams(32, **sampling), "default")
    return Sequence(request, [3, 4, 2], noise_seed, detokenizer=None)


def drawn(count, seeds, logits=LOGITS, path=()):
    draws = [draw_children(logits, sequence(seed), path, count, NoiseRows()) for seed in seeds]
    return [tuple(tokens) for tokens in read_tokens(draws)]


def test_pairs_have_the_law_of_draws_without_replacement() -> None:
    seen = Counter(drawn(2, range(DRAWS)))
    probs = torch.softmax(LOGITS[0].double(), -1)
    pairs = list(permutations(range(4), 2))
    expected = [float(probs[a] * probs[b] / (1.0 - probs[a])) * DRAWS for a, b in pairs]
    assert set(seen) <= set(pairs)
    assert chisquare([seen[pair] for pair in pairs], expected).pvalue > 1e-3


def test_where_the_drafter_has_no_more_all_others_are_as_likely() -> None:
    only = torch.tensor([[0.0, -torch.inf, -torch.inf, -torch.inf]])
    seen = Counter(drawn(2, range(3000), only))
    assert set(seen) == {(0, 1), (0, 2), (0, 3)}
    assert chisquare(list(seen.values())).pvalue > 1e-3


def test_greedy_children_are_the_largest_logits() -> None:
    draw = draw_children(LOGITS, sequence(temperature=0.0), (), 3, NoiseRows())
    assert (draw.tokens.tolist(), draw.limited.tolist()) == ([0, 3, 1], LOGITS.tolist())


@pytest.mark.parametrize("sampling", [{"temperature": 0.0}, {"seed": 4}, {}], ids=["greedy", "seeded", "unseeded"])
def test_the_first_child_is_the_token_that_a_chain_would_have(sampling) -> None:
    for seed in range(50):
        of = sequence(seed, **sampling)
        several, one = (draw_children(LOGITS, of, (1,), count, NoiseRows()).tokens for count in (3, 1))
        assert several[:1].equal(one)


@pytest.mark.parametrize("count", [1, 3])
def test_the_largest_of_a_draft_vocabulary_are_the_greedy_children(count) -> None:
    vocabulary = torch.tensor([1, 4, 5, 8, 9])
    full = over_target_vocabulary(LOGITS, vocabulary, 11)
    children = draw_children(full, sequence(temperature=0.0), (), count, NoiseRows()).tokens
    assert vocabulary[largest(LOGITS, count)].equal(children)


@pytest.mark.parametrize(
    ("sampling", "is_taken"),
    [
        ({"temperature": 0.0}, True),
        ({"temperature": 0.0, "top_k": 3}, True),
        ({"temperature": 0.0, "frequency_penalty": 1.0}, False),
        ({"temperature": 0.0, "logit_bias": ((3, 1.0),)}, False),
        ({"temperature": 0.5}, False),
        ({"temperature": 0.5, "seed": 1}, False),
    ],
)
def test_drafts_are_the_largest_logits_only_of_a_greedy_request_without_wishes(sampling, is_taken) -> None:
    assert takes_largest(sequence(**sampling)) == is_taken


def test_nodes_of_one_depth_share_their_noise_and_depths_do_not() -> None:
    noise, of = NoiseRows(), sequence()
    assert noise.of(of, 1, 5, CPU) is noise.of(of, 1, 5, CPU)
    assert not torch.equal(noise.of(of, 1, 5, CPU), noise.of(of, 2, 5, CPU))
