"""The prompts that drafters learn on and are judged by: four domains, split by template.

A drafter is judged on templates that it never saw, since prompts of one template resemble each other. HumanEval's
prompts are not among them: they may be measured on, never trained on.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import yaml

PROMPTS = Path(__file__).parent / "prompts"
DOMAINS = ("code", "json", "contract", "fiction")
HELD_OUT_IN = 8
"""Of a user's own prompts, which have no template to split by, one in this many is held out."""


class PromptError(ValueError):
    """A prompt file that cannot be used; one line naming the line and the fix."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a user asks. held_out: for judging, never for training."""

    domain: str
    text: str
    held_out: bool


def shipped_prompts(folder: Path = PROMPTS) -> tuple[Prompt, ...]:
    """All prompts of this project's domains: every template with every subject, trained ones first in each domain."""
    return tuple(prompt for domain in DOMAINS for prompt in _domain(domain, folder / f"{domain}.yaml"))


def _domain(domain: str, path: Path) -> Iterable[Prompt]:
    written: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    for key, held_out in (("templates", False), ("held_out_templates", True)):
        # Subject by subject, so that any first part of the prompts already has every template.
        for subject, template in product(written["subjects"], written[key]):
            parts = subject if isinstance(subject, dict) else {"subject": subject}
            yield Prompt(domain, template.format(**parts), held_out)


def limited(prompts: Iterable[Prompt], most: int) -> tuple[Prompt, ...]:
    """The first `most` of each domain and split; all of them for 0."""
    counts: Counter[tuple[str, bool]] = Counter()
    kept = []
    for prompt in prompts:
        counts[prompt.domain, prompt.held_out] += 1
        if not most or counts[prompt.domain, prompt.held_out] <= most:
            kept.append(prompt)
    return tuple(kept)


def read_prompts(path: Path) -> tuple[Prompt, ...]:
    """A user's prompts: a JSON object a line with `prompt`, and if wanted `domain` and `held_out`.

    Without `held_out`, one in HELD_OUT_IN is held out, by the hash of its text. Raises PromptError.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise PromptError(f"--prompts {path}: cannot be read: {reason}") from error
    prompts = [_line(path, number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not any(not p.held_out for p in prompts) or not any(p.held_out for p in prompts):
        raise PromptError(
            f"--prompts {path}: needs prompts to train on and held-out ones to judge by; it has {len(prompts)} in all"
        )
    return tuple(dict.fromkeys(prompts))


def _line(path: Path, number: int, line: str) -> Prompt:
    where = f"--prompts {path}:{number}"
    try:
        said = json.loads(line)
    except ValueError as error:
        raise PromptError(f'{where}: is not JSON; write one object a line, such as {{"prompt": "..."}}') from error
    if not isinstance(said, dict) or not isinstance(said.get("prompt"), str) or not said["prompt"].strip():
        raise PromptError(f"{where}: prompt: must be a text that is not empty")
    unknown = sorted(set(said) - {"prompt", "domain", "held_out"})
    if unknown:
        raise PromptError(f"{where}: {unknown[0]}: unknown key; known ones are prompt, domain, held_out")
    domain, held_out = said.get("domain", "all"), said.get("held_out", is_held_out(said["prompt"]))
    if not isinstance(domain, str) or not domain:
        raise PromptError(f"{where}: domain: must be a name")
    if not isinstance(held_out, bool):
        raise PromptError(f"{where}: held_out: must be true or false")
    return Prompt(domain, said["prompt"], held_out)


def is_held_out(text: str) -> bool:
    """Whether a prompt without a template is held out: the same answer on every machine."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") % HELD_OUT_IN == 0
