"""Which drafter comes with the project for a model: told by the model's weights, and said in one line."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from controlplane.drafter_choice import DrafterChoice, parse_drafter
from controlplane.settings import Settings, load_settings
from workers import build, doctor
from workers.build import build_proposer, check_models, used_drafter
from workers.model_runner import ModelRunner
from workers.proposers.base import drafter_label
from workers.proposers.drafter_folder import DrafterCard, DrafterError, TargetIdentity, identify, save_drafter
from workers.proposers.medusa_model import MedusaModel
from workers.proposers.shipped import resolve_drafter, shipped_drafters, shipped_for

HIDDEN, VOCAB = 16, 32


def model_in(folder: Path, seed: int) -> Path:
    """A model folder that loads; its tokenizer is never read here."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCAB, hidden_size=HIDDEN, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=64,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    (folder / "tokenizer.json").write_text("{}")
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_in(tmp_path_factory.mktemp("model"), 1)


def ship(root: Path, target: TargetIdentity, kinds: tuple[str, ...] = ("medusa",), best: str = "ngram+medusa") -> Path:
    """Drafters of `target` below root; kinds beyond Medusa have a card alone."""
    for kind in kinds:
        folder = root / "tiny" / kind
        card = DrafterCard(kind, target, 2, {"heads": 2})
        save_drafter(folder, card, MedusaModel(HIDDEN, 2).state_dict(), torch.arange(VOCAB))
    (root / "tiny" / "best.txt").write_text(f"{best}\n")
    return root


@pytest.fixture
def root(tmp_path: Path, model: Path) -> Path:
    return ship(tmp_path / "drafters", identify("tiny", model, tmp_path / "cache"))


