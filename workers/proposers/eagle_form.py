"""EAGLE's layer and LM head as a form: embedded tokens and features in, the next features and logits out."""

from __future__ import annotations

import torch
from torch import nn

from workers.compiled.form import Form, linears
from workers.compiled.opaque_attention import attend
from workers.proposers.eagle_model import EagleModel


class EagleForm(Form):
    """forward(tokens [1, rows, hidden], feature [1, rows, hidden], positions [1, rows] int64, keep [kept] int64).

    Returns logits [1, kept, draft vocabulary] and the outputs [1, rows, hidden]. head: [draft vocabulary, hidden],
    where the layer has none of its own.
    """

    dims = ({1: "rows"}, {1: "rows"}, {1: "rows"}, {0: "kept"})

    def __init__(self, model: EagleModel, head: torch.Tensor) -> None:
        super().__init__()
        self.model = model
        self.head = model.head if model.shape.own_rows else as_linear(head)

    @property
    def reducing(self) -> int:
        """The number of the weight that makes one feature of the target's layers."""
        return linears(self).index(self.model.reduce)

    def forward(
        self, tokens: torch.Tensor, feature: torch.Tensor, positions: torch.Tensor, keep: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        feature = self.model.join(tokens, feature)
        q, keys = self.model.attend(tokens, feature, positions[0])
        attended = attend(q, keys.k, keys.v, 0)
        output = self.model.finish(feature, attended.transpose(1, 2))
        return self.head(self.model.norm(output[:, keep])), output

    def example(self, rows: int, kept: int) -> tuple[torch.Tensor, ...]:
        shape = (1, rows, self.model.shape.hidden)
        tokens = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(self.model.norm.weight.dtype)
        return tokens, tokens.clone(), torch.arange(rows)[None], torch.arange(kept)


def as_linear(weight: torch.Tensor) -> nn.Linear:
    """A layer of that weight [out, in], without a copy."""
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    layer.weight = nn.Parameter(weight, requires_grad=False)
    return layer
