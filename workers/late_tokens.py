"""Draft tokens that a device knows and the host does not yet.

To read them, the host would wait for the device once a level of a draft. They need not be read: the next forward and
the verifier take them where they are, and the verifier's one transfer brings them along.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from workers.upload import index

STAND_IN = 0
"""What a late token is in lists on the host: some token of any vocabulary."""


class LateTokens:
    """tokens: [n] int64 on the device. places: of each, where a stand-in for it is, among draft tokens or rows."""

    def __init__(self, places: Sequence[int], tokens: torch.Tensor, values: list[int] | None = None) -> None:
        self.places, self.tokens = tuple(places), tokens
        self._values: list[int] = [] if values is None else values

    @classmethod
    def of(cls, placed: Sequence[tuple[int, torch.Tensor]]) -> LateTokens | None:
        """Tokens [1], each with its place; None where there are none."""
        return cls([place for place, _ in placed], torch.cat([token for _, token in placed])) if placed else None

    def at(self, places: Sequence[int], tokens: torch.Tensor | None = None) -> LateTokens:
        """The same at other places, and known when these are; tokens: in place of them, where others stand for them."""
        return LateTokens(places, self.tokens if tokens is None else tokens, self._values)

    def put(self, ids: torch.Tensor) -> None:
        """Have them in `ids` [m] int64, on their device, at their places."""
        ids.index_copy_(0, index(self.places, ids.device), self.tokens)

    def resolve(self, values: Sequence[int]) -> None:
        """Somebody has read them."""
        self._values[:] = values

    def read(self) -> list[int]:
        """On the host; the device is waited for unless somebody has read them."""
        if not self._values:
            self._values[:] = self.tokens.tolist()
        return self._values
