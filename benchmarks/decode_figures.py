"""Runs of single requests in, rows of a table out: speed, ratios pair by pair, and whether texts are equal. Pure.

A *pair* is one prompt in one round, decoded by two arms one right after the other, so that both meet the same machine.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

from workers.load.summary import repeated_ngram_share

BASELINE = "transformers"


class BenchmarkError(ValueError):
    """The benchmark cannot run, or its figures cannot be kept; one line that says what to do."""


@dataclass(frozen=True, slots=True)
class Run:
    """One request decoded once by one arm.

    prompt, round: indices. token_ids: the completion, EOS included. seconds: from the prompt's token ids to the last
    token. spec_steps, accepted: steps that drafted, and draft tokens kept in them.
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

    @property
    def tokens_per_s(self) -> float:
        return len(self.token_ids) / self.seconds


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
    """One arm on one domain.

    ratio: tokens/s over those of BASELINE, None for itself. acceptance_length: 1 + accepted / steps that drafted, None
    where none did. repeated_8grams: as `kadence load` has it, None where no text has eight words.
    equal_to_transformers: share of prompts with the same token ids.
    """

    arm: str
    domain: str
    runs: int
    tokens: int
    tokens_per_s: Spread
    ratio: Spread | None
    acceptance_length: float | None
    repeated_8grams: float | None
    equal_to_transformers: float


def rotated(arms: Sequence[str], turn: int) -> tuple[str, ...]:
    """A B C, then B C A, then C A B: no arm is always first, or always after the same other one."""
    start = turn % len(arms)
    return (*arms[start:], *arms[:start])


def spread_over(prompts: Sequence[str], n: int) -> list[str]:
    """`n` of the prompts, evenly spaced: neighbours in a prompt set share their subject."""
    if not 1 <= n <= len(prompts):
        raise BenchmarkError(f"--prompts {n}: the smallest prompt set has {len(prompts)}; give 1 to {len(prompts)}")
    return [prompts[i * len(prompts) // n] for i in range(n)]


def differences(runs: Iterable[Run], plain: str) -> list[str]:
    """A sentence for every Kadence run whose tokens are not those of arm `plain` in round 0."""
    ours = [r for r in runs if r.arm != BASELINE]
    wanted = {(r.domain, r.prompt): r.token_ids for r in ours if r.arm == plain and r.round == 0}
    return [
        f"{r.arm}, {r.domain} prompt {r.prompt}, round {r.round}: differs from {plain} at token "
        f"{first_difference(r.token_ids, wanted[r.domain, r.prompt])}"
        for r in ours
        if r.token_ids != wanted[r.domain, r.prompt]
    ]


def first_difference(a: Sequence[int], b: Sequence[int]) -> int:
    """Index of the first token in which two texts differ; the shorter one's length where it begins the other."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def rows_of(runs: Sequence[Run], arms: Iterable[str]) -> list[Row]:
    """A row per domain and arm: domains as they first appear, arms as given."""
    baseline = {(r.domain, r.prompt, r.round): r for r in runs if r.arm == BASELINE}
    cells = product(dict.fromkeys(r.domain for r in runs), arms)
    return [_row([r for r in runs if (r.domain, r.arm) == cell], baseline) for cell in cells]


def _row(runs: Sequence[Run], baseline: Mapping[tuple[str, int, int], Run]) -> Row:
    first, spec_steps = runs[0], sum(r.spec_steps for r in runs)
    pairs = [(r, baseline[r.domain, r.prompt, r.round]) for r in runs]
    return Row(
        arm=first.arm,
        domain=first.domain,
        runs=len(runs),
        tokens=sum(len(r.token_ids) for r in runs),
        tokens_per_s=Spread.of([r.tokens_per_s for r in runs]),
        ratio=None if first.arm == BASELINE else Spread.of([a.tokens_per_s / b.tokens_per_s for a, b in pairs]),
        acceptance_length=1 + sum(r.accepted for r in runs) / spec_steps if spec_steps else None,
        repeated_8grams=repeated_ngram_share(r.text for r in runs if r.round == 0),
        equal_to_transformers=sum(a.token_ids == b.token_ids for a, b in pairs) / len(pairs),
    )


def flat(row: Row) -> dict[str, Any]:
    """A row with its spreads as columns, for a CSV."""
    columns: dict[str, Any] = {}
    for name, value in asdict(row).items():
        if name in ("tokens_per_s", "ratio"):
            columns |= {f"{name}_{part}": value and round(value[part], 3) for part in ("min", "median", "max")}
        else:
            columns[name] = round(value, 4) if isinstance(value, float) else value
    return columns


def append_csv(path: Path, conditions: Mapping[str, Any], rows: Iterable[Row]) -> None:
    """Append `rows` with their conditions. Raises BenchmarkError where the file has other columns."""
    append_lines(path, [{**conditions, **flat(row)} for row in rows])


def append_lines(path: Path, lines: Sequence[Mapping[str, Any]]) -> None:
    """Append to a CSV file, with a header where it is new. Raises BenchmarkError where the file has other columns."""
    header = list(lines[0])
    is_new = not path.exists() or not path.stat().st_size
    if not is_new:
        with path.open(newline="", encoding="utf-8") as file:
            if next(csv.reader(file)) != header:
                raise BenchmarkError(f"{path} has other columns; move it away, or name another file with --csv")
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, header)
        if is_new:
            writer.writeheader()
        writer.writerows(lines)


def result(conditions: dict[str, Any], rows: Sequence[Row], unequal: Sequence[str]) -> dict[str, Any]:
    """The object that `--json` prints; without speed where texts differ."""
    shown = []
    for row in rows:
        values = asdict(row)
        ratio = values.pop("ratio")
        values |= {
            "cohort": values.pop("domain"),
            "concurrency": 1,
            "ratio_to": {} if ratio is None or unequal else {BASELINE: ratio},
            "greedy_equal": not any(line.startswith(f"{row.arm}, {row.domain} ") for line in unequal),
        }
        if unequal:
            values["tokens_per_s"] = None
        shown.append(values)
    return {"machine": conditions, "greedy_equal": not unequal, "differences": list(unequal), "rows": shown}
