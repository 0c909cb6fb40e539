"""Acceptance that is published for texts like ours, of large models with drafters trained for long, and its order."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

PUBLISHED: Mapping[str, tuple[int, int]] = {
    "code": (75, 85),
    "json": (80, 92),
    "contract": (65, 75),
    "fiction": (40, 55),
}
"""Per cent, by domain."""


def range_text(domain: str) -> str:
    """Such as 75-85 %; empty for a domain of which nothing is published."""
    return "{}-{} %".format(*PUBLISHED[domain]) if domain in PUBLISHED else ""


def against_published(measured: Mapping[str, float]) -> tuple[int, list[tuple[str, str]]]:
    """Pairs of domains that were measured, and those of them, (higher, lower) as measured, that are published the other
    way round. By the middle of the ranges.
    """
    pairs = list(combinations((domain for domain in PUBLISHED if domain in measured), 2))
    others = []
    for pair in pairs:
        higher, lower = sorted(pair, key=lambda domain: -measured[domain])
        if sum(PUBLISHED[higher]) < sum(PUBLISHED[lower]):
            others.append((higher, lower))
    return len(pairs), others
