"""A causal language model as a form: embedded rows in, logits of some of them and all layers' outputs out."""

from __future__ import annotations

from typing import Any

import torch
from transformers import PreTrainedModel

from kernels.packed_linear import WeightBank
from workers.compiled.form import Form
from workers.compiled.opaque_attention import IMPLEMENTATION, TracedCache


class ModelForm(Form):
    """forward(embedded [1, rows, hidden], positions [1, rows] int64, keep [kept] int64).

    Returns logits [1, kept, vocab] and the hidden states [1, rows, hidden] of the embedding and of every layer.
    """

    dims = ({1: "rows"}, {1: "rows"}, {0: "kept"})

    def __init__(self, model: PreTrainedModel, cache_argument: str, bank: WeightBank | None = None) -> None:
        super().__init__()
        self.bank = bank
        self.cache_argument = cache_argument
        self.model = model
        embeddings: Any = model.get_input_embeddings()
        self.hidden = int(embeddings.weight.shape[1])
        self.dtype = model.dtype

    def forward(self, embedded: torch.Tensor, positions: torch.Tensor, keep: torch.Tensor) -> tuple[torch.Tensor, ...]:
        out = self.model(
            inputs_embeds=embedded,
            position_ids=positions,
            use_cache=True,
            logits_to_keep=keep,
            output_hidden_states=True,
            **{self.cache_argument: TracedCache()},
        )
        return out.logits, *out.hidden_states

    def example(self, rows: int, kept: int) -> tuple[torch.Tensor, ...]:
        embedded = torch.randn(1, rows, self.hidden, generator=torch.Generator().manual_seed(0)).to(self.dtype)
        return embedded, torch.arange(rows)[None], torch.arange(kept)

    def prepare(self) -> None:
        for module in self.model.modules():
            # Those by which transformers records hidden states: closures, which no other process can be given.
            module._forward_hooks.clear()
            vars(module).pop("_output_capturing_hooks_installed", None)
        self.model.set_attn_implementation(IMPLEMENTATION)

    def arrive(self) -> None:
        # transformers learns which outputs a class of models can record as it builds the first one of it.
        with torch.device("meta"):
            type(self.model)(self.model.config)
