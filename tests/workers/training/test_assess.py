"""A drafter's folder is judged on held-out prompts, its trees are stored in it, and its costs become speed-ups."""

from __future__ import annotations

import csv
import json
import shutil
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer

from controlplane.telemetry import ProfileCell
from tests.workers.test_cli import run
from tests.workers.training.conftest import HIDDEN, VOCAB, tiny_target
from workers.proposers.drafter_folder import DrafterCard, DrafterError, identify, read_card, save_drafter
from workers.proposers.eagle_model import EagleModel, EagleShape
from workers.training.assess import Assessment, AssessmentOrder, assess_drafter
from workers.training.evaluate import Acceptance
from workers.training.features import feature_layers
from workers.training.generate import questions
from workers.training.ngram_first import Walked
from workers.training.plots import plot_evaluation, plot_training
from workers.training.report import Report
from workers.training.run import Order
from workers.training.step_cost import StepCost, drafting_share, measure_steps, speed_ups, speed_ups_together, step_cost
from workers.training.tables import acceptance_table, cost_table, ngram_first_table, tree_depth, tree_table

PNG = b"\x89PNG"


@pytest.fixture(scope="module")
def assessment(trained: Order) -> Assessment:
    order = AssessmentOrder(trained.out, trained.folder, trained.name, trained.cache, trained.prompts, 1, 12)
    return assess_drafter(order, Report())


def test_all_held_out_answers_are_judged_greedy_and_sampled(assessment: Assessment) -> None:
    assert assessment.answers == 4
    assert assessment.acceptance["all"].keys() == {"greedy", "t0.7"}


def test_asked_for_part_of_the_answers_it_is_judged_by_those_held_out_of_them(trained: Order, tmp_path: Path) -> None:
    drafter = shutil.copytree(trained.out, tmp_path / "drafter")
    order = AssessmentOrder(drafter, trained.folder, trained.name, trained.cache, trained.prompts, 1, 12, answers=8)
    tokenizer = AutoTokenizer.from_pretrained(trained.folder)
    part = [question for question in questions(trained.prompts, tokenizer, 12, (1,))[:8] if question.held_out]
    assert 0 < len(part) < 4
    assert assess_drafter(order, Report()).answers == len(part)


def test_its_trees_are_stored_in_its_folder(trained: Order, assessment: Assessment) -> None:
    stored = read_card(trained.out).trees
    assert {int(nodes): tuple(parents) for nodes, parents in stored.items()} == {
        nodes: worth.parents for nodes, worth in assessment.trees.items()
    }


def test_what_it_is_worth_behind_the_ngram_index_is_stored_in_its_folder(
    trained: Order, assessment: Assessment
) -> None:
    stored = read_card(trained.out).ngram_first
    assert stored == json.loads(json.dumps(assessment.together.report()))
    assert stored["domains"].keys() == assessment.acceptance.keys()


def test_without_a_held_out_prompt_there_is_nothing_to_judge_by(trained: Order) -> None:
    taught = [p for p in trained.prompts if not p.held_out]
    order = AssessmentOrder(trained.out, trained.folder, trained.name, trained.cache, taught, 1, 12)
    with pytest.raises(ValueError, match="held-out"):
        assess_drafter(order, Report())


def test_a_folder_without_a_drafter_is_refused_before_anything_is_computed(trained: Order, tmp_path: Path) -> None:
    order = AssessmentOrder(tmp_path, trained.folder, trained.name, trained.cache, trained.prompts, 1, 12)
    with pytest.raises(DrafterError, match=r"drafter\.json"):
        assess_drafter(order, Report())


@pytest.fixture
def of_others(trained: Order, tmp_path: Path) -> Path:
    """A drafter as others publish it: its layer reads the outputs of other layers than ours would."""
    torch.manual_seed(2)
    target, model = identify(trained.name, trained.folder, trained.cache), tiny_target()
    shape = EagleShape(HIDDEN, 4, 2, 8, 48, (2, 3), 10000.0, 1e-6)
    assert shape.features != feature_layers(model.config.num_hidden_layers)
    card = DrafterCard("eagle", target, 1, asdict(shape))
    save_drafter(tmp_path, card, EagleModel(shape).state_dict(), torch.arange(VOCAB))
    return tmp_path


