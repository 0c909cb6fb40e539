"""What is true of every drafter that comes with the project."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from transformers import LlamaConfig

from workers.models.registry import known_model
from workers.proposers.drafter_folder import DrafterCard, load_eagle, load_medusa, load_student, read_card
from workers.proposers.shipped import SHIPPED, shipped_drafters
from workers.training.model_card import model_card

MOST_BYTES = 32_000_000
MEDUSA_SHARE = 0.011
"""Of the target's parameters, at most."""

SMOLLM2 = {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9}
CONFIGS = {"smollm2-135m-instruct": LlamaConfig(vocab_size=49152, num_key_value_heads=3, head_dim=64, **SMOLLM2)}


def shipped() -> Iterator[tuple[Path, DrafterCard]]:
    for each in shipped_drafters():
        for folder in each.folders.values():
            yield folder, read_card(folder)


def test_together_they_are_small_enough_for_a_plain_repository() -> None:
    assert sum(path.stat().st_size for path in SHIPPED.rglob("*") if path.is_file()) < MOST_BYTES


def test_a_folder_holds_card_weights_and_readme_and_nothing_of_the_training() -> None:
    for folder, _ in shipped():
        assert sorted(path.name for path in folder.iterdir()) == ["README.md", "drafter.json", "model.safetensors"]


def test_each_loads_whole_with_its_target() -> None:
    loaders = {
        "eagle": lambda folder, target: load_eagle(folder, target),
        "medusa": lambda folder, target: load_medusa(folder, target),
        "draft": lambda folder, target: load_student(folder, target, CONFIGS[target.name]),
    }
    for folder, card in shipped():
        model, vocabulary, _ = loaders[card.kind](folder, card.target)
        assert sum(p.numel() for p in model.parameters()) == card.recipe["parameters"]
        assert len(vocabulary) == card.recipe["draft_vocabulary"]


def test_medusas_heads_are_a_hundredth_of_the_target() -> None:
    for _, card in shipped():
        if card.kind == "medusa":
            assert card.recipe["parameters"] < MEDUSA_SHARE * card.recipe["target_parameters"]


def test_its_readme_is_what_its_card_gives() -> None:
    for folder, card in shipped():
        assert (folder / "README.md").read_text(encoding="utf-8") == model_card(card)


def test_its_card_names_a_known_model_and_its_licence_and_no_path() -> None:
    for folder, card in shipped():
        assert card.target.name == folder.parent.name
        assert card.licence == known_model(card.target.name).licence
        assert '"/' not in (folder / "drafter.json").read_text(encoding="utf-8")


def test_it_was_taught_the_projects_prompts_and_judged_on_every_domain() -> None:
    for _, card in shipped():
        assert card.recipe["prompts_from"] == "the project"
        for domain in ("all", "code", "contract", "fiction", "json"):
            assert sorted(card.acceptance[domain]) == ["greedy", "t0.7"]
        assert card.cost["steps"], f"{card.kind}: judge it with costs"


def test_a_card_is_small_enough_to_be_read() -> None:
    for folder, _ in shipped():
        assert len(json.dumps(json.loads((folder / "drafter.json").read_text()))) < 100_000
