"""Which drafter a worker is to use, as `drafter` says it: the one place that reads its text."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

TRAINED = ("eagle", "medusa", "draft")
"""Kinds of drafters from `kadence train`, given as kind:folder."""
MODELS = ("draft_model", *TRAINED)
"""Kinds that compute their drafts, and so may be asked only where the n-gram index is silent."""
NGRAM_FIRST = "ngram+"

CHOICES = (
    "must be ngram, none, draft_model:<folder or hub id>, eagle:<folder>, medusa:<folder> or draft:<folder>; "
    f"the last four also behind {NGRAM_FIRST}, such as {NGRAM_FIRST}eagle:<folder>"
)


@dataclass(frozen=True, slots=True)
class DrafterChoice:
    """kind: ngram, none or one of MODELS. where: folder (absolute for TRAINED) or hub id, of MODELS.

    ngram_first: the n-gram index drafts, and this one only where that is silent.
    """

    kind: str
    where: str = ""
    ngram_first: bool = False

    @property
    def is_trained(self) -> bool:
        return self.kind in TRAINED

    @property
    def alone(self) -> DrafterChoice:
        """The same without the n-gram index before it."""
        return replace(self, ngram_first=False)

    def __str__(self) -> str:
        """As `drafter` takes it."""
        prefix = NGRAM_FIRST if self.ngram_first else ""
        return f"{prefix}{self.kind}:{self.where}" if self.where else f"{prefix}{self.kind}"


def parse_drafter(text: str) -> DrafterChoice:
    """Raises ValueError, which says what is allowed."""
    ngram_first = text.startswith(NGRAM_FIRST)
    kind, colon, where = text.removeprefix(NGRAM_FIRST).partition(":")
    if text in ("ngram", "none"):
        return DrafterChoice(kind)
    if kind not in MODELS or not colon or not where.strip():
        raise ValueError(CHOICES)
    # Workers run in other folders than the command: a relative path would mean something else there.
    return DrafterChoice(kind, os.path.abspath(Path(where).expanduser()) if kind in TRAINED else where, ngram_first)
