"""Acceptance is reported by domain, mode and position; a drafter that knows everything is seen to."""

from __future__ import annotations

import pytest
import torch

from tests.workers.training.conftest import HIDDEN
from workers.training.batches import TrainingBatch, shifted
from workers.training.evaluate import evaluate, sample, summary
from workers.training.objective import Objective


class Oracle(Objective):
    """Knows the answers by heart: its output is the token itself."""

    def outputs(self, batch: TrainingBatch) -> list[torch.Tensor]:
        return [
            torch.nn.functional.one_hot(shifted(batch.token_ids, step + 2), HIDDEN).float()
            for step in range(self.depth)
        ]

    def logits(self, output: torch.Tensor, step: int) -> torch.Tensor:
        return 50 * output[:, self.teacher.vocabulary]


@pytest.fixture
def acceptance(lesson):
    held_out = [i for i, answer in enumerate(lesson.answers) if answer.question.held_out]
    return evaluate(Oracle(lesson.teacher, 3), (lesson.features[i] for i in held_out))


def test_all_that_is_in_the_draft_vocabulary_is_kept_by_a_drafter_that_knows_it(lesson, acceptance) -> None:
    known = set(lesson.teacher.vocabulary.tolist())
    texts = [a.token_ids[1:] for a in lesson.answers if a.question.held_out]
    share = sum(t in known for text in texts for t in text) / sum(map(len, texts))
    assert acceptance["all"]["greedy"].by_position[0] == pytest.approx(share)


def test_tokens_a_step_rise_with_k(acceptance) -> None:
    report = acceptance["all"]["greedy"].report()["acceptance_length"]
    assert 1.5 < report[1] < report[2] < report[3] <= 4


def test_the_domain_is_reported_beside_all_of_them(acceptance) -> None:
    assert summary(acceptance, 2).keys() == {"all", "cycle"}
    assert acceptance["all"]["greedy"].answers == 16


def test_a_look_in_between_takes_evenly_spaced_ones() -> None:
    assert sample(list(range(10)), 4) == [0, 2, 5, 7]
    assert sample([3, 4], 5) == [3, 4]
