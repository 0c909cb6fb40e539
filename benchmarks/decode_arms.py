"""The arms of the decode benchmark by name, and all of them loaded in one process.

transformers                     its `generate`
transformers/prompt_lookup       the same with `prompt_lookup_num_tokens`
transformers/assisted            the same with `assistant_model`
llama.cpp                        on a GGUF file, by the package xllamacpp
kadence/DRAFTER/K                K tokens drafted a step, as trees where the drafter's card has some
kadence/DRAFTER/adaptive         K as the production controller chooses it
either and /chain                the same without trees
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from benchmarks.decode_checks import ADAPTIVE
from benchmarks.decode_figures import BASELINE, OURS, PLAIN, BenchmarkError, Run, spread_over
from benchmarks.drift_policy import LADDER
from controlplane.drafter_choice import CHOICES, parse_drafter
from controlplane.telemetry import MAX_K
from workers.load.mix import PROMPTS, load_prompts

PROMPT_LOOKUP = "transformers/prompt_lookup"
ASSISTED = "transformers/assisted"
LLAMA_CPP = "llama.cpp"
THEIRS = (BASELINE, PROMPT_LOOKUP, ASSISTED, LLAMA_CPP)
CHAIN = "chain"
"""Behind the K of an arm: no trees."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """seed: of its sampled completions, the same in every arm and round."""

    domain: str
    index: int
    token_ids: tuple[int, ...]
    seed: int


class Decoder(Protocol):
    """One arm, ready to run."""

    def run(self, prompt: Prompt, temperature: float, round: int) -> Run: ...


@dataclass(frozen=True, slots=True)
class OurArm:
    """One of ours: what drafts how many tokens. k: None where the controller chooses it."""

    name: str
    drafter: str
    k: int | None
    trees: bool

    @classmethod
    def of(cls, name: str) -> OurArm:
        """Raises BenchmarkError for a name that is none."""
        _, _, rest = name.partition("/")
        # A drafter's folder may have slashes of its own: what is behind it is read from the end.
        chain = rest.endswith(f"/{CHAIN}")
        drafter, _, k = rest.removesuffix(f"/{CHAIN}").rpartition("/")
        if not name.startswith(OURS) or not drafter or not (k == ADAPTIVE or (k.isdecimal() and int(k) <= MAX_K)):
            raise BenchmarkError(
                f"--arm {name}: must be {', '.join(THEIRS)} or kadence/DRAFTER/K with a K up to {MAX_K} or "
                f"{ADAPTIVE!r}, and /{CHAIN} behind it for no trees"
            )
        try:
            parse_drafter(drafter)
        except ValueError:
            raise BenchmarkError(f"--arm {name}: its drafter {CHOICES}") from None
        if drafter == "none" and k != "0":
            raise BenchmarkError(f"--arm {name}: without a drafter there is K = 0 alone; use {PLAIN} or name a drafter")
        return cls(name, drafter, None if k == ADAPTIVE else int(k), not chain)


def default_arms(best: str, shipped: Sequence[str], *, full: bool, llama: bool) -> tuple[str, ...]:
    """What is compared where no arm is named. best: the drafter used by default; shipped: kinds that the model has.

    full: every rung and `adaptive` of every drafter. Arms of which one is held to the other stand side by side.
    """

    def ours(drafter: str, depths: Iterable[object]) -> tuple[str, ...]:
        return tuple(f"{OURS}{drafter}/{k}" for k in depths)

    rungs = LADDER[1:]
    drafted = (*ours("ngram", [4]), *ours(best, [4, 8]))
    if full:
        others = [drafter for drafter in ("ngram", *shipped) if drafter != best]
        drafted = (*ours(best, rungs), *(arm for drafter in others for arm in ours(drafter, [*rungs, ADAPTIVE])))
    theirs = (BASELINE, PROMPT_LOOKUP, ASSISTED, *([LLAMA_CPP] if llama else []))
    return tuple(dict.fromkeys((*theirs, *ours(best, [ADAPTIVE]), PLAIN, *ours(best, [0]), *drafted)))


def with_compared(arms: Iterable[str]) -> tuple[str, ...]:
    """Those arms, each once, and the two that all are compared with."""
    named = tuple(dict.fromkeys(arms))
    return (*(arm for arm in (BASELINE, PLAIN) if arm not in named), *named)


def cohort_of(domain: str, temperature: float) -> str:
    """Cohorts of the benchmark: what is accepted of one domain differs by temperature."""
    return f"{domain}-t{temperature:g}"


def domains() -> list[str]:
    """Names of the shipped prompt sets."""
    return sorted(path.stem for path in PROMPTS.glob("*.yaml"))


def domain_texts(per_domain: int) -> dict[str, list[str]]:
    """`per_domain` prompts of every shipped set. Raises BenchmarkError where one has fewer."""
    return {domain: spread_over(load_prompts(domain, PROMPTS), per_domain) for domain in domains()}


def prompts_of(texts: Mapping[str, Sequence[str]], tokenizer: Any) -> list[Prompt]:
    """Those of every domain, as chat prompts in tokens."""
    prompts: list[Prompt] = []
    for domain, of_domain in texts.items():
        for index, text in enumerate(of_domain):
            messages = [{"role": "user", "content": text}]
            token_ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
            prompts.append(Prompt(domain, index, tuple(token_ids), seed=len(prompts) + 1))
    return prompts
