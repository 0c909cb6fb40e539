"""Judge a drafter's folder on held-out prompts: acceptance by position and by rank, and the trees that follow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from workers.models.licence import model_licence
from workers.proposers.drafter_folder import (
    DrafterCard,
    TargetIdentity,
    identify,
    load_eagle,
    load_medusa,
    load_student,
    read_card,
    write_card,
)
from workers.training.answers import Answer
from workers.training.eagle import EagleObjective
from workers.training.evaluate import Acceptance, acceptance_of, judged
from workers.training.features import FeatureFile, feature_layers, find_features, store_features
from workers.training.generate import generate, questions
from workers.training.medusa import MedusaObjective
from workers.training.model_card import write_model_card
from workers.training.ngram_first import NGramFirst, ngram_first
from workers.training.objective import Objective, Teacher
from workers.training.prompts import Prompt
from workers.training.report import Report
from workers.training.student import StudentObjective
from workers.training.trees import TreeWorth, rank_acceptance, tree_worths

EAGLE_DEPTH = 8
"""An EAGLE drafter may go on beyond the positions that it was taught; how far that carries is seen here."""


@dataclass(frozen=True, slots=True)
class AssessmentOrder:
    """What is to be judged. drafter: its folder. target: the target's folder, and its name. cache: of models and
    answers. seeds: of sampled answers. answers: as it was trained with, to judge by those held out of them; 0: all.
    """

    drafter: Path
    target: Path
    name: str
    cache: Path
    prompts: Sequence[Prompt]
    processes: int
    max_tokens: int = 256
    seeds: tuple[int, ...] = (1,)
    answers: int = 0


@dataclass(frozen=True, slots=True)
class Assessment:
    """card: as stored now. ranks: [depth, RANKS], conditional acceptance over all answers. together: with the n-gram
    index before the drafter.
    """

    card: DrafterCard
    acceptance: dict[str, dict[str, Acceptance]]
    ranks: NDArray[np.float64]
    trees: dict[int, TreeWorth]
    together: NGramFirst
    answers: int


def assess_drafter(order: AssessmentOrder, report: Report) -> Assessment:
    """The drafter's figures; its trees are stored in its folder. Raises DrafterError, RuntimeError or ValueError."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    target = identify(order.name, order.target, order.cache)
    read_card(order.drafter)
    asked = questions(order.prompts, AutoTokenizer.from_pretrained(order.target), order.max_tokens, order.seeds)
    wanted = [question for question in asked[: order.answers or len(asked)] if question.held_out]
    if not wanted:
        raise ValueError("--prompts has no held-out prompt to judge by; mark some with `held_out`: true")
    store = order.cache.parent / "training" / target.weights[:16]
    answers = generate(order.target, target.weights, wanted, store / "answers", order.processes, report)
    model = AutoModelForCausalLM.from_pretrained(order.target, dtype=torch.bfloat16).train(False)
    torch.set_num_threads(order.processes)
    objective, card = _objective(order.drafter, target, model)
    features = _features(store, answers, model, _layers_read(card, model), report)
    del model
    report.stage("evaluation", len(answers))
    found = list(judged(objective, features.told(range(len(features)), report), by_rank=True))
    acceptance = acceptance_of(found, objective.depth)
    trees, together = tree_worths(found), ngram_first(found)
    card = replace(
        card,
        licence=card.licence or model_licence(order.target),
        acceptance={
            domain: {mode: sums.report() for mode, sums in modes.items()} for domain, modes in acceptance.items()
        },
        trees={str(nodes): list(worth.parents) for nodes, worth in trees.items()},
        ngram_first=together.report(),
    )
    write_card(order.drafter, card)
    write_model_card(order.drafter)
    return Assessment(card, acceptance, rank_acceptance(found), trees, together, len(found))


def _layers_read(card: DrafterCard, model: Any) -> tuple[int, ...]:
    """Decoder layers of the target that the drafter reads: others than ours, where somebody else has trained it."""
    return tuple(card.shape["features"]) if card.kind == "eagle" else feature_layers(model.config.num_hidden_layers)


def _features(
    store: Path, answers: Sequence[Answer], model: Any, layers: tuple[int, ...], report: Report
) -> FeatureFile:
    there = find_features(store, answers, layers)
    if there is not None:
        return there
    report.stage("features", sum(answer.length for answer in answers))
    return store_features(store / "features-held-out", answers, model, layers, report.advance)


def _objective(folder: Path, target: TargetIdentity, model: Any) -> tuple[Objective, DrafterCard]:
    kind = read_card(folder).kind
    if kind == "medusa":
        heads, vocabulary, card = load_medusa(folder, target)
        return MedusaObjective(heads.float(), Teacher.of(model, vocabulary)), card
    if kind == "draft":
        decoder, vocabulary, card = load_student(folder, target, model.config)
        return StudentObjective(decoder.float(), Teacher.of(model, vocabulary)), card
    layer, vocabulary, card = load_eagle(folder, target)
    return EagleObjective(layer.float(), Teacher.of(model, vocabulary), max(EAGLE_DEPTH, card.depth)), card
