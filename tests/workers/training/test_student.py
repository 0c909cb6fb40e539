"""A student: two of the target's layers, distilled; served between the target's own embeddings and LM head."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.workers.training.conftest import Lesson, order_in, tiny_target
from workers.attention import IMPLEMENTATION
from workers.model_runner import ModelRunner
from workers.proposers.drafter_folder import DrafterError, identify, load_student
from workers.proposers.student_model import assembled, kept_layers, start_from, student_config, student_decoder
from workers.step_layout import Rows
from workers.training.batches import TrainingBatch
from workers.training.report import Report
from workers.training.run import train_drafter
from workers.training.student import StudentObjective


@pytest.mark.parametrize(
    ("layers", "keep", "kept"), [(30, 2, (0, 29)), (30, 1, (0,)), (30, 3, (0, 14, 29)), (2, 3, (0, 1))]
)
def test_a_student_begins_as_layers_evenly_through_the_target(layers: int, keep: int, kept: tuple[int, ...]) -> None:
    assert kept_layers(layers, keep) == kept


def test_a_layer_that_the_target_has_not_is_refused() -> None:
    with pytest.raises(ValueError, match="layers 0 to 2"):
        student_config(tiny_target().config, (0, 3))


def whole_student() -> tuple[torch.nn.Module, torch.nn.Module]:
    """A target, and a student of all its layers."""
    target = tiny_target()
    decoder = student_decoder(target.config, (0, 1, 2))
    start_from(decoder, target, (0, 1, 2))
    return target, decoder


def test_a_student_of_all_layers_begins_as_the_target() -> None:
    target, decoder = whole_student()
    text = torch.tensor([[3, 9, 4, 27, 8]])
    hidden = decoder(inputs_embeds=target.get_input_embeddings()(text)).last_hidden_state
    torch.testing.assert_close(hidden, target.base_model(text).last_hidden_state)


def test_it_stores_neither_embeddings_nor_lm_head() -> None:
    _, decoder = whole_student()
    assert {name.partition(".")[0] for name in decoder.state_dict()} == {"layers", "norm"}


def test_in_the_engine_its_logits_are_of_the_draft_vocabulary_alone() -> None:
    target, decoder = whole_student()
    vocabulary = torch.arange(0, 32, 2)
    embeddings, head = target.get_input_embeddings().weight, target.get_output_embeddings().weight[vocabulary]
    runner = ModelRunner(
        assembled(target.config, (0, 1, 2), decoder.state_dict(), embeddings, head, IMPLEMENTATION), 1, 64, "student"
    )
    text = [3, 9, 4, 27, 8]
    with torch.no_grad():
        expected = target(torch.tensor([text])).logits[0][:, vocabulary]
    torch.testing.assert_close(runner.forward([Rows(range(1, 5), 0, text)], range(5)), expected)


def test_it_shares_the_targets_tables(lesson: Lesson) -> None:
    target, decoder = whole_student()
    embeddings = target.get_input_embeddings().weight
    model = assembled(target.config, (0, 1, 2), decoder.state_dict(), embeddings, embeddings[:8], IMPLEMENTATION)
    assert model.get_input_embeddings().weight.data_ptr() == embeddings.data_ptr()


def test_it_is_taught_one_position_and_judged_at_many(lesson: Lesson) -> None:
    _, decoder = whole_student()
    objective = StudentObjective(decoder, lesson.teacher)
    batch = TrainingBatch.of([lesson.features[0]])
    assert len(objective.losses(batch)) == 1
    assert len(objective.acceptance(batch)) == 8


def test_a_perfect_student_keeps_all_that_its_vocabulary_has(lesson: Lesson) -> None:
    decoder = student_decoder(lesson.model.config, (0, 1, 2))
    start_from(decoder, lesson.model, (0, 1, 2))
    example = lesson.features[0]
    kept = StudentObjective(decoder, lesson.teacher).acceptance(TrainingBatch.of([example]))[:, 0]
    first = example.answer_start - 1
    known = torch.isin(example.token_ids, lesson.teacher.vocabulary)
    for depth in range(3):
        taught = known[first + 2 + depth :]
        assert kept[depth, first : first + len(taught)].tolist() == taught.float().tolist()


def test_its_folder_loads_with_its_target_and_no_other(tmp_path: Path) -> None:
    order = replace(order_in(tmp_path), kind="draft")
    before = torch.get_num_threads()
    try:
        outcome = train_drafter(order, Report())
    finally:
        torch.set_num_threads(before)
    target = identify("tiny", order.folder, order.cache)
    decoder, _, card = load_student(order.out, target, tiny_target().config)
    assert (card.kind, card.shape, outcome.card.depth) == ("draft", {"layers": [0, 2]}, 8)
    assert len(decoder.layers) == 2
    with pytest.raises(DrafterError, match="was trained for tiny"):
        load_student(order.out, replace(target, weights="cd" * 32), tiny_target().config)
