"""Runs of the arms of `gpu_decode` in, differences and rows out. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from benchmarks.decode_figures import Spread

K = 4
Mode = Literal["greedy", "seeded"]
MODES: tuple[Mode, ...] = ("greedy", "seeded")
THEIRS, PLAIN, DEFINED, FUSED = (
    "transformers",
    "kadence/none/0",
    f"kadence/draft_model/{K}/naive",
    f"kadence/draft_model/{K}/fused",
)


@dataclass(frozen=True, slots=True)
class Run:
    """All prompts decoded at once by one arm."""

    arm: str
    mode: Mode
    token_ids: tuple[tuple[int, ...], ...]
    seconds: float
    spec_steps: int = 0
    accepted: int = 0

    @property
    def tokens_per_s(self) -> float:
        return sum(map(len, self.token_ids)) / self.seconds


@dataclass(frozen=True, slots=True)
class Row:
    """One arm in one mode. acceptance_length: 1 + accepted / steps that drafted, None where none did."""

    arm: str
    mode: Mode
    tokens: int
    tokens_per_s: Spread
    acceptance_length: float | None
    equal_to_transformers: float | None


def differences(runs: Sequence[Run], demand_equal_k: bool) -> list[str]:
    """A sentence for every pair of arms whose tokens must be equal and are not, and where nothing was drafted."""
    tokens = {(run.arm, run.mode): run.token_ids for run in runs}
    pairs = [(FUSED, DEFINED), *([(FUSED, PLAIN)] if demand_equal_k else [])]
    unequal = [
        f"{mode}: {found} does not decode to the text of {wanted}"
        for mode in MODES
        for found, wanted in pairs
        if tokens[found, mode] != tokens[wanted, mode]
    ]
    unsteady = [
        f"{run.mode}: {run.arm} does not repeat its own text"
        for run in runs
        if run.token_ids != tokens[run.arm, run.mode]
    ]
    idle = [
        f"{run.mode}: {run.arm} drafted nothing" for run in runs if run.arm in (DEFINED, FUSED) and not run.spec_steps
    ]
    return list(dict.fromkeys([*unequal, *unsteady, *idle]))


def rows_of(runs: Sequence[Run]) -> list[Row]:
    """One row for each arm and mode, as they first appear."""
    rows = []
    for arm, mode in dict.fromkeys((run.arm, run.mode) for run in runs):
        own = [run for run in runs if (run.arm, run.mode) == (arm, mode)]
        theirs = next((run for run in runs if (run.arm, run.mode) == (THEIRS, mode)), None)
        steps = sum(run.spec_steps for run in own)
        equal = None
        if theirs is not None and arm != THEIRS:
            equal = sum(a == b for a, b in zip(own[0].token_ids, theirs.token_ids, strict=True)) / len(theirs.token_ids)
        rows.append(
            Row(
                arm,
                mode,
                sum(map(len, own[0].token_ids)),
                Spread.of([run.tokens_per_s for run in own]),
                1 + sum(run.accepted for run in own) / steps if steps else None,
                equal,
            )
        )
    return rows


def flat(row: Row) -> dict[str, Any]:
    """A row with its spread as columns, for a CSV."""
    values = asdict(row)
    speed = values.pop("tokens_per_s")
    return values | {f"tokens_per_s_{part}": round(speed[part], 2) for part in ("min", "median", "max")}
