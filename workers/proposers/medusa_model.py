"""Medusa's heads: head j says from the target's last hidden state alone what comes j + 2 tokens later."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class MedusaModel(nn.Module):
    """Residual blocks x + silu(W x + b), one a head (Cai et al. 2024, section 2.1.1), over the target's LM head.

    A block starts at zero, so that its head begins as the target's own. own_rows: of LM heads of its own, one a block;
    0 where all use the target's.
    """

    def __init__(self, hidden: int, heads: int, own_rows: int = 0) -> None:
        super().__init__()
        blocks = [nn.Linear(hidden, hidden) for _ in range(heads)]
        for block in blocks:
            nn.init.zeros_(block.weight)
            nn.init.zeros_(block.bias)
        self.blocks = nn.ModuleList(blocks)
        self.heads = nn.ModuleList(nn.Linear(hidden, own_rows, bias=False) for _ in range(heads if own_rows else 0))

    def forward(self, hidden: torch.Tensor) -> list[torch.Tensor]:
        """hidden: [..., hidden], after the final norm. One tensor of the same shape a head."""
        return [hidden + functional.silu(block(hidden)) for block in self.blocks]

    def logits(self, hidden: torch.Tensor, head: torch.Tensor, count: int) -> torch.Tensor:
        """[..., count, draft vocabulary] of the first `count` heads; head: [draft vocabulary, hidden], the target's."""
        outputs = self(hidden)[:count]
        return torch.stack([self.score(x, number, head) for number, x in enumerate(outputs)], dim=-2)

    def score(self, output: torch.Tensor, number: int, head: torch.Tensor) -> torch.Tensor:
        """[..., draft vocabulary] of an output of block `number`, by its own LM head or the target's `head`."""
        scored: torch.Tensor = self.heads[number](output) if len(self.heads) else functional.linear(output, head)
        return scored
