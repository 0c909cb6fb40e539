"""A mix of cohorts as YAML, and the order of requests that follows from it. No clock, no network."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

HERE = Path(__file__).parent
MIXES, PROMPTS = HERE / "mixes", HERE / "prompts"
UNITS_S = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "": 1.0}

Endpoint = Literal["chat", "completions"]


class MixError(ValueError):
    """A mix or a prompt file is wrong; one line a problem."""


class PromptSet(BaseModel):
    """Prompts as a product: every template is filled with every subject (text for {subject}, or its named parts)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    templates: tuple[str, ...] = Field(min_length=1)
    subjects: tuple[str | dict[str, str], ...] = Field(("",), min_length=1)

    def prompts(self) -> tuple[str, ...]:
        """All of them, without repeats, subject by subject. Raises KeyError naming a part that a subject lacks."""
        filled = (
            template.format(**(subject if isinstance(subject, dict) else {"subject": subject}))
            for subject, template in product(self.subjects, self.templates)
        )
        return tuple(dict.fromkeys(filled))


class MixCohort(BaseModel):
    """One cohort's traffic. weight: its share of the requests. prompts: texts, or the name of a shipped set or file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][\w.-]*$")
    weight: float = Field(1.0, gt=0, le=1e6)
    max_tokens: int = Field(128, ge=1, le=1_000_000)
    temperature: float = Field(0.7, ge=0, le=2)
    endpoint: Endpoint = "chat"
    prompts: tuple[Annotated[str, Field(min_length=1)], ...] = Field(min_length=1)


class Mix(BaseModel):
    """concurrency: requests in flight, all cohorts together."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: Literal[1]
    concurrency: int = Field(4, ge=1, le=4096)
    cohorts: tuple[MixCohort, ...] = Field(min_length=1)


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """The request at `index` of a run. seed: for the server's sampling, None for unseeded."""

    index: int
    cohort: str
    endpoint: Endpoint
    prompt: str
    max_tokens: int
    temperature: float
    seed: int | None


def load_mix(name: str) -> Mix:
    """The mix in the file `name`, or the shipped mix of that name. Raises MixError with every problem."""
    path = Path(name).expanduser()
    if not path.exists():
        shipped = sorted(mix.stem for mix in MIXES.glob("*.yaml"))
        if name not in shipped:
            raise MixError(
                f"mix {name!r}: no such file, and no shipped mix of that name; shipped: {', '.join(shipped)}"
            )
        path = MIXES / f"{name}.yaml"
    return parse_mix(_read(path), str(path), path.parent)


def parse_mix(text: str, source: str, folder: Path) -> Mix:
    """The mix that `text` says; prompt files are looked up in `folder`. Raises MixError with every problem."""
    values = _yaml(text, source)
    if not isinstance(values, dict):
        raise MixError(f"{source}: must be a mapping with version and cohorts")
    for cohort in values["cohorts"] if isinstance(values.get("cohorts"), list) else []:
        if isinstance(cohort, dict) and isinstance(cohort.get("prompts"), str):
            cohort["prompts"] = load_prompts(cohort["prompts"], folder)
    mix: Mix = _validated(Mix, values, source)
    names = [cohort.name for cohort in mix.cohorts]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise MixError(f"{source}: cohorts: named twice: {', '.join(twice)}")
    return mix


def load_prompts(name: str, folder: Path) -> list[str]:
    """Prompts of a shipped set, of a YAML prompt set in `folder`, or of a text file with one prompt a line."""
    path = PROMPTS / f"{name}.yaml"
    if not path.exists():
        path = folder / Path(name).expanduser()
    if not path.is_file():
        shipped = ", ".join(sorted(prompts.stem for prompts in PROMPTS.glob("*.yaml")))
        raise MixError(
            f"prompts {name!r}: no such file in {folder}, and no shipped set of that name; shipped: {shipped}"
        )
    text = _read(path)
    if path.suffix not in (".yaml", ".yml"):
        return [line for line in text.splitlines() if line.strip()]
    prompts: PromptSet = _validated(PromptSet, _yaml(text, str(path)), str(path))
    try:
        return list(prompts.prompts())
    except (KeyError, IndexError, ValueError) as error:
        raise MixError(f"{path}: templates: a subject lacks {error}, or a brace is not doubled") from error


def planned_requests(mix: Mix, seed: int | None = None, temperature: float | None = None) -> Iterator[PlannedRequest]:
    """Requests without end, cohorts interleaved by weight, each cohort's prompts in a shuffled order over and over.

    The same mix and seed give the same requests. temperature, where given, stands for every cohort's own.
    """
    shuffled = {}
    for cohort in mix.cohorts:
        prompts = list(cohort.prompts)
        random.Random(f"{seed or 0}/{cohort.name}").shuffle(prompts)
        shuffled[cohort.name] = prompts
    sent = dict.fromkeys(shuffled, 0)
    index = 0
    while True:
        # The cohort furthest behind its share is next, so that every stretch of the run has the right proportions.
        cohort = min(mix.cohorts, key=lambda c: ((sent[c.name] + 1) / c.weight, mix.cohorts.index(c)))
        prompts = shuffled[cohort.name]
        yield PlannedRequest(
            index=index,
            cohort=cohort.name,
            endpoint=cohort.endpoint,
            prompt=prompts[sent[cohort.name] % len(prompts)],
            max_tokens=cohort.max_tokens,
            temperature=cohort.temperature if temperature is None else temperature,
            seed=None if seed is None else seed + index,
        )
        sent[cohort.name] += 1
        index += 1


def parse_duration(text: str) -> float:
    """Seconds of "90s", "2m", "500ms", "1h" or a bare number of seconds. Raises MixError."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|)\s*", text)
    if not match or not (seconds := float(match[1]) * UNITS_S[match[2]]):
        raise MixError(f"duration {text!r}: write a number over 0 and its unit, such as 60s, 2m or 500ms")
    return seconds


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise MixError(f"{path}: cannot be read: {reason}") from error


def _yaml(text: str, source: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise MixError(f"{source}: not valid YAML: {' '.join(str(error).split())}") from error


def _validated(kind: type[BaseModel], values: Any, source: str) -> Any:
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        lines = []
        problems = error.errors()
        for problem in problems:
            # A list also counts as too short when its only item is wrong: the item's own problem says enough.
            depth = len(problem["loc"])
            if problem["type"] == "too_short" and any(
                len(p["loc"]) > depth and p["loc"][:depth] == problem["loc"] for p in problems
            ):
                continue
            where = ".".join(str(part) for part in problem["loc"])
            message = "unknown key" if problem["type"] == "extra_forbidden" else problem["msg"]
            lines.append(f"{source}: {where}: {message[0].lower()}{message[1:]}")
        raise MixError("\n".join(lines)) from error
