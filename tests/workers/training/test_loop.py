"""Drafters of a tiny target learn within seconds, and learn the same with a break."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.workers.training.conftest import HIDDEN, LAYERS, Lesson
from workers.proposers.eagle_model import EagleModel, EagleShape
from workers.training.batches import TrainingBatch
from workers.training.eagle import EagleObjective, feature_scale
from workers.training.loop import Progress, Recipe, TrainingError, train
from workers.training.medusa import MedusaModel, MedusaObjective
from workers.training.objective import Objective, soft_cross_entropy
from workers.training.walk import conditional_acceptance

RECIPE = Recipe(steps=120, batch_size=8, learning_rate=2e-2, warmup=10, checkpoint_every=20)


def eagle(lesson: Lesson) -> Objective:
    torch.manual_seed(0)
    shape = EagleShape(HIDDEN, 4, 2, 8, 48, LAYERS, 10000.0, 1e-6)
    return EagleObjective(EagleModel(shape), lesson.teacher, depth=3)


def medusa(lesson: Lesson) -> Objective:
    torch.manual_seed(0)
    return MedusaObjective(MedusaModel(HIDDEN, 3), lesson.teacher)


def first_acceptance(objective: Objective, lesson: Lesson) -> float:
    """Of the first position, over the held-out answers."""
    kept = reached = 0.0
    for i, answer in enumerate(lesson.answers):
        if answer.question.held_out:
            batch = TrainingBatch.of([lesson.features[i]])
            probabilities = objective.acceptance(batch)[:, 0].numpy().astype(np.float64)
            anchors = np.arange(probabilities.shape[1])
            taught = np.stack([(anchors >= 5) & (anchors + j + 2 < probabilities.shape[1]) for j in range(3)])
            (k, r), *_ = conditional_acceptance(probabilities, taught)
            kept, reached = kept + k, reached + r
    return kept / reached


def training_part(lesson: Lesson) -> tuple[list, list[int]]:
    chosen = [i for i, answer in enumerate(lesson.answers) if not answer.question.held_out]
    return [lesson.features[i] for i in chosen], [lesson.lengths[i] for i in chosen]


def test_the_loss_is_the_cross_entropy_of_both_distributions_and_so_is_its_gradient() -> None:
    torch.manual_seed(1)
    logits, teacher = torch.randn(5, 9, dtype=torch.float64), torch.randn(5, 9, dtype=torch.float64).softmax(-1)
    ours, theirs = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    (3 * soft_cross_entropy(ours, teacher)).backward()
    expected = -(teacher * theirs.log_softmax(-1)).sum(-1).mean()
    (3 * expected).backward()
    torch.testing.assert_close(soft_cross_entropy(ours, teacher), expected)
    torch.testing.assert_close(ours.grad, theirs.grad)


def test_each_position_is_taught_what_the_target_says_there(lesson: Lesson) -> None:
    """By the definition: anchor by anchor, the target's distribution at the position before the token to be drafted."""
    objective, batch = eagle(lesson), TrainingBatch.of([lesson.features[0], lesson.features[1]])
    outputs = objective.outputs(batch)
    for step, loss in enumerate(objective.losses(batch)):
        each = []
        for b, length in enumerate(batch.lengths.tolist()):
            for anchor in range(length - step - 2):
                if batch.is_answer[b, anchor + step + 2]:
                    teacher = (lesson.teacher.draft_head @ batch.last_hidden[b, anchor + step + 1]).softmax(-1)
                    logits = objective.logits(outputs[step][b, anchor][None], step)
                    each.append(-(teacher * logits.log_softmax(-1)).sum())
        torch.testing.assert_close(loss, torch.stack(each).mean())


def test_what_is_large_in_the_targets_features_does_not_drown_the_rest(lesson: Lesson) -> None:
    examples = [lesson.features[i] for i in range(8)]
    scale = feature_scale(examples)
    drafter = EagleModel(EagleShape(HIDDEN, 4, 2, 8, 48, LAYERS, 10000.0, 1e-6))
    drafter.start_from(scale)
    heard = drafter.reduce.weight * scale.flatten()
    rows = torch.cat([e.features[e.answer_start :].float() for e in examples]).flatten(1)
    torch.testing.assert_close(rows.pow(2).mean(0).sqrt(), scale.flatten())
    assert heard.std(0).max() < 2.5 * heard.std(0).min()


