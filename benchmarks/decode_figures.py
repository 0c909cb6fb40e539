"""Runs of single requests in, rows of a table out: speed, ratios pair by pair, and whether texts are equal. Pure.

A *pair* is one prompt in one round at one temperature, decoded by two arms in the same turn, so that both meet the same
machine.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from workers.load.summary import repeated_ngram_share

BASELINE = "transformers"
OURS = "kadence/"
PLAIN = "kadence/none/0"


class BenchmarkError(ValueError):
    """The benchmark cannot run, or its figures cannot be kept; one line that says what to do."""


@dataclass(frozen=True, slots=True)
class Run:
    """One request decoded once by one arm.

    prompt, round: indices. token_ids: the completion, EOS included. seconds: from the prompt's token ids to the last
    token. steps: of draft and verification; spec_steps: those that drafted; accepted: draft tokens kept in them;
    planned: the K of every step, summed. All four are 0 where the arm does not tell.
    """

    arm: str
    domain: str
    prompt: int
    round: int
    token_ids: tuple[int, ...]
    text: str
    seconds: float
    spec_steps: int = 0
    accepted: int = 0
    temperature: float = 0.0
    steps: int = 0
    planned: int = 0

    @property
    def tokens_per_s(self) -> float:
        return len(self.token_ids) / self.seconds

    @property
    def pair(self) -> Pair:
        return Pair(self.domain, self.prompt, self.temperature, self.round)

    @property
    def is_ours(self) -> bool:
        return self.arm.startswith(OURS)


class Pair(NamedTuple):
    """What two runs share that are compared."""

    domain: str
    prompt: int
    temperature: float
    round: int


@dataclass(frozen=True, slots=True)
class Spread:
    """Of all pairs, or of all runs where nothing is paired."""

    min: float
    median: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(min(values), median(values), max(values))


@dataclass(frozen=True, slots=True)
class Row:
    """One arm on one domain at one temperature.

    ratio, ratio_to_k0: tokens/s over those of BASELINE and of PLAIN, None for themselves. acceptance_length: 1 +
    accepted / steps that drafted, None where none did. mean_k: the K that each step was given, None where the arm has
    none. repeated_8grams: as `kadence load` has it, None where no text has eight words. equal_to_transformers: share of
    prompts with the same token ids, None where they are sampled.
    """

    arm: str
    domain: str
    temperature: float
    runs: int
    tokens: int
    tokens_per_s: Spread
    ratio: Spread | None
    ratio_to_k0: Spread | None
    acceptance_length: float | None
    mean_k: float | None
    repeated_8grams: float | None
    equal_to_transformers: float | None


@dataclass(frozen=True, slots=True)
class Difference:
    """A run of ours whose tokens are not those of PLAIN in round 0, from `token` on."""

    arm: str
    pair: Pair
    token: int

    def __str__(self) -> str:
        domain, prompt, temperature, round = self.pair
        how = f"T = {temperature:g}" if temperature else "greedy"
        where = f"{domain} prompt {prompt}, {how}, round {round}"
        return f"{self.arm}, {where}: differs from {PLAIN} at token {self.token}"


def rotated(arms: Sequence[str], turn: int) -> tuple[str, ...]:
    """A B C, then B C A, then C A B: no arm is always first, or always after the same other one."""
    start = turn % len(arms)
    return (*arms[start:], *arms[:start])


def spread_over(prompts: Sequence[str], n: int) -> list[str]:
    """`n` of the prompts, evenly spaced: neighbours in a prompt set share their subject."""
    if not 1 <= n <= len(prompts):
        raise BenchmarkError(f"--prompts {n}: the smallest prompt set has {len(prompts)}; give 1 to {len(prompts)}")
    return [prompts[i * len(prompts) // n] for i in range(n)]


def differences(runs: Iterable[Run]) -> list[Difference]:
    """Of every run of ours whose text depends on what drafted it: greedy and seeded text must not."""
    ours = [r for r in runs if r.is_ours]
    wanted = {r.pair: r.token_ids for r in ours if r.arm == PLAIN and r.round == 0}
    return [
        Difference(r.arm, r.pair, first_difference(r.token_ids, of_plain))
        for r in ours
        if r.token_ids != (of_plain := wanted[r.pair._replace(round=0)])
    ]


def first_difference(a: Sequence[int], b: Sequence[int]) -> int:
    """Index of the first token in which two texts differ; the shorter one's length where it begins the other."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def rows_of(runs: Sequence[Run], arms: Iterable[str]) -> list[Row]:
    """A row per temperature, domain and arm: the former as they first appear, arms as given."""
    temperatures, domains = (
        dict.fromkeys(each) for each in zip(*((r.temperature, r.domain) for r in runs), strict=True)
    )
    by_arm = {arm: {r.pair: r for r in runs if r.arm == arm} for arm in (BASELINE, PLAIN)}
    cells = product(temperatures, domains, arms)
    return [_row([r for r in runs if (r.temperature, r.domain, r.arm) == cell], by_arm) for cell in cells]


def paired(runs: Iterable[Run], of: Mapping[Pair, Run]) -> list[float]:
    """Tokens/s of each run over those of its pair in `of`."""
    return [r.tokens_per_s / of[r.pair].tokens_per_s for r in runs]


def _row(runs: Sequence[Run], by_arm: Mapping[str, Mapping[Pair, Run]]) -> Row:
    first, spec_steps, steps = runs[0], sum(r.spec_steps for r in runs), sum(r.steps for r in runs)
    ratios = {arm: None if arm == first.arm else Spread.of(paired(runs, of)) for arm, of in by_arm.items()}
    theirs = by_arm[BASELINE]
    return Row(
        arm=first.arm,
        domain=first.domain,
        temperature=first.temperature,
        runs=len(runs),
        tokens=sum(len(r.token_ids) for r in runs),
        tokens_per_s=Spread.of([r.tokens_per_s for r in runs]),
        ratio=ratios[BASELINE],
        ratio_to_k0=ratios[PLAIN],
        acceptance_length=1 + sum(r.accepted for r in runs) / spec_steps if spec_steps else None,
        mean_k=sum(r.planned for r in runs) / steps if steps else None,
        repeated_8grams=repeated_ngram_share(r.text for r in runs if r.round == 0),
        equal_to_transformers=None
        if first.temperature
        else sum(r.token_ids == theirs[r.pair].token_ids for r in runs) / len(runs),
    )


def append_lines(path: Path, lines: Sequence[Mapping[str, Any]]) -> None:
    """Append to a CSV file, with a header where it is new.

    A file that lacks some of the columns gets them, empty in its old lines. Raises BenchmarkError where it has others.
    """
    header = list(lines[0])
    is_new = not path.exists() or not path.stat().st_size
    if not is_new:
        _add_columns(path, header)
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, header)
        if is_new:
            writer.writeheader()
        writer.writerows(lines)


def _add_columns(path: Path, header: Sequence[str]) -> None:
    """Rewrite the file under `header` where that has more columns. Raises BenchmarkError where it lacks one."""
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        found = list(reader.fieldnames or ())
        if found == header:
            return
        if not set(found) <= set(header):
            raise BenchmarkError(f"{path} has other columns; move it away, or name another file with --csv")
        old = list(reader)
    whole = path.with_suffix(".partial")
    with whole.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, header)
        writer.writeheader()
        writer.writerows(old)
    os.replace(whole, path)
