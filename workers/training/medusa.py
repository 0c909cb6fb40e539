"""Training of Medusa's heads: head j says from the last hidden state alone what comes j + 2 tokens later."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from workers.training.batches import TrainingBatch
from workers.training.objective import Objective, Teacher


class MedusaModel(nn.Module):
    """Residual blocks x + silu(W x + b), one a head (Cai et al. 2024, section 2.1.1), over the target's LM head.

    A block starts at zero, so that its head begins as the target's own.
    """

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        blocks = [nn.Linear(hidden, hidden) for _ in range(heads)]
        for block in blocks:
            nn.init.zeros_(block.weight)
            nn.init.zeros_(block.bias)
        self.blocks = nn.ModuleList(blocks)

    def forward(self, hidden: torch.Tensor) -> list[torch.Tensor]:
        """hidden: [..., hidden], after the final norm. One tensor of the same shape a head."""
        return [hidden + functional.silu(block(hidden)) for block in self.blocks]


class MedusaObjective(Objective):
    """A position for each head."""

    def __init__(self, model: MedusaModel, teacher: Teacher) -> None:
        super().__init__(teacher, len(model.blocks))
        self.model: MedusaModel = model

    def outputs(self, batch: TrainingBatch) -> list[torch.Tensor]:
        outputs: list[torch.Tensor] = self.model(batch.last_hidden)
        return outputs

    def logits(self, output: torch.Tensor) -> torch.Tensor:
        return functional.linear(output, self.teacher.draft_head.to(output.dtype)).float()
