"""Which drafter a worker is to use, as `drafter` says it: the one place that reads its text."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

TRAINED = ("eagle", "medusa", "draft")
"""Kinds of drafters from `kadence train`: kind:folder, or the kind alone for the one that is shipped for the model."""
MODELS = ("draft_model", *TRAINED)
"""Kinds that compute their drafts, and so may be asked only where the n-gram index is silent."""
NGRAM_FIRST = "ngram+"

AUTO = "auto"
"""The drafter that is shipped for the model and was measured best, and ngram where there is none."""

CHOICES = (
    "must be auto, ngram, none, draft_model:<folder or hub id>, eagle, medusa or draft (the shipped one; yours is "
    f"eagle:<folder>); the last four also behind {NGRAM_FIRST}, such as {NGRAM_FIRST}eagle"
)


@dataclass(frozen=True, slots=True)
class DrafterChoice:
    """kind: auto, ngram, none or one of MODELS. where: folder (absolute for TRAINED; empty: the shipped one) or hub id.

    ngram_first: the n-gram index drafts, and this one only where that is silent.
    """

    kind: str
    where: str = ""
    ngram_first: bool = False

    @property
    def is_trained(self) -> bool:
        return self.kind in TRAINED

    @property
    def is_shipped(self) -> bool:
        """Whether the model's weights alone tell which folder it is."""
        return self.kind == AUTO or (self.is_trained and not self.where)

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
    if text in (AUTO, "ngram", "none"):
        return DrafterChoice(kind)
    if kind in TRAINED and not colon:
        return DrafterChoice(kind, "", ngram_first)
    if kind not in MODELS or not where.strip():
        raise ValueError(CHOICES)
    # Workers run in other folders than the command: a relative path would mean something else there.
    return DrafterChoice(kind, os.path.abspath(Path(where).expanduser()) if kind in TRAINED else where, ngram_first)