@pytest.fixture
def settings(tmp_path: Path, model: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Of a process whose project ships `root`."""
    monkeypatch.setattr(build, "resolve_drafter", partial(resolve_drafter, root=root))
    return load_settings(model=str(model), model_cache=tmp_path / "cache", max_context=64, dtype="float32")


def drafter(settings: Settings, text: str) -> Settings:
    return settings.model_copy(update={"drafter": text})


def test_auto_is_the_one_that_was_measured_best(settings: Settings, root: Path) -> None:
    used = used_drafter(settings)
    assert used.choice == DrafterChoice("medusa", str(root / "tiny" / "medusa"), ngram_first=True)
    assert used.said == "ngram+medusa (auto: measured best; medusa is shipped for this model)"


def test_a_kind_without_a_folder_is_the_shipped_one(settings: Settings, root: Path) -> None:
    used = used_drafter(drafter(settings, "medusa"))
    assert used.choice == DrafterChoice("medusa", str(root / "tiny" / "medusa"))
    assert used.said == "medusa (shipped for this model)"


def test_a_shipped_drafter_is_loaded_and_named_by_its_weights(settings: Settings, model: Path) -> None:
    """And it goes by that name whoever asked for it, and however."""
    target = ModelRunner.load(model, num_slots=1, context=64, device=torch.device("cpu"), dtype=torch.float32)
    check_models(settings)
    made = [
        build_proposer(drafter(settings, text), target, None, torch.device("cpu"), torch.float32)
        for text in ("auto", "ngram+medusa", f"ngram+{used_drafter(settings).choice.alone}")
    ]
    assert len({drafter_label(each) for each in made}) == 1
    assert "medusa@" in drafter_label(made[0])


def test_of_the_same_sizes_but_other_weights_a_model_has_none(settings: Settings, tmp_path: Path) -> None:
    other = model_in(tmp_path / "other", 2)
    used = used_drafter(settings.model_copy(update={"model": str(other)}))
    assert (used.choice, used.said) == (DrafterChoice("ngram"), "ngram (auto: none is shipped for this model)")


def test_a_model_of_other_sizes_is_not_hashed(tmp_path: Path, model: Path) -> None:
    cache = tmp_path / "cache"
    of_others = ship(tmp_path / "drafters", TargetIdentity("large", "ab" * 32, 4 * HIDDEN, VOCAB))
    assert shipped_for(model, cache, of_others) is None
    assert not cache.exists()


def test_a_kind_that_is_not_shipped_is_refused_with_what_is_and_how_to_train_one(settings: Settings) -> None:
    with pytest.raises(
        DrafterError, match=r"none is shipped .* \(shipped are: medusa\); train one: kadence train eagle"
    ):
        used_drafter(drafter(settings, "ngram+eagle"))


def test_of_a_model_without_any_that_is_said(settings: Settings, tmp_path: Path) -> None:
    own = drafter(settings, "draft").model_copy(update={"model": str(model_in(tmp_path / "own", 3))})
    with pytest.raises(DrafterError, match=r"\(nor any other\); train one: kadence train draft --model .*own --out"):
        used_drafter(own)


@pytest.mark.parametrize("text", ["none", "ngram", "draft_model:org/small", "ngram+eagle:/mine"])
def test_what_names_its_drafter_stays_as_it_is(text: str) -> None:
    asked = parse_drafter(text)
    used = resolve_drafter(asked, "tiny", Path("/nowhere"), Path("/nowhere"))
    assert (used.choice, used.said) == (asked, text)


def test_ngram_may_be_what_was_measured_best(root: Path, model: Path, tmp_path: Path) -> None:
    (root / "tiny" / "best.txt").write_text("ngram\n")
    used = resolve_drafter(parse_drafter("auto"), "tiny", model, tmp_path / "cache", root)
    assert used.said == "ngram (auto: measured best; medusa is shipped for this model)"


@pytest.mark.parametrize("best", ["eagle", "none", "auto", "medusa:/elsewhere", "fastest", ""])
def test_a_best_one_that_is_not_there_is_refused(root: Path, best: str) -> None:
    (root / "tiny" / "best.txt").write_text(best)
    with pytest.raises(DrafterError, match=r"best\.txt"):
        shipped_drafters(root)


def test_drafters_of_two_targets_in_one_folder_are_refused(root: Path, model: Path, tmp_path: Path) -> None:
    target = identify("tiny", model, tmp_path / "cache")
    ship(root, replace(target, weights="cd" * 32), ("draft",))
    with pytest.raises(DrafterError, match="its drafters are of 2 targets"):
        shipped_drafters(root)


def test_a_project_that_ships_none_has_none(tmp_path: Path) -> None:
    assert shipped_drafters(tmp_path / "none") == ()


def test_doctor_says_which_drafter_is_used_and_why(settings: Settings) -> None:
    check = doctor.check_drafter(settings)
    assert (check.ok, check.detail, check.fix) == (True, used_drafter(settings).said, "")


def test_doctor_says_how_to_train_one_for_a_model_of_ones_own(settings: Settings, tmp_path: Path) -> None:
    own = model_in(tmp_path / "own", 3)
    check = doctor.check_drafter(settings.model_copy(update={"model": str(own)}))
    assert (check.ok, check.detail) == (True, "ngram (auto: none is shipped for this model)")
    assert check.fix.startswith(f"train one: kadence train eagle --model {own} --out drafters/eagle")


def test_doctor_finds_a_drafter_of_another_model(settings: Settings, root: Path, tmp_path: Path) -> None:
    own = model_in(tmp_path / "own", 3)
    theirs = drafter(settings, f"medusa:{root}/tiny/medusa").model_copy(update={"model": str(own)})
    check = doctor.check_drafter(theirs)
    assert not check.ok
    assert "was trained for tiny" in check.detail
    assert "--drafter auto" in check.fix


def test_doctor_finds_a_kind_that_is_not_shipped(settings: Settings) -> None:
    check = doctor.check_drafter(drafter(settings, "eagle"))
    assert (check.ok, check.fix[:30]) == (False, "train one: kadence train eagle")


def test_doctor_tells_nothing_of_a_model_that_is_not_here(settings: Settings, tmp_path: Path) -> None:
    away = settings.model_copy(update={"model": "smollm2-135m-instruct", "model_cache": tmp_path})
    assert doctor.check_drafter(away).detail == "auto; more can be told once the model is here"


def test_a_card_that_cannot_be_read_is_named(root: Path) -> None:
    (root / "tiny" / "medusa" / "drafter.json").write_text(json.dumps({"format": 0}))
    with pytest.raises(DrafterError, match=r"tiny/medusa: format"):
        shipped_drafters(root)
