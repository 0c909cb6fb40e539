"""Medusa's heads: head j says from the target's last hidden state alone what comes j + 2 tokens later."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


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