def test_medusas_heads_are_judged_by_lm_heads_of_their_own_where_they_have_some(lesson: Lesson) -> None:
    """As published checkpoints may have them; the target's would give another drafter."""
    torch.manual_seed(0)
    rows = len(lesson.teacher.vocabulary)
    model = MedusaModel(HIDDEN, 2, own_rows=rows)
    objective = MedusaObjective(model, lesson.teacher)
    batch = TrainingBatch.of([lesson.features[0]])
    outputs = objective.outputs(batch)
    scored = torch.stack([objective.logits(output, step) for step, output in enumerate(outputs)], dim=-2)
    torch.testing.assert_close(scored, model.logits(batch.last_hidden, lesson.teacher.draft_head, 2))
    assert not torch.equal(scored[..., 0, :], scored[..., 1, :])


@pytest.mark.parametrize("make", [eagle, medusa])
def test_acceptance_on_held_out_prompts_rises(lesson, tmp_path, make: Callable[[Lesson], Objective]) -> None:
    objective = make(lesson)
    before = first_acceptance(objective, lesson)
    examples, lengths = training_part(lesson)
    train(objective, examples, lengths, RECIPE, tmp_path / "checkpoint.pt", "tiny")
    assert first_acceptance(objective, lesson) > before + 0.1


@pytest.mark.parametrize("make", [eagle, medusa])
def test_a_run_with_a_break_ends_as_one_without(lesson, tmp_path, make: Callable[[Lesson], Objective]) -> None:
    examples, lengths = training_part(lesson)
    recipe = replace(RECIPE, steps=12)
    whole, broken = make(lesson), make(lesson)
    train(whole, examples, lengths, recipe, tmp_path / "whole.pt", "tiny")
    train(broken, examples, lengths, recipe, tmp_path / "broken.pt", "tiny", stop_after=5)
    again = make(lesson)
    torch.manual_seed(99)
    train(again, examples, lengths, recipe, tmp_path / "broken.pt", "tiny")
    for a, b in zip(whole.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_budget_becomes_a_number_of_steps_that_a_break_keeps(lesson, tmp_path) -> None:
    examples, lengths = training_part(lesson)
    recipe = replace(RECIPE, steps=0, budget_s=3600.0)
    begun = train(medusa(lesson), examples, lengths, recipe, tmp_path / "c.pt", "tiny", stop_after=10)
    seen: list[Progress] = []
    train(medusa(lesson), examples, lengths, recipe, tmp_path / "c.pt", "tiny", seen.append, stop_after=12)
    assert begun.steps > 12
    assert [(p.step, p.steps) for p in seen] == [(11, begun.steps), (12, begun.steps)]


@pytest.mark.parametrize(
    ("change", "identity", "reason"),
    [
        ({}, "another model", "of other data, another model or shape"),
        ({"learning_rate": 1e-4}, "tiny", "was begun with learning_rate = 0.02, not 0.0001"),
    ],
)
def test_a_checkpoint_of_something_else_is_refused(lesson, tmp_path, change, identity, reason) -> None:
    examples, lengths = training_part(lesson)
    train(medusa(lesson), examples, lengths, RECIPE, tmp_path / "c.pt", "tiny", stop_after=1)
    with pytest.raises(TrainingError, match=reason):
        train(medusa(lesson), examples, lengths, replace(RECIPE, **change), tmp_path / "c.pt", identity)


def test_a_damaged_checkpoint_is_refused(lesson, tmp_path) -> None:
    (tmp_path / "c.pt").write_bytes(b"half a file")
    examples, lengths = training_part(lesson)
    with pytest.raises(TrainingError, match="cannot be read"):
        train(medusa(lesson), examples, lengths, RECIPE, tmp_path / "c.pt", "tiny")
