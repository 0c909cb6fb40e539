"""The target's own answers to the prompts, computed once and kept on disk by what they depend on.

An answer is a function of the weights, the prompt's tokens, the temperature, the seed and the length alone (greedy, or
seeded by Gumbel coupling), so it is kept under a hash of those: an interrupted run goes on where it was, and a change
of any of them computes anew. It does not matter whether it was computed alone or beside others.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from workers.engine import Engine
from workers.sequence import EngineRequest, SamplingParams

SYNC_EVERY = 16
"""Answers between two flushes to disk: what a crash may cost."""


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked of the target. seed: of the sampling, 0 at temperature 0."""

    domain: str
    held_out: bool
    prompt_token_ids: tuple[int, ...]
    temperature: float
    seed: int
    max_tokens: int

    def key(self, weights: str) -> str:
        """sha256 over everything that the answer depends on; `weights`: the hash of the target's."""
        depends_on = [weights, self.prompt_token_ids, self.temperature, self.seed, self.max_tokens]
        return hashlib.sha256(json.dumps(depends_on).encode()).hexdigest()[:24]


@dataclass(frozen=True, slots=True)
class Answer:
    """token_ids: the completion, its end token included where it has one."""

    key: str
    question: Question
    token_ids: tuple[int, ...]

    @property
    def length(self) -> int:
        """Tokens of prompt and answer."""
        return len(self.question.prompt_token_ids) + len(self.token_ids)


class AnswerFiles:
    """Answers in a folder, a JSON object a line. Each process appends to a file of its own; all are read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def read(self) -> dict[str, Answer]:
        """All answers by key. A line that a crash left half-written is passed over: it is computed again."""
        answers = {}
        for path in sorted(self.folder.glob("*.jsonl")):
            for line in path.read_text(encoding="utf-8").splitlines():
                answer = _parsed(line)
                if answer is not None:
                    answers[answer.key] = answer
        return answers

    def append(self, answers: Iterable[Answer], part: str) -> Iterator[Answer]:
        """Store each answer in the file of `part` as it comes, and pass it on."""
        path = self.folder / f"{part}.jsonl"
        with path.open("a", encoding="utf-8") as file:
            if file.tell() and not path.read_bytes().endswith(b"\n"):
                file.write("\n")
            for count, answer in enumerate(answers, 1):
                file.write(
                    json.dumps({"key": answer.key, "tokens": answer.token_ids, **asdict(answer.question)}) + "\n"
                )
                if count % SYNC_EVERY == 0:
                    file.flush()
                    os.fsync(file.fileno())
                yield answer


def _parsed(line: str) -> Answer | None:
    try:
        said = json.loads(line)
        key, tokens = said.pop("key"), tuple(said.pop("tokens"))
        return Answer(key, Question(**{**said, "prompt_token_ids": tuple(said["prompt_token_ids"])}), tokens)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def answered(
    engine: Engine, questions: Sequence[Question], weights: str, until: float = float("inf")
) -> Iterator[Answer]:
    """Each question with its answer, as they finish. As many run at once as the engine has slots.

    until: time.monotonic() after which no further question is begun; those under way are finished.
    """
    waiting, open_questions = list(reversed(questions)), dict[str, Question]()
    texts: dict[str, list[int]] = {}
    slots = engine.max_sequences
    while waiting or open_questions:
        if time.monotonic() > until:
            waiting = []
        while waiting and len(open_questions) < slots:
            question = waiting.pop()
            key = question.key(weights)
            if key not in open_questions:
                sampling = SamplingParams(question.max_tokens, question.temperature, seed=question.seed)
                engine.submit(EngineRequest(key, question.prompt_token_ids, sampling, question.domain))
                open_questions[key], texts[key] = question, []
        for chunk in engine.step():
            if chunk.error is not None:
                raise RuntimeError(f"the target failed on a training prompt: {chunk.error}")
            texts[chunk.request_id] += chunk.token_ids
            if chunk.finish_reason is not None:
                question = open_questions.pop(chunk.request_id)
                yield Answer(chunk.request_id, question, tuple(texts.pop(chunk.request_id)))
