"""One drafter from nothing: prompts, the target's answers, its features, training, and what came of it."""

from __future__ import annotations

import csv
import hashlib
import json
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from workers.models.licence import model_licence
from workers.proposers.drafter_folder import DrafterCard, Kind, identify, save_drafter
from workers.proposers.eagle_model import EagleModel, EagleShape
from workers.proposers.medusa_model import MedusaModel
from workers.proposers.student_model import kept_layers, start_from, student_decoder
from workers.training.answers import Answer
from workers.training.eagle import EagleObjective, feature_scale
from workers.training.evaluate import Acceptance, evaluate, sample, summary
from workers.training.features import Example, FeatureFile, feature_layers, store_features
from workers.training.generate import TEMPERATURE, generate, questions
from workers.training.loop import Progress, Recipe, train
from workers.training.medusa import MedusaObjective
from workers.training.model_card import write_model_card
from workers.training.objective import Objective, Teacher
from workers.training.prompts import Prompt
from workers.training.report import Report
from workers.training.student import StudentObjective
from workers.training.vocabulary import DRAFT_VOCABULARY, draft_vocabulary

DEPTH = {"eagle": 4, "medusa": 4}
"""Positions that each kind is taught."""

STUDENT_LAYERS = 2
"""Of a `draft` student: with three it would cost more than an eighth of a step of a target of 30 layers."""

LOOK_AT = 48
"""Held-out answers of the looks in between; the last one takes all."""

DATA_SHARE = 0.5
"""Of the budget, at most, for answers that are not there yet."""


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be trained. folder: of the target. cache: of models and answers. seeds: of sampled answers.

    budget_s: for everything, answers included. recipe: its budget is set from what is left of that one. answers: how
    many to take, the first of an order in which any part represents all; 0: as many as the budget allows. has_own: the
    prompts are the user's, not the shipped ones.
    """

    kind: Kind
    folder: Path
    name: str
    cache: Path
    out: Path
    prompts: Sequence[Prompt]
    recipe: Recipe
    budget_s: float
    processes: int
    max_tokens: int = 256
    seeds: tuple[int, ...] = (1,)
    answers: int = 0
    has_own: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """card: as stored. acceptance: of all held-out answers. trained_tokens: distinct answer tokens to learn from."""

    card: DrafterCard
    acceptance: dict[str, dict[str, Acceptance]]
    trained_tokens: int


def train_drafter(order: Order, report: Report) -> Outcome:
    """Raises RuntimeError or ValueError, one line each, where a part cannot be done."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    began = time.monotonic()
    target = identify(order.name, order.folder, order.cache)
    weights = target.weights
    wanted = questions(order.prompts, AutoTokenizer.from_pretrained(order.folder), order.max_tokens, order.seeds)
    store = order.cache.parent / "training" / weights[:16]
    until = began + DATA_SHARE * order.budget_s
    if order.answers:
        wanted, until = wanted[: order.answers], float("inf")
    answers = generate(order.folder, weights, wanted, store / "answers", order.processes, report, until)
    taught = [a for a in answers if not a.question.held_out]
    judged = [a for a in answers if a.question.held_out]
    if not taught or not judged:
        raise RuntimeError("the budget was over before there were answers to learn from: give --budget more")
    model = AutoModelForCausalLM.from_pretrained(order.folder, dtype=torch.bfloat16).train(False)
    torch.set_num_threads(order.processes)
    layers = feature_layers(model.config.num_hidden_layers)
    report.stage("features", sum(answer.length for answer in answers))
    features = store_features(store / f"features-{_digest(answers)}", answers, model, layers, report.advance)
    vocabulary = draft_vocabulary(taught, DRAFT_VOCABULARY, model.config.vocab_size)
    torch.manual_seed(order.recipe.seed)
    first = sample([i for i, a in enumerate(features.answers) if not a.question.held_out], LOOK_AT)
    objective, shape = _objective(
        order.kind, model, Teacher.of(model, vocabulary), layers, [features[i] for i in first]
    )
    target_parameters = sum(p.numel() for p in model.parameters())
    del model
    recipe = _train(order, report, objective, features, f"{target} {_digest(answers)} {shape}", began)
    report.stage("evaluation", len(judged))
    held_out = [i for i, a in enumerate(features.answers) if a.question.held_out]
    acceptance = evaluate(objective, features.told(held_out, report))
    card = DrafterCard(
        order.kind,
        target,
        objective.depth,
        shape,
        model_licence(order.folder),
        {
            **asdict(recipe),
            "prompts": len({a.question.prompt_token_ids for a in taught}),
            "answer_tokens": sum(len(a.token_ids) for a in taught),
            "answers": len(answers),
            "max_tokens": order.max_tokens,
            "seeds": list(order.seeds),
            "temperature": TEMPERATURE,
            "prompts_from": "the user" if order.has_own else "the project",
            "domains": {"taught": _by_domain(taught), "held_out": _by_domain(judged)},
            "draft_vocabulary": len(vocabulary),
            "parameters": sum(p.numel() for p in objective.model.parameters()),
            "target_parameters": target_parameters,
        },
        acceptance={
            domain: {mode: sums.report() for mode, sums in modes.items()} for domain, modes in acceptance.items()
        },
    )
    save_drafter(order.out, card, objective.model.state_dict(), vocabulary)
    write_model_card(order.out)
    return Outcome(card, acceptance, sum(len(a.token_ids) for a in taught))


