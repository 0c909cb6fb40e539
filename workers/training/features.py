"""What the target computes along its answers, stored once: the input of feature-level drafters and their teacher.

For each token of a prompt and its answer the outputs of a few decoder layers are kept, and the last hidden state after
the final norm, from which the target's distribution over any part of the vocabulary follows by its LM head.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock, Timeout

from workers.training.answers import Answer
from workers.training.report import Report

CHUNK_TOKENS = 4096
"""Tokens in one forward: enough to be compute-bound, few enough for the memory of a small machine."""

LOCK = "lock"
"""Of a folder: one process at a time reads its list or writes; what somebody has mapped stays as it is."""


def feature_layers(num_layers: int) -> tuple[int, ...]:
    """Early, middle and late decoder layer whose outputs a feature-level drafter reads (EAGLE-3, section 3.1)."""
    return tuple(sorted({max(num_layers // 10, 1), num_layers // 2, max(num_layers - 3, 1)}))


@dataclass(frozen=True, slots=True)
class Example:
    """One answer with its features.

    token_ids: [length] int64, prompt and answer. features: [length, layers, hidden] bf16. last_hidden: [length, hidden]
    bf16, after the final norm. answer_start: index of the answer's first token.
    """

    answer: Answer
    token_ids: torch.Tensor
    features: torch.Tensor
    last_hidden: torch.Tensor
    answer_start: int


class FeatureFile:
    """Features of many answers in two memory-mapped arrays, [tokens, layers + 1, hidden] bf16 as uint16."""

    def __init__(self, folder: Path, answers: Sequence[Answer]) -> None:
        said = json.loads((folder / "features.json").read_text())
        rows = np.memmap(folder / "features.bin", np.uint16, "r", shape=tuple(said["shape"]))
        self._rows = rows
        self._starts: dict[str, int] = said["starts"]
        self.answers = [answer for answer in answers if answer.key in self._starts]

    def __len__(self) -> int:
        return len(self.answers)

    def __getitem__(self, index: int) -> Example:
        answer = self.answers[index]
        prompt = answer.question.prompt_token_ids
        token_ids = torch.tensor([*prompt, *answer.token_ids])
        start = self._starts[answer.key]
        raw = np.array(self._rows[start : start + len(token_ids)])
        rows = torch.from_numpy(raw.view(np.int16)).view(torch.bfloat16)
        return Example(answer, token_ids, rows[:, :-1], rows[:, -1], len(prompt))

    def told(self, chosen: Iterable[int], report: Report) -> Iterator[Example]:
        """Those examples, each of which counts as done once the next one is asked for."""
        for index in chosen:
            yield self[index]
            report.advance(1)


def find_features(store: Path, answers: Sequence[Answer], layers: Sequence[int]) -> FeatureFile | None:
    """A file among those in `store` that has all the answers and these layers, None where there is none."""
    keys = {answer.key for answer in answers}
    for folder in sorted(store.glob("features-*")):
        with suppress(Timeout), FileLock(folder / LOCK, timeout=0):  # who holds it has nothing to read yet
            said = _said(folder)
            if said is not None and said.get("layers") == list(layers) and keys <= said["starts"].keys():
                return FeatureFile(folder, answers)
    return None


def store_features(
    folder: Path,
    answers: Sequence[Answer],
    model: Any,
    layers: Sequence[int],
    on_answer: Callable[[int], None] = lambda tokens: None,
) -> FeatureFile:
    """Run the target over every answer once and keep its features in `folder`; read them where they are there already.

    model: the target in transformers, bf16. layers: decoder layers, 1-based (0 would be the embedding). Who comes while
    another process computes them waits for it.
    """
    wanted = {"layers": list(layers), "keys": [answer.key for answer in answers]}
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / LOCK):
        said = _said(folder)
        if said is None or {key: said.get(key) for key in wanted} != wanted:
            shape = (sum(answer.length for answer in answers), len(layers) + 1, model.config.hidden_size)
            # Beside what is there, which somebody may still be reading.
            rows = np.memmap(folder / "features.new", np.uint16, "w+", shape=shape)
            starts, at = {}, 0
            for batch in _batches(answers):
                for answer, computed in zip(batch, _features(model, batch, layers), strict=True):
                    rows[at : at + len(computed)] = computed.view(torch.int16).numpy().view(np.uint16)
                    starts[answer.key] = at
                    at += len(computed)
                    on_answer(len(computed))
            rows.flush()
            (folder / "features.json").unlink(missing_ok=True)
            os.replace(folder / "features.new", folder / "features.bin")
            (folder / "json.new").write_text(json.dumps({**wanted, "shape": shape, "starts": starts}))
            os.replace(folder / "json.new", folder / "features.json")
        return FeatureFile(folder, answers)


def _said(folder: Path) -> dict[str, Any] | None:
    """What is there; None for nothing that could be read."""
    try:
        said: dict[str, Any] = json.loads((folder / "features.json").read_text())
    except (OSError, ValueError):
        return None
    return said


def _batches(answers: Sequence[Answer]) -> Iterator[list[Answer]]:
    batch: list[Answer] = []
    longest = 0
    for answer in answers:
        if batch and max(longest, answer.length) * (len(batch) + 1) > CHUNK_TOKENS:
            yield batch
            batch, longest = [], 0
        batch.append(answer)
        longest = max(longest, answer.length)
    if batch:
        yield batch


@torch.inference_mode()
def _features(model: Any, batch: Sequence[Answer], layers: Sequence[int]) -> list[torch.Tensor]:
    """[length, layers + 1, hidden] of each answer: causal, so that padding on the right changes nothing before it."""
    texts = [[*a.question.prompt_token_ids, *a.token_ids] for a in batch]
    longest = max(map(len, texts))
    token_ids = torch.tensor([text + [0] * (longest - len(text)) for text in texts])
    out = model.base_model(input_ids=token_ids, output_hidden_states=True, use_cache=False)
    stacked = torch.stack([*(out.hidden_states[layer] for layer in layers), out.last_hidden_state], dim=2)
    return [stacked[i, : len(text)].to(torch.bfloat16).contiguous() for i, text in enumerate(texts)]
