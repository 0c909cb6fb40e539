"""What a drafter is worth where the n-gram index drafts first and the drafter is asked only where that is silent.

The index is walked along the target's real answers: it sees the prompt and the answer so far, and its draft is kept as
far as it equals what the text says next. For a greedy text that is what verification does; for a sampled one a
deterministic draft is kept exactly when the target's own sample equals it, so that the walk is without bias.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from workers.proposers.ngram import MIN_MATCH as MATCH_ALONE
from workers.proposers.ngram import NGramIndex
from workers.training.answers import Answer
from workers.training.evaluate import ALL, CHAINS, SEED, JudgedAnswer
from workers.training.trees import half_of
from workers.training.walk import chain_kept, walked

MATCHES = (1, 2, 3, 4, 5, 6, 8, 12)
"""Shortest matches that are tried."""
CHOSEN_AT = 4
"""K at which tokens a step decide which of them is best."""


@dataclass(frozen=True, slots=True)
class Lookup:
    """The index along an answer. Behind each of its tokens, [tokens] int64: length of the longest match, and how many
    tokens of a draft of max(CHAINS) the text goes on to say.
    """

    match: NDArray[np.int64]
    kept: NDArray[np.int64]


@dataclass(slots=True)
class Walked:
    """Sums over walks, by K. spoken: of the steps, those in which the index drafted."""

    emitted: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    steps: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    spoken: dict[int, int] = field(default_factory=lambda: defaultdict(int))

    def add(self, k: int, emitted: int, steps: int, spoken: int) -> None:
        self.emitted[k] += emitted
        self.steps[k] += steps
        self.spoken[k] += spoken

    @property
    def lengths(self) -> dict[int, float]:
        """Tokens a step by K."""
        return {k: self.emitted[k] / steps for k, steps in self.steps.items() if steps}

    @property
    def share(self) -> dict[int, float]:
        """Share of the steps in which the index spoke, by K."""
        return {k: self.spoken[k] / steps for k, steps in self.steps.items() if steps}


@dataclass(frozen=True, slots=True)
class NGramFirst:
    """min_match: the shortest match that all answers choose. by_match: tokens a step at CHOSEN_AT over all answers, by
    mode, were it another one. first: of the index and then the drafter, by domain and mode, the match chosen by one
    half of the prompts and walked on the other. alone: of the index alone, as the proposer `ngram` is.
    """

    min_match: int
    by_match: dict[int, dict[str, float]]
    first: dict[str, dict[str, Walked]]
    alone: dict[str, dict[str, Walked]]

    def report(self) -> dict[str, object]:
        """As drafter.json keeps it, and `train evaluate --json` gives it."""
        return {
            "min_match": self.min_match,
            "by_min_match": {
                "k": CHOSEN_AT,
                "acceptance_length": {
                    match: {mode: round(value, 4) for mode, value in modes.items()}
                    for match, modes in self.by_match.items()
                },
            },
            "domains": {
                domain: {
                    mode: {
                        "acceptance_length": _rounded(sums.lengths),
                        "ngram_share_of_steps": _rounded(sums.share),
                        "ngram_alone": {
                            "acceptance_length": _rounded(self.alone[domain][mode].lengths),
                            "ngram_share_of_steps": _rounded(self.alone[domain][mode].share),
                        },
                    }
                    for mode, sums in modes.items()
                }
                for domain, modes in self.first.items()
            },
        }


def ngram_first(answers: Sequence[JudgedAnswer], matches: Sequence[int] = MATCHES) -> NGramFirst:
    """Walks of all the answers. The draws of sampled walks are seeded, the same for every match."""
    lookups = [look_up(judged.answer) for judged in answers]
    tried = {
        match: [
            _walk(judged, found, match, CHOSEN_AT, np.random.default_rng([SEED, i]))
            for i, (judged, found) in enumerate(zip(answers, lookups, strict=True))
        ]
        for match in matches
    }
    whole = range(len(answers))
    halves = [[i for i in whole if half_of(answers[i]) == half] for half in (0, 1)]
    # Of a single prompt there is no other half.
    chosen = [_best(tried, other or whole) for other in halves[::-1]]
    first: dict[str, dict[str, Walked]] = defaultdict(dict)
    alone: dict[str, dict[str, Walked]] = defaultdict(dict)
    for half, match in zip(halves, chosen, strict=True):
        for i in half:
            judged, found = answers[i], lookups[i]
            without = JudgedAnswer(judged.answer, judged.mode, judged.kept[:0], judged.taught[:0])
            for k in CHAINS:
                rng = np.random.default_rng([SEED, i])
                walks = _walk(judged, found, match, k, rng), _walk(without, found, MATCH_ALONE, k, rng)
                for domain in (judged.answer.question.domain, ALL):
                    for sums, walk in zip((first, alone), walks, strict=True):
                        sums[domain].setdefault(judged.mode, Walked()).add(k, *walk)
    by_match = {match: _by_mode(answers, walks) for match, walks in tried.items()}
    in_order = ({domain: sums[domain] for domain in sorted(sums)} for sums in (first, alone))
    return NGramFirst(_best(tried, whole), by_match, *in_order)


def look_up(answer: Answer) -> Lookup:
    """The production index behind every token of the answer: it has seen the prompt and the answer up to there."""
    text, start = [*answer.question.prompt_token_ids, *answer.token_ids], len(answer.question.prompt_token_ids)
    index, match, kept = NGramIndex(1), [], []
    for end in range(start + 1, len(text) + 1):
        draft, said = index.continuation(text[:end], max(CHAINS)), text[end:]
        match.append(index.match_length)
        room = min(len(draft), len(said))
        kept.append(next((n for n in range(room) if draft[n] != said[n]), room))
    return Lookup(np.array(match, dtype=np.int64), np.array(kept, dtype=np.int64))


def _walk(
    judged: JudgedAnswer, found: Lookup, min_match: int, k: int, rng: np.random.Generator
) -> tuple[int, int, int]:
    """(tokens emitted, steps, steps in which the index spoke) of a decoding with chains of at most `k`."""
    match, kept = found.match.tolist(), found.kept.tolist()
    spoken = 0

    def accept(at: int, room: int) -> int:
        nonlocal spoken
        if match[at] < min_match:
            return chain_kept(judged.kept, at, min(k, room), rng)
        spoken += 1
        return int(min(kept[at], k, room))

    emitted, steps = walked(len(judged.answer.token_ids), accept)
    return emitted, steps, spoken


def _best(tried: Mapping[int, Sequence[tuple[int, int, int]]], of: Sequence[int]) -> int:
    """The match with the most tokens a step over the answers numbered `of`; of equal ones the shortest, which drafts
    more of them for nothing.
    """

    def tokens_a_step(match: int) -> float:
        walks = [tried[match][i] for i in of]
        return sum(w[0] for w in walks) / max(sum(w[1] for w in walks), 1)

    return max(sorted(tried), key=tokens_a_step)


def _by_mode(answers: Sequence[JudgedAnswer], walks: Sequence[tuple[int, int, int]]) -> dict[str, float]:
    sums: dict[str, Walked] = defaultdict(Walked)
    for judged, walk in zip(answers, walks, strict=True):
        sums[judged.mode].add(CHOSEN_AT, *walk)
    return {mode: each.lengths[CHOSEN_AT] for mode, each in sorted(sums.items()) if each.lengths}


def _rounded(by_k: Mapping[int, float]) -> dict[int, float]:
    return {k: round(value, 4) for k, value in by_k.items()}
