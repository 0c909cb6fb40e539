"""Training of Medusa's heads."""

from __future__ import annotations

import torch

from workers.proposers.medusa_model import MedusaModel
from workers.training.batches import TrainingBatch
from workers.training.objective import Objective, Teacher


class MedusaObjective(Objective):
    """A position for each head."""

    def __init__(self, model: MedusaModel, teacher: Teacher) -> None:
        super().__init__(teacher, len(model.blocks))
        self.model: MedusaModel = model

    def outputs(self, batch: TrainingBatch) -> list[torch.Tensor]:
        outputs: list[torch.Tensor] = self.model(batch.last_hidden)
        return outputs

    def logits(self, output: torch.Tensor, step: int) -> torch.Tensor:
        return self.model.score(output, step, self.teacher.draft_head.to(output.dtype)).float()
