"""The whole way from prompts to a drafter's folder, on a tiny target, and what the command says of wrong options."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
import typer

from tests.workers.training.conftest import HIDDEN, VOCAB, order_in
from workers.models.weights_hash import weights_sha256
from workers.proposers.drafter_folder import TargetIdentity, load_eagle
from workers.training.command import result, seconds
from workers.training.generate import sampled_seeds
from workers.training.prompts import Prompt, limited
from workers.training.report import Report
from workers.training.run import train_drafter


class Told(Report):
    def __init__(self) -> None:
        self.stages: dict[str, int] = {}
        self._last = ""

    def stage(self, name: str, total: int) -> None:
        self._last = name
        self.stages[name] = 0

    def advance(self, by: int, text: str = "") -> None:
        self.stages[self._last] += by


@pytest.fixture
def order(tmp_path):
    return order_in(tmp_path)


@pytest.fixture
def outcome_and_told(order):
    told = Told()
    before = torch.get_num_threads()
    yield train_drafter(order, told), told
    torch.set_num_threads(before)


def test_a_drafter_comes_of_it_that_loads_with_its_target(order, outcome_and_told) -> None:
    outcome, told = outcome_and_told
    target = TargetIdentity("tiny", weights_sha256(order.folder, order.cache), HIDDEN, VOCAB)
    _, vocabulary, card = load_eagle(order.out, target)
    assert (card.kind, card.depth, len(vocabulary)) == ("eagle", 4, VOCAB)
    assert json.loads(json.dumps(result(outcome, order.out)))["domains"].keys() == {"all", "cycle"}
    assert (told.stages["answers"], told.stages["training"], told.stages["evaluation"]) == (16, 6, 4)
    again = Told()
    train_drafter(order, again)
    assert (again.stages["answers"], again.stages["features"], again.stages["training"]) == (0, 0, 0)


def test_so_many_answers_are_taken_as_were_asked_for(order) -> None:
    told = Told()
    outcome = train_drafter(replace(order, answers=10), told)
    assert told.stages["answers"] == 10
    assert outcome.card.recipe["answers"] == 10


def test_more_samples_of_a_prompt_leave_the_answers_that_are_there(order) -> None:
    train_drafter(order, Told())
    told = Told()
    outcome = train_drafter(replace(order, seeds=sampled_seeds(0, 2), out=order.out / "often"), told)
    assert told.stages["answers"] == 8
    assert outcome.card.recipe["seeds"] == [1, 2]


@pytest.mark.parametrize(("text", "expected"), [("90s", 90.0), ("30m", 1800.0), ("1.5h", 5400.0)])
def test_a_budget_is_a_duration(text, expected) -> None:
    assert seconds(text) == expected


@pytest.mark.parametrize("text", ["", "30", "m", "-3m", "1d", "nans", "9999h"])
def test_a_budget_that_is_none_is_refused(text) -> None:
    with pytest.raises(typer.BadParameter, match="is no duration such as 90s"):
        seconds(text)


def test_a_limit_takes_as_many_of_each_domain_and_split() -> None:
    prompts = [Prompt(domain, f"{n}", n % 2 == 0) for domain in "ab" for n in range(10)]
    assert [(p.domain, p.text) for p in limited(prompts, 1)] == [("a", "0"), ("a", "1"), ("b", "0"), ("b", "1")]
    assert limited(prompts, 0) == tuple(prompts)