def _objective(
    kind: Kind, model: Any, teacher: Teacher, layers: tuple[int, ...], examples: Sequence[Example]
) -> tuple[Objective, dict[str, Any]]:
    """The untrained drafter of that kind, and its shape as its card has it. examples: some of those to learn from."""
    config = model.config
    if kind == "draft":
        kept = kept_layers(config.num_hidden_layers, STUDENT_LAYERS)
        decoder = student_decoder(config, kept)
        start_from(decoder, model, kept)
        return StudentObjective(decoder, teacher), {"layers": list(kept)}
    if kind == "medusa":
        return MedusaObjective(MedusaModel(config.hidden_size, DEPTH[kind]), teacher), {"heads": DEPTH[kind]}
    heads = config.num_attention_heads
    shape = EagleShape(
        hidden=config.hidden_size,
        heads=heads,
        kv_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
        intermediate=config.intermediate_size,
        features=layers,
        rope_theta=float(config.rope_parameters["rope_theta"]),
        rms_eps=float(config.rms_norm_eps),
        joined=True,
    )
    drafter = EagleModel(shape)
    drafter.start_from(feature_scale(examples))
    return EagleObjective(drafter, teacher, DEPTH[kind]), asdict(shape)


def _train(
    order: Order, report: Report, objective: Objective, features: FeatureFile, identity: str, began: float
) -> Recipe:
    """Train on the taught answers; loss.csv and acceptance.csv are written as it goes."""
    taught = [i for i, a in enumerate(features.answers) if not a.question.held_out]
    looks = sample([i for i, a in enumerate(features.answers) if a.question.held_out], LOOK_AT)
    lengths = [features.answers[i].length for i in taught]
    order.out.mkdir(parents=True, exist_ok=True)
    left = max(order.budget_s - (time.monotonic() - began), 1.0)
    recipe = Recipe(**{**asdict(order.recipe), "budget_s": left}) if order.recipe.steps == 0 else order.recipe
    report.stage("training", recipe.steps)
    log = _Curves(order.out, objective, features, looks)

    def on_step(progress: Progress) -> None:
        log.step(progress)
        report.advance(1, f"{progress.step}/{progress.steps or '?'} loss {progress.losses[0]:.3f} {log.latest}")

    examples = _Chosen(features, taught)
    return train(objective, examples, lengths, recipe, order.out / "checkpoint.pt", identity, on_step)


class _Chosen:
    def __init__(self, features: FeatureFile, chosen: Sequence[int]) -> None:
        self._features, self._chosen = features, chosen

    def __len__(self) -> int:
        return len(self._chosen)

    def __getitem__(self, index: int) -> Example:
        return self._features[self._chosen[index]]


class _Curves:
    """loss.csv, a line every LOSS_EVERY steps, and acceptance.csv, a line a domain at each look."""

    LOSS_EVERY = 10
    LOOKS = 10

    def __init__(self, out: Path, objective: Objective, features: FeatureFile, looks: Sequence[int]) -> None:
        self._out, self._objective, self._features, self._looks = out, objective, features, looks
        self.latest = ""

    def step(self, progress: Progress) -> None:
        is_last = progress.step == progress.steps
        if progress.step % self.LOSS_EVERY == 0 or is_last:
            self._append(
                "loss.csv",
                ["step", "tokens", "seconds", "position", "loss"],
                [
                    [progress.step, progress.tokens, round(progress.seconds, 1), position, round(loss, 5)]
                    for position, loss in enumerate(progress.losses)
                ],
            )
        if progress.steps and (progress.step % max(progress.steps // self.LOOKS, 1) == 0 or is_last):
            self._look(progress)

    def _look(self, progress: Progress) -> None:
        self._objective.model.train(False)
        found = evaluate(self._objective, (self._features[i] for i in self._looks))
        self._objective.model.train()
        self._append(
            "acceptance.csv",
            ["step", "seconds", "domain", "mode", "position", "acceptance"],
            [
                [progress.step, round(progress.seconds, 1), domain, mode, position, round(acceptance, 4)]
                for domain, modes in found.items()
                for mode, sums in modes.items()
                for position, acceptance in enumerate(sums.by_position)
            ],
        )
        said = summary(found, min(4, self._objective.depth))
        self.latest = " ".join(f"{domain} {length:.2f}" for domain, length in said.items())

    def _append(self, name: str, header: list[str], rows: list[list[Any]]) -> None:
        path = self._out / name
        is_new = not path.exists()
        with path.open("a", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerows([header, *rows] if is_new else rows)


def _by_domain(answers: Sequence[Answer]) -> dict[str, dict[str, int]]:
    """Prompts, answers and answer tokens of each domain."""
    parts: dict[str, list[Answer]] = defaultdict(list)
    for answer in answers:
        parts[answer.question.domain].append(answer)
    return {
        domain: {
            "prompts": len({a.question.prompt_token_ids for a in part}),
            "answers": len(part),
            "tokens": sum(len(a.token_ids) for a in part),
        }
        for domain, part in sorted(parts.items())
    }


def _digest(answers: Sequence[Answer]) -> str:
    return hashlib.sha256(json.dumps([a.key for a in answers]).encode()).hexdigest()[:12]
