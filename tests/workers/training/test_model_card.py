"""A drafter's README.md follows from its drafter.json alone, and says what a reader must know before using it."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from controlplane.telemetry import ProfileCell
from workers.models.licence import model_licence
from workers.proposers.drafter_folder import DrafterCard, TargetIdentity, read_card
from workers.training.assess import AssessmentOrder, assess_drafter
from workers.training.model_card import model_card
from workers.training.published_ranges import against_published, range_text
from workers.training.report import Report
from workers.training.run import Order
from workers.training.step_cost import keep_cost, step_cost

COSTS = [step_cost(ProfileCell(1, 0, 256, 0.020, 0.0)), step_cost(ProfileCell(1, 4, 256, 0.025, 0.004))]


@pytest.fixture(scope="module")
def card(trained: Order) -> DrafterCard:
    return read_card(trained.out)


def stored(order: Order) -> str:
    return (order.out / "README.md").read_text(encoding="utf-8")


def found(accepted: float) -> dict[str, object]:
    """One domain's figures, as drafter.json has them."""
    return {
        "acceptance_by_position": [accepted, 0.5],
        "acceptance_length": {"1": 1.5, "2": 1.75},
        "acceptance_without_loops": accepted,
        "repeated_8gram_share": 0.25,
        "answers": 3,
    }


def test_training_writes_the_card_that_drafter_json_gives(trained: Order, card: DrafterCard) -> None:
    assert stored(trained) == model_card(card)


def test_it_names_target_data_and_recipe(card: DrafterCard) -> None:
    text = model_card(card)
    assert f"`{card.target.weights}`" in text
    assert "| cycle | 6 | 12 | 144 | 2 | 4 |" in text
    command = "kadence train eagle --model tiny --answers 16 --steps 6 --learning-rate 0.001 --seed 0 --out FOLDER"
    assert command in text


def test_the_command_that_repeats_it_says_how_often_each_prompt_was_answered(card: DrafterCard) -> None:
    often = replace(card, recipe={**card.recipe, "seeds": [1, 2]})
    text = model_card(often)
    assert "kadence train eagle --model tiny --answers 16 --samples 2 --steps 6 " in text
    assert "kadence train evaluate FOLDER --model tiny --answers 16 --samples 2 --seed 0" in text


def test_it_has_no_date_and_no_path_of_this_machine(card: DrafterCard) -> None:
    elsewhere = replace(card, target=replace(card.target, name="/home/someone/models/tiny"))
    text = model_card(elsewhere)
    assert text == model_card(card)
    assert not re.search(r"\b20\d\d-\d\d|/home|/tmp", text)


def test_only_of_the_projects_prompts_is_it_said_what_they_leave_out(card: DrafterCard) -> None:
    ours, own = card, replace(card, recipe={**card.recipe, "prompts_from": "the user"})
    assert "HumanEval's prompts are not among them" in model_card(ours)
    assert "HumanEval" not in model_card(own)
    assert "--prompts PROMPTS" in model_card(own)
    assert "Licence of this drafter: for whoever trained it to say." in model_card(own)


def test_evaluation_and_its_costs_go_into_the_card(trained: Order) -> None:
    order = AssessmentOrder(trained.out, trained.folder, trained.name, trained.cache, trained.prompts, 1, 12)
    assess_drafter(order, Report())
    keep_cost(trained.out, COSTS, 2)
    assert stored(trained) == model_card(read_card(trained.out))
    assert "| 4 | 25.0 | 4.00 |" in stored(trained)
    assert " with 2 CPU threads" in stored(trained)
    assert "| K = 8 |" in stored(trained)  # an EAGLE drafter is judged beyond what it was taught


def test_acceptance_stands_beside_loops_and_published_ranges(card: DrafterCard) -> None:
    text = model_card(replace(card, acceptance={"code": {"greedy": found(0.625), "t0.7": found(0.5)}}))
    assert "| code | greedy | 0.62 0.50 | 1.50 | 1.75 | 25% | 62% | 75-85 % |" in text
    assert "| code | t0.7 | 0.50 0.50 |" in text


def test_the_order_of_domains_is_held_against_the_published_one(card: DrafterCard) -> None:
    measured = {"code": 0.8, "json": 0.7, "contract": 0.6, "fiction": 0.5}
    text = model_card(replace(card, acceptance={domain: {"greedy": found(a)} for domain, a in measured.items()}))
    assert "- greedy: the order of domains is the published one in 5 of 6 pairs; here code is above json." in text


@pytest.mark.parametrize(
    ("measured", "expected"),
    [
        ({}, (0, [])),
        ({"code": 0.5, "weather": 0.9}, (0, [])),
        ({"json": 0.9, "fiction": 0.1}, (1, [])),
        ({"json": 0.1, "fiction": 0.9}, (1, [("fiction", "json")])),
    ],
)
def test_pairs_of_domains_are_compared_where_both_are_known(measured, expected) -> None:
    assert against_published(measured) == expected


def test_of_a_users_domain_nothing_is_published() -> None:
    assert (range_text("weather"), range_text("json")) == ("", "80-92 %")


def test_an_imported_drafters_card_claims_nothing_of_its_training() -> None:
    card = DrafterCard("medusa", TargetIdentity("tiny", "ab" * 32, 8, 16), 2, {}, recipe={"imported_from": "heads"})
    text = model_card(card)
    assert "as whoever published it says" in text
    assert "## Recipe" not in text
    assert "kadence train medusa" not in text


@pytest.mark.parametrize(
    ("readme", "licence"),
    [
        ("---\nlicense: apache-2.0\ntags: [a]\n---\n# Model\n", "apache-2.0"),
        ("---\ntags: [a]\n---\n", ""),
        ("# Model\n---\nlicense: mit\n---\n", ""),
        ("---\n: [\n---\n", ""),
        ("# Model\n", ""),
    ],
)
def test_a_models_licence_is_read_from_its_own_card(tmp_path, readme, licence) -> None:
    (tmp_path / "README.md").write_text(readme)
    assert model_licence(tmp_path) == licence


def test_a_model_that_says_no_licence_has_none(tmp_path) -> None:
    assert model_licence(tmp_path) == ""
