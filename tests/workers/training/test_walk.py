"""The walk along the target's text, and what it says of acceptance, by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from workers.training.objective import kept_probability
from workers.training.walk import conditional_acceptance, in_loop, repeated_share, walk

NEVER = np.zeros((3, 10))
ALWAYS = np.ones((3, 10))


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def test_without_acceptance_every_step_gives_one_token() -> None:
    assert walk(NEVER, 3, 10, rng()) == (9, 9)


def test_a_perfect_drafter_gives_k_and_one_more() -> None:
    assert walk(ALWAYS, 2, 10, rng()) == (9, 3)


def test_the_last_step_gives_no_more_than_is_left() -> None:
    assert walk(ALWAYS, 3, 7, rng()) == (6, 2)


def test_k_is_a_ceiling_of_the_chain() -> None:
    assert walk(ALWAYS, 1, 9, rng()) == (8, 4)


def test_acceptance_is_conditional_on_the_positions_before() -> None:
    kept = np.array([[1.0, 0.0, 1.0, 1.0], [1.0, 1.0, 0.0, 1.0]])
    taught = np.array([[True, True, True, True], [True, True, True, False]])
    assert conditional_acceptance(kept, taught) == [(3.0, 4.0), (1.0, 2.0)]


def test_a_loop_is_a_repeated_ngram() -> None:
    assert repeated_share([1, 2] * 8) == pytest.approx(1 - 2 / 9)
    assert repeated_share(list(range(20))) == 0.0
    assert repeated_share([1, 2, 3]) == 0.0


def test_a_sampled_token_is_kept_as_often_as_the_smaller_of_the_two_laws_says() -> None:
    vocabulary = torch.tensor([0, 2])
    target = torch.tensor([[0.5, 0.3, 0.2]]).log() * 0.7
    draft = torch.tensor([[0.25, 0.75]]).log() * 0.7
    kept = [kept_probability(draft, target, torch.tensor([token]), vocabulary, 0.7).item() for token in range(3)]
    assert kept == pytest.approx([0.5, 0.0, 1.0], abs=1e-6)


def test_a_greedy_token_is_kept_if_it_is_the_drafts_own() -> None:
    vocabulary, draft, target = torch.tensor([0, 2]), torch.tensor([[0.0, 1.0]]), torch.zeros(1, 3)
    kept = [kept_probability(draft, target, torch.tensor([token]), vocabulary, 0.0).item() for token in range(3)]
    assert kept == [0.0, 0.0, 1.0]


def test_a_token_is_in_a_loop_where_the_last_eight_were_there_before() -> None:
    text = [*range(10), *range(10)]
    assert in_loop(text).tolist() == [False] * 17 + [True] * 3
    assert not in_loop(range(5)).any()
