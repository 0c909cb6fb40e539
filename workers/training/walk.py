"""What acceptance by position is worth: the walk that speculative decoding would have taken along the target's text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

NGRAM = 8


def conditional_acceptance(kept: NDArray[np.float64], taught: NDArray[np.bool_]) -> list[tuple[float, float]]:
    """By position: (expected drafts kept there, expected drafts that got there), over every anchor of a text.

    kept: [depth, anchors], the probability of each position given those before it. taught: [depth, anchors], where the
    text goes on that far.
    """
    counts = []
    alive = np.ones(kept.shape[1])
    for probabilities, is_taught in zip(kept, taught, strict=True):
        reached = alive * is_taught
        alive = reached * probabilities
        counts.append((float(alive.sum()), float(reached.sum())))
    return counts


def walk(kept: NDArray[np.float64], k: int, tokens: int, rng: np.random.Generator) -> tuple[int, int]:
    """(tokens emitted, steps) of a decoding with chains of `k` along `tokens` tokens of the text.

    kept: [depth, anchors], anchor 0 being where the answer's first token, which prefill gives, is known. Each position
    is kept with its probability, so that at temperature 0 nothing is left to chance.
    """
    return walked(tokens, lambda at, room: chain_kept(kept, at, min(k, room), rng))


def walked(tokens: int, accept: Callable[[int, int], int]) -> tuple[int, int]:
    """(tokens emitted, steps) along `tokens` tokens of a text.

    accept(at, room): how many drafts of the step behind anchor `at` are kept, at most `room`, where the text ends.
    """
    emitted = steps = at = 0
    while at < tokens - 1:
        room = tokens - 1 - at
        progress = min(accept(at, room) + 1, room)
        emitted, steps, at = emitted + progress, steps + 1, at + progress
    return emitted, steps


def chain_kept(kept: NDArray[np.float64], at: int, room: int, rng: np.random.Generator) -> int:
    """How many of a chain of `room` drafts behind anchor `at` are kept; kept: as in `walk`."""
    accepted, room = 0, min(room, len(kept))
    while accepted < room and rng.random() < kept[accepted, at]:
        accepted += 1
    return accepted


def in_loop(token_ids: Sequence[int], n: int = NGRAM) -> NDArray[np.bool_]:
    """[tokens]: whether the n-gram that ends there was in the text before."""
    seen: set[tuple[int, ...]] = set()
    found = np.zeros(len(token_ids), dtype=bool)
    for end in range(n, len(token_ids) + 1):
        gram = tuple(token_ids[end - n : end])
        found[end - 1] = gram in seen
        seen.add(gram)
    return found


def repeated_share(token_ids: Sequence[int], n: int = NGRAM) -> float:
    """Share of the text's n-grams that it had already: how much of it is a loop. 0 where it is shorter than n."""
    grams = Counter(tuple(token_ids[i : i + n]) for i in range(len(token_ids) - n + 1))
    total = sum(grams.values())
    return 1 - len(grams) / total if total else 0.0
