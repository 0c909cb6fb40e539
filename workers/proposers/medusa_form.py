"""Medusa's heads as a form: hidden states in, the logits of all heads out."""

from __future__ import annotations

import torch

from workers.compiled.form import Form
from workers.proposers.eagle_form import as_linear
from workers.proposers.medusa_model import MedusaModel


class MedusaForm(Form):
    """forward(hidden [1, rows, hidden]) returns logits [1, rows, heads, draft vocabulary].

    head: [draft vocabulary, hidden], where the heads have none of their own.
    """

    dims = ({1: "rows"},)

    def __init__(self, model: MedusaModel, head: torch.Tensor) -> None:
        super().__init__()
        self.model = model
        self.head = None if len(model.heads) else as_linear(head)
        self.dtype, self.hidden = head.dtype, head.shape[1]

    def forward(self, hidden: torch.Tensor) -> tuple[torch.Tensor]:
        outputs = self.model(hidden)
        if self.head is not None:
            return (self.head(torch.stack(outputs, -2)),)
        return (torch.stack([head(output) for head, output in zip(self.model.heads, outputs, strict=True)], -2),)

    def example(self, rows: int, kept: int) -> tuple[torch.Tensor, ...]:
        shape = (1, rows, self.hidden)
        return (torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(self.dtype),)
