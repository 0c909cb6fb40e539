"""Allocation against usage: a part's share of the cost beside its share of the tokens. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from controlplane.store.queries import CostReport
from dashboard import format as fmt

NAMED_MOST = 12
"""Points that have their name beside them: more would cover each other. All have it in the tooltip."""


@dataclass(frozen=True, slots=True)
class Placed:
    """One cohort or tenant. Shares in [0, 1], of all rows together. even: what each had if all were alike."""

    key: str
    token_share: float
    cost_share: float
    even: float

    @property
    def quadrant(self) -> str:
        """Which of the four it is in, as HELP explains them."""
        dear = self.cost_share >= self.even
        busy = self.token_share >= self.even
        return ("heavy" if busy else "underused") if dear else ("efficient" if busy else "small")

    @property
    def price_level(self) -> float | None:
        """Cost a token, by that of all rows together: 1 = as all, 2 = twice. None without tokens."""
        return self.cost_share / self.token_share if self.token_share else None


HELP = {
    "heavy": "heavy: much of the cost, many of the tokens. Its drafter and its K are worth the most work",
    "underused": "underused: much of the cost, few tokens. Look at idle time, load and acceptance",
    "efficient": "efficient: many tokens for little cost",
    "small": "small: little of either",
}


def placed(report: CostReport) -> list[Placed]:
    """Every priced row with its shares, the dearest first; nothing where no row has a cost or a token.

    With the report's idle rule: rows have their part of idle in their cost where it is spread.
    """
    rows = [(row.key, row.emitted_tokens, row.cost_nano) for row in report.rows]
    priced = [(key, tokens, nano) for key, tokens, nano in rows if nano is not None]
    tokens_of_all = sum(tokens for _, tokens, _ in priced)
    nano_of_all = sum(nano for *_, nano in priced)
    if not tokens_of_all or not nano_of_all:
        return []
    even = 1 / len(priced)
    found = [Placed(key, tokens / tokens_of_all, nano / nano_of_all, even) for key, tokens, nano in priced]
    return sorted(found, key=lambda each: (-each.cost_share, each.key))


def named(found: Sequence[Placed], most: int = NAMED_MOST) -> set[str]:
    """Keys of the points that get their name: the ones furthest from everything, by cost and tokens together."""
    ordered = sorted(found, key=lambda each: (-(each.cost_share + each.token_share), each.key))
    return {each.key for each in ordered[:most]}


def share_frame(found: Sequence[Placed], by: str) -> pd.DataFrame:
    """The same as a table, the dearest first. Against the average: what a token costs, by that of all rows together."""
    lines = [
        (
            each.key,
            f"{100 * each.token_share:.1f} %",
            f"{100 * each.cost_share:.1f} %",
            fmt.NOTHING if each.price_level is None else f"× {each.price_level:.2f}",
            each.quadrant,
        )
        for each in found
    ]
    return pd.DataFrame(lines, columns=[by.capitalize(), "Of tokens", "Of cost", "Against average", "Quadrant"])
