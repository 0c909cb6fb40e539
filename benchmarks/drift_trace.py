"""The traffic of the drift benchmark: phases of one domain at one load, and their seeded requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workers.load.mix import load_prompts
from workers.sequence import EngineRequest, SamplingParams

MIXES = Path(__file__).with_name("mixes")
TEMPERATURE = {"code": 0.3, "json": 0.3, "fiction": 1.0}
"""Edits and records are copied with a steady hand, stories are not; all sampling is seeded."""
ONE_COHORT = "mix"


@dataclass(frozen=True, slots=True)
class Phase:
    """`requests` of `domain` in a closed loop of `load`: as one ends the next begins, until all are done."""

    domain: str
    load: int
    requests: int

    @property
    def name(self) -> str:
        return f"{self.domain} at load {self.load}"


def phases(high: int, scale: float) -> tuple[Phase, ...]:
    """Load 1, `high`, 1 over code, fiction and json; scale: of the numbers of requests.

    At its own best K each phase takes about as long as another, free text twice as long: a K that suits the rest is
    then dear there. One at load 1 is so some seven seconds; of two, it would be over before `guard.hold` lets K move.
    """

    def some(n: float) -> int:
        return max(1, round(n * scale))

    return (
        Phase("code", 1, some(6)),
        Phase("code", high, some(1.5 * high)),
        Phase("fiction", high, some(3 * high)),
        Phase("json", high, some(1.5 * high)),
        Phase("json", 1, some(6)),
    )


@dataclass(frozen=True, slots=True)
class Texts:
    """Prompts in tokens, by domain."""

    prompts: dict[str, tuple[tuple[int, ...], ...]]

    @classmethod
    def load(cls, tokenizer: Any, folder: Path = MIXES) -> Texts:
        """The prompts in `drift_<domain>.yaml` of `folder`, through the chat template. Raises MixError."""
        prompts = {}
        for domain in TEMPERATURE:
            texts = load_prompts(f"drift_{domain}.yaml", folder)
            messages = [[{"role": "user", "content": text}] for text in texts]
            prompts[domain] = tuple(
                tuple(tokenizer.apply_chat_template(m, add_generation_prompt=True, return_dict=False)) for m in messages
            )
        return cls(prompts)


def requests_of(
    at: int, phase: Phase, round: int, prompts: Sequence[Sequence[int]], max_tokens: int, cohort: str
) -> list[EngineRequest]:
    """Phase `at` of `round`: the same requests for every arm, other seeds (and prompts) in every phase and round."""
    out = []
    for i in range(phase.requests):
        turn = i + round * phase.requests
        sampling = SamplingParams(
            max_tokens, temperature=TEMPERATURE[phase.domain], seed=1_000_000 * round + 10_000 * at + i
        )
        prompt = tuple(prompts[turn % len(prompts)])
        out.append(EngineRequest(f"{round}-{at}-{i}", prompt, sampling, cohort))
    return out
