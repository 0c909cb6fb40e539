"""Training of a student: a small model of its own, distilled from the target's distribution."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from workers.training.batches import TrainingBatch, shifted
from workers.training.objective import Objective, Teacher

DEPTH = 8
"""Positions that it is judged at; it is taught one, since a language model knows no other."""


class StudentObjective(Objective):
    """A causal model, so that each position beyond the first is the first one of a longer text."""

    taught = 1

    def __init__(self, decoder: Any, teacher: Teacher) -> None:
        super().__init__(teacher, DEPTH)
        self.model = decoder

    def outputs(self, batch: TrainingBatch) -> list[torch.Tensor]:
        embedded = self.teacher.embeddings[batch.token_ids]
        hidden = self.model(inputs_embeds=embedded, use_cache=False).last_hidden_state
        return [shifted(hidden, step + 1) for step in range(self.depth)]

    def logits(self, output: torch.Tensor, step: int) -> torch.Tensor:
        return functional.linear(output, self.teacher.draft_head.to(output.dtype)).float()
