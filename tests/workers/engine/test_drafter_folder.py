"""A drafter's folder is read back as it was written, and refused where it does not fit the target."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest
import torch

from workers.proposers.drafter_folder import DrafterCard, DrafterError, TargetIdentity, load_eagle, save_drafter
from workers.proposers.eagle_model import EagleModel, EagleShape

TARGET = TargetIdentity("tiny", "ab" * 32, 16, 40)
SHAPE = EagleShape(16, 4, 2, 4, 24, (1, 2), 10000.0, 1e-6)
VOCABULARY = torch.tensor([1, 5, 7, 39])


@pytest.fixture
def folder(tmp_path):
    torch.manual_seed(0)
    card = DrafterCard("eagle", TARGET, 4, asdict(SHAPE))
    save_drafter(tmp_path / "eagle", card, EagleModel(SHAPE).state_dict(), VOCABULARY)
    return tmp_path / "eagle"


def test_it_is_read_back_as_it_was_written(folder) -> None:
    torch.manual_seed(0)
    written = EagleModel(SHAPE).to(torch.bfloat16).state_dict()
    model, vocabulary, card = load_eagle(folder, TARGET)
    assert vocabulary.tolist() == VOCABULARY.tolist()
    assert card.depth == 4
    assert all(torch.equal(tensor, written[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"weights": "cd" * 32}, r"trained for tiny \(weights abab.*not for other \(weights cdcd"),
        ({"hidden": 32}, r"\(hidden 16\), not for other \(hidden 32\)"),
        ({"vocab": 41}, r"\(vocab 40\), not for other \(vocab 41\)"),
    ],
)
def test_a_drafter_of_another_target_is_refused(folder, change, reason) -> None:
    with pytest.raises(DrafterError, match=reason):
        load_eagle(folder, replace(TARGET, name="other", **change))


def changed(folder, **fields) -> None:
    path = folder / "drafter.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"format": 2}, "format: must be 1"),
        ({"kind": "magic"}, "kind: 'magic' is none of eagle, medusa"),
        ({"kind": "medusa"}, "kind: is medusa, not eagle"),
        ({"colour": 1}, "does not know a field"),
        ({"target": {}}, "lacks or does not know a field"),
        ({"shape": {"hidden": 16}}, "shape: "),
        ({"shape": {**asdict(SHAPE), "intermediate": 25}}, r"gate.weight: is \[24, 16\], must be \[25, 16\]"),
    ],
)
def test_a_card_that_does_not_fit_is_refused_with_the_field(folder, fields, reason) -> None:
    changed(folder, **fields)
    with pytest.raises(DrafterError, match=reason):
        load_eagle(folder, TARGET)


@pytest.mark.parametrize("trees", [{"2": [-1]}, {"2": [-1, 1]}, {"2": "ab"}, [-1, -1]])
def test_a_card_with_a_tree_that_is_none_is_refused(folder, trees) -> None:
    changed(folder, trees=trees)
    with pytest.raises(DrafterError, match=r"trees|parents|items"):
        load_eagle(folder, TARGET)


def test_a_truncated_file_is_refused(folder) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(DrafterError, match=r"model\.safetensors cannot be read"):
        load_eagle(folder, TARGET)


def test_a_folder_without_weights_is_refused(folder) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(DrafterError, match="cannot be read"):
        load_eagle(folder, TARGET)


@pytest.mark.parametrize("ids", [[5, 1], [1, 1], [1, 40], [-1, 3]])
def test_a_vocabulary_that_is_not_the_targets_is_refused(folder, ids) -> None:
    model, _, card = load_eagle(folder, TARGET)
    save_drafter(folder, card, model.state_dict(), torch.tensor(ids))
    with pytest.raises(DrafterError, match="must be rising ids under 40"):
        load_eagle(folder, TARGET)