def test_a_drafter_of_others_is_judged_on_the_features_that_it_reads(trained: Order, of_others: Path) -> None:
    order = AssessmentOrder(of_others, trained.folder, trained.name, trained.cache, trained.prompts, 1, 12)
    assess_drafter(order, Report())
    stored = [json.loads(path.read_text()) for path in trained.cache.parent.glob("training/*/features-*/features.json")]
    assert [2, 3] in [said["layers"] for said in stored]


def test_steps_of_the_engine_are_measured_with_the_drafter_in_it(trained: Order) -> None:
    costs = measure_steps(str(trained.folder), f"eagle:{trained.out}", trained.cache, (2,), 1, 0.2)
    assert [cost.k for cost in costs] == [0, 2]
    assert costs[1].draft_seconds > 0


def test_curves_and_figures_become_pictures(trained: Order, assessment: Assessment, tmp_path: Path) -> None:
    made = [*plot_training(trained.out), plot_evaluation(tmp_path / "evaluation.png", assessment.acceptance)]
    assert [path.name for path in made] == ["loss.png", "acceptance.png", "evaluation.png"]
    assert all(path.read_bytes().startswith(PNG) for path in made)


def test_of_a_folder_without_curves_there_is_no_picture(tmp_path: Path) -> None:
    assert plot_training(tmp_path) == []


def test_the_curves_have_every_position(trained: Order) -> None:
    with (trained.out / "loss.csv").open(newline="") as file:
        assert {row["position"] for row in csv.DictReader(file)} == {"0", "1", "2", "3"}


def test_tables_have_a_row_for_each_domain_mode_and_tree(assessment: Assessment) -> None:
    assert acceptance_table(assessment.card, assessment.acceptance).row_count == 4
    assert ngram_first_table(assessment.together, assessment.acceptance).row_count == 4
    assert tree_table(assessment.trees, assessment.acceptance).row_count == len(assessment.trees)
    assert cost_table([StepCost(0, 0.02, 0.0), StepCost(2, 0.022, 0.002)], assessment.acceptance).row_count == 2


COSTS = [step_cost(ProfileCell(1, 0, 256, 0.020, 0.0)), step_cost(ProfileCell(1, 4, 256, 0.025, 0.004))]


def test_drafting_is_held_against_a_step_without_it() -> None:
    assert drafting_share(COSTS) == {4: pytest.approx(0.05)}


def test_a_speed_up_is_tokens_a_step_over_what_the_step_takes_longer() -> None:
    sums = Acceptance([], [])
    sums.emitted[4], sums.steps[4] = 250, 100
    assert speed_ups(sums, COSTS) == {4: pytest.approx(2.5 * 20 / 25)}


def test_a_step_of_the_ngram_index_takes_no_time_for_drafting() -> None:
    sums = Walked()
    sums.add(4, 250, 100, 40)
    assert speed_ups_together(sums, COSTS) == {4: pytest.approx(250 * 20 / (60 * 25 + 40 * 21))}


def test_without_a_plain_step_there_is_nothing_to_hold_it_against() -> None:
    assert (drafting_share(COSTS[1:]), speed_ups(Acceptance([], []), COSTS[1:])) == ({}, {})


@pytest.mark.parametrize(("parents", "depth"), [((), 0), ((-1, -1), 1), ((-1, 0, 1, -1), 3)])
def test_the_depth_of_a_tree_is_that_of_its_longest_path(parents: tuple[int, ...], depth: int) -> None:
    assert tree_depth(parents) == depth


def test_asked_for_json_the_command_says_one_object_on_stdout_and_nothing_else(trained: Order, tmp_path: Path) -> None:
    drafter = shutil.copytree(trained.out, tmp_path / "drafter")
    prompts = tmp_path / "prompts.jsonl"
    lines = [{"prompt": p.text, "domain": p.domain, "held_out": p.held_out} for p in trained.prompts]
    prompts.write_text("\n".join(map(json.dumps, lines)))
    command = ["train", "evaluate", str(drafter), "--model", str(trained.folder), "--prompts", str(prompts), "--json"]
    done = run(*command, "--model-cache", str(trained.cache))
    assert done.returncode == 0, done.stderr
    assert [step["k"] for step in json.loads(done.stdout)["steps"]][:2] == [0, 1]
