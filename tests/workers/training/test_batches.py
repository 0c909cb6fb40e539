"""The order of training is a function of seed and epoch; features are what the target computes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice

import pytest
import torch

from tests.workers.training.conftest import LAYERS, PROMPT
from workers.training.batches import TrainingBatch, batch_order, endless_batches, shifted
from workers.training.features import feature_layers, store_features
from workers.training.vocabulary import draft_vocabulary


def test_an_epoch_sees_every_example_once() -> None:
    order = batch_order([5, 9, 3, 7, 1, 2, 8, 4], 2, 0, 0)
    assert sorted(i for batch in order for i in batch) == list(range(8))


def test_another_epoch_has_another_order() -> None:
    assert batch_order(list(range(64)), 4, 0, 0) != batch_order(list(range(64)), 4, 0, 1)


def test_going_on_from_a_batch_gives_the_batches_that_would_have_come() -> None:
    lengths = [3 + i % 5 for i in range(20)]
    whole = list(islice(endless_batches(lengths, 4, 1, 0), 17))
    assert list(islice(endless_batches(lengths, 4, 1, 7), 10)) == whole[7:]


def test_shifting_past_the_end_leaves_nothing() -> None:
    x = torch.arange(6).reshape(2, 3) + 1
    assert shifted(x, 1).tolist() == [[2, 3, 0], [5, 6, 0]]
    assert shifted(x, 5).tolist() == [[0, 0, 0], [0, 0, 0]]


def test_stored_features_are_those_of_the_target_alone(lesson) -> None:
    example = lesson.features[3]
    with torch.inference_mode():
        out = lesson.model.base_model(example.token_ids[None], output_hidden_states=True, use_cache=False)
    for i, layer in enumerate(LAYERS):
        assert torch.allclose(example.features[:, i].float(), out.hidden_states[layer][0], atol=0.02)
    assert torch.allclose(example.last_hidden.float(), out.last_hidden_state[0], atol=0.02)
    assert example.answer_start == PROMPT


def test_features_that_are_there_are_not_computed_again(lesson, tmp_path) -> None:
    store_features(tmp_path, lesson.answers[:3], lesson.model, LAYERS)
    computed: list[int] = []
    store_features(tmp_path, lesson.answers[:3], lesson.model, LAYERS, computed.append)
    assert computed == []
    store_features(tmp_path, lesson.answers[:4], lesson.model, LAYERS, computed.append)
    assert len(computed) == 4


def test_features_that_somebody_reads_stay_while_others_are_computed(lesson, tmp_path) -> None:
    read = store_features(tmp_path, lesson.answers[:3], lesson.model, LAYERS)
    before = read[2].last_hidden.clone()
    store_features(tmp_path, lesson.answers[4:6], lesson.model, LAYERS)
    assert torch.equal(read[2].last_hidden, before)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["features.bin", "features.json", "lock"]


def test_of_two_trainings_at_once_one_waits_and_computes_nothing(lesson, tmp_path) -> None:
    computed: list[int] = []
    compute = partial(store_features, tmp_path, lesson.answers[:6], lesson.model, LAYERS, computed.append)
    with ThreadPoolExecutor() as both:
        one, other = (run.result() for run in [both.submit(compute), both.submit(compute)])
    assert len(computed) == 6
    assert torch.equal(one[5].last_hidden, other[5].last_hidden)


@pytest.mark.parametrize("left", ['{"layers": [1], "ke', "{}"])
def test_what_a_crash_left_behind_is_computed_anew(lesson, tmp_path, left: str) -> None:
    (tmp_path / "features.json").write_text(left)
    (tmp_path / "features.new").write_bytes(b"half")
    computed: list[int] = []
    store_features(tmp_path, lesson.answers[:2], lesson.model, LAYERS, computed.append)
    assert len(computed) == 2


def test_only_tokens_of_the_answer_are_taught(lesson) -> None:
    batch = TrainingBatch.of([lesson.features[0], lesson.features[4]])
    assert batch.is_answer.sum(1).tolist() == [n - PROMPT for n in batch.lengths.tolist()]
    assert not batch.is_answer[:, :PROMPT].any()


def test_layers_are_early_middle_and_late() -> None:
    assert feature_layers(30) == (3, 15, 27)
    assert feature_layers(2) == (1,)


def test_the_draft_vocabulary_is_what_is_said_most(lesson) -> None:
    vocabulary = draft_vocabulary(lesson.answers, 24, 32)
    counts = torch.bincount(torch.tensor([t for a in lesson.answers for t in a.token_ids]), minlength=32)
    left_out = sorted(set(range(32)) - set(vocabulary.tolist()))
    assert len(vocabulary) == 24
    assert counts[left_out].max() <= counts[vocabulary].min()
