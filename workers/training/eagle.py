"""Training of EAGLE's drafter on its own features (training-time test, EAGLE-3 section 3.2)."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from workers.proposers.eagle_model import EagleModel, Keys, attend_unrolled
from workers.training.batches import TrainingBatch, shifted
from workers.training.features import Example
from workers.training.objective import Objective, Teacher

SMALLEST = 1e-3
"""Of a feature's dimension: one that is always zero must not be divided by it."""


def feature_scale(examples: Iterable[Example]) -> torch.Tensor:
    """[layers, hidden] fp32: root mean square of each dimension over the answers' tokens (a prompt's first is unlike
    all others).
    """
    rows = torch.cat([example.features[example.answer_start :].float() for example in examples])
    return rows.pow(2).mean(0).sqrt().clamp(min=SMALLEST)


class EagleObjective(Objective):
    """`depth` unrolled steps from every anchor of a text at once."""

    def __init__(self, model: EagleModel, teacher: Teacher, depth: int) -> None:
        super().__init__(teacher, depth)
        self.model: EagleModel = model

    def outputs(self, batch: TrainingBatch) -> list[torch.Tensor]:
        length = batch.token_ids.shape[1]
        mask = torch.full((length, length), -torch.inf).triu(1)
        positions = torch.arange(length)
        feature = self.model.project(batch.features)
        seen: list[Keys] = []
        outputs = []
        for step in range(self.depth):
            tokens = self.teacher.embeddings[shifted(batch.token_ids, step + 1)]
            feature = self.model.join(tokens, feature)
            q, keys = self.model.attend(tokens, feature, positions + step)
            seen.append(keys)
            feature = self.model.finish(feature, attend_unrolled(q, seen, mask.to(q.dtype)))
            outputs.append(feature)
        return outputs

    def logits(self, output: torch.Tensor, step: int) -> torch.Tensor:
        return self.model.logits(output, self.teacher.draft_head.to(output.dtype)).float()
