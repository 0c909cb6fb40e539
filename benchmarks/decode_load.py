"""What a run of the decode benchmark is asked for, checked before any work; its arms, loaded; their turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import product
from pathlib import Path

from benchmarks.decode_arms import (
    LLAMA_CPP,
    THEIRS,
    Decoder,
    OurArm,
    Prompt,
    cohort_of,
    default_arms,
    domains,
    with_compared,
)
from benchmarks.decode_figures import BenchmarkError, Run, rotated
from benchmarks.decode_llama_cpp import PACKAGE, LlamaCppArm, find_gguf, has_llama_cpp, llama_cpp_version
from benchmarks.decode_ours import AdaptiveArm, load_ours
from benchmarks.decode_theirs import load_theirs
from controlplane.settings import Settings
from workers.build import check_models, used_drafter
from workers.models.command import progress_bars

CONTEXT = 2048
GREEDY, SAMPLED = 0.0, 0.7

OnProgress = Callable[[int, int], None]
"""Called with (runs done, runs in all)."""


class Dtype(StrEnum):
    BFLOAT16 = "bfloat16"
    FLOAT32 = "float32"


@dataclass(frozen=True, slots=True)
class Order:
    """A run that can be done: every arm is one, its drafter fits the model, and llama.cpp has its package and file.

    settings: of all engines, but for their drafters. gguf: None where llama.cpp is no arm. settle_s: uncounted seconds
    of an adaptive arm.
    """

    settings: Settings
    arms: tuple[str, ...]
    temperatures: tuple[float, ...]
    gguf: Path | None
    max_tokens: int
    settle_s: float

    @classmethod
    def of(
        cls, settings: Settings, arms: Sequence[str] | None, temperatures: Sequence[float] | None, gguf: Path | None, *,
        full: bool, max_tokens: int, settle_s: float,
    ) -> Order:  # fmt: skip
        """settings: with the drafter `auto`. Raises BenchmarkError, ModelError, DrafterError or UnsupportedModel."""
        if arms and full:
            raise BenchmarkError("--full and --arm: give one of them")
        if not arms:
            best = used_drafter(settings)
            named = str(replace(best.choice, where=""))
            arms = default_arms(named, tuple(best.shipped), full=full, llama=full or has_llama_cpp())
        temperatures = tuple(dict.fromkeys(temperatures or ((GREEDY, SAMPLED) if full else (GREEDY,))))
        order = cls(settings, with_compared(arms), temperatures, None, max_tokens, settle_s)
        for drafter in dict.fromkeys(arm.drafter for arm in order.ours):
            check_models(order.settings_of(drafter))
        if LLAMA_CPP not in order.arms:
            if gguf is not None:
                raise BenchmarkError(f"--gguf is for the arm {LLAMA_CPP}: name it with --arm, or leave --gguf out")
            return order
        with progress_bars() as on_progress:
            return replace(order, gguf=find_gguf(gguf, settings.model, settings.model_cache, on_progress))

    @property
    def ours(self) -> tuple[OurArm, ...]:
        return tuple(OurArm.of(arm) for arm in self.arms if arm not in THEIRS)

    @property
    def cohorts(self) -> list[str]:
        return [cohort_of(domain, temperature) for domain in domains() for temperature in self.temperatures]

    def settings_of(self, drafter: str) -> Settings:
        return self.settings.model_copy(update={"drafter": drafter})


class Decoders:
    """The arms of an order, loaded; by name in `arms`. tokenizer: the model's."""

    def __init__(self, order: Order) -> None:
        ours, models = load_ours(order.ours, order.settings_of, order.cohorts, order.max_tokens)
        self.tokenizer = models.tokenizer
        theirs, assistant = load_theirs(
            order.arms, order.settings, self.tokenizer, models.eos_token_ids, order.max_tokens
        )
        self.arms: dict[str, Decoder] = {**ours, **theirs}
        self.versions = {"assistant": assistant, PACKAGE: "", "gguf": ""}
        if order.gguf is not None:
            threads = order.settings.worker_threads
            self.arms[LLAMA_CPP] = LlamaCppArm(order.gguf, threads, models.context, order.max_tokens)
            self.versions |= {PACKAGE: llama_cpp_version(), "gguf": order.gguf.name}


def measure(
    decoders: Decoders, order: Order, prompts: Sequence[Prompt], rounds: int, on_progress: OnProgress
) -> list[Run]:
    """Every arm on every prompt at every temperature in every round, after one uncounted run of each.

    An adaptive arm has uncounted traffic first: what a controller costs while it learns is the drift benchmark's.
    """
    turns = list(product(range(rounds), order.temperatures, prompts))
    total = len(order.arms) * (1 + len(turns))
    runs: list[Run] = []
    for done, arm in enumerate(order.arms):
        on_progress(done, total)
        decoder = decoders.arms[arm]
        if isinstance(decoder, AdaptiveArm):
            decoder.settle(prompts, order.temperatures, order.settle_s)
        decoder.run(prompts[0], order.temperatures[0], 0)
    for turn, (round, temperature, prompt) in enumerate(turns):
        for arm in rotated(order.arms, turn):
            on_progress(len(order.arms) + len(runs), total)
            runs.append(decoders.arms[arm].run(prompt, temperature, round))
    return runs
