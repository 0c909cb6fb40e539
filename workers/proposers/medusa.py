"""Medusa drafts from the target's last hidden state: a head for each position, without a forward of its own.

It is told the hidden state of every position that stays, also while K is 0, and keeps the last one: so it can be paused
and resumed by K at no cost.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch
from torch import nn

from controlplane.decision.ranks import ROOT
from workers.compiled.compilable import Compilable
from workers.compiled.form import Form, linears
from workers.compiled.graph import CompiledGraph
from workers.compiled.opaque_attention import own_rows
from workers.proposers.base import NO_TREES, Proposal
from workers.proposers.growth import branch_all, growths_of, proposal_of
from workers.proposers.medusa_form import MedusaForm
from workers.proposers.medusa_model import MedusaModel
from workers.sequence import Sequence
from workers.step_layout import padding
from workers.token_tree import TokenTree, Trees


@dataclass(slots=True)
class _Known:
    """How many positions of a sequence were told, and the hidden state [hidden] of the last of them."""

    positions: int
    last: torch.Tensor


class MedusaProposer:
    """A chain has at most as many draft tokens as there are heads, and a tree as many levels.

    vocabulary: [size] int64, ascending ids that it may draft. head: [vocab, hidden], the target's LM head.
    hidden_layer: 1-based number of the target's last decoder layer, whose output is handed on after the final norm.
    version: which weights these are. trees: that it is to draft; deeper ones are left out.
    """

    is_deterministic = False

    def __init__(
        self,
        model: MedusaModel,
        vocabulary: torch.Tensor,
        head: torch.Tensor,
        hidden_layer: int,
        name: str = "medusa",
        version: str = "unknown",
        trees: Trees = NO_TREES,
    ) -> None:
        self.name, self.version = name, version
        self._num_heads = len(model.blocks)
        self.trees: Trees = {count: tree for count, tree in trees.items() if tree.depth <= self._num_heads}
        self.feature_layers: tuple[int, ...] = (hidden_layer,)
        self._model = model.train(False)
        self._vocabulary = vocabulary.to(head.device)
        self._head = head.detach()[self._vocabulary]
        self._target_vocab = head.shape[0]
        self._known: dict[str, _Known] = {}
        self._graph: CompiledGraph | None = None

    @property
    def compilables(self) -> tuple[Compilable, ...]:
        return (self,)

    def form(self) -> Form:
        return MedusaForm(self._model, self._head)

    def tried_inputs(self, numbers: Seq[int]) -> tuple[torch.Tensor, ...]:
        rows = torch.tensor(list(numbers), device=self._head.device)
        return (self._head[(7 * rows + 3) % min(len(self._head), 997)][None],)

    def adopt(self, graph: CompiledGraph) -> None:
        self._graph = graph

    def drop_eager(self) -> None:
        """Nothing is freed but what the heads have of their own: they are small, and so is a truncated LM head."""
        for layer in linears(self._model):
            layer.weight = nn.Parameter(torch.empty(0, dtype=layer.weight.dtype), requires_grad=False)

    def learn(self, sequence: Sequence, start: int, features: torch.Tensor) -> None:
        """Keep the last of them; those of a sequence whose beginning was never learnt are of no use."""
        request_id = sequence.request.request_id
        known = self._known.get(request_id)
        if len(features) and start == (0 if known is None else known.positions):
            self._known[request_id] = _Known(start + len(features), features[-1, 0])

    @torch.inference_mode()
    def propose(self, batch: Seq[Sequence], k: Seq[int], trees: Seq[TokenTree | None] = ()) -> Proposal:
        growths = growths_of(batch, k, trees, self._is_ready, self._num_heads, self._head.device)
        active = [growth for growth in growths if growth.tokens]
        if active:
            hidden = torch.stack([self._known[growth.sequence.request.request_id].last for growth in active])
            logits = self._logits(hidden, max(growth.tree.depth for growth in active))
            for depth in range(logits.shape[1]):
                places = [
                    (growth, node, own[depth, None])
                    for growth, own in zip(active, logits, strict=True)
                    for node in range(ROOT, len(growth.tree))
                    if depth == (0 if node == ROOT else growth.tree.depths[node] + 1)
                ]
                branch_all(places, self._vocabulary, self._target_vocab)
        return proposal_of(growths, [int(bool(growth.tokens)) for growth in growths])

    def _logits(self, hidden: torch.Tensor, heads: int) -> torch.Tensor:
        """[n, heads, draft vocabulary] of hidden [n, hidden]; of all heads where they are compiled."""
        if self._graph is None:
            return self._model.logits(hidden, self._head, heads)
        padded = torch.cat((hidden, hidden[:1].expand(padding(len(hidden)), -1)))
        return self._graph(own_rows, padded[None])[0][0, : len(hidden), :heads]

    def prime(self, batch: Seq[Sequence]) -> None:
        for sequence in batch:
            last = torch.zeros_like(self._head[0])
            self._known[sequence.request.request_id] = _Known(len(sequence.token_ids) - 1, last)

    def release(self, sequence: Sequence) -> None:
        self._known.pop(sequence.request.request_id, None)

    def _is_ready(self, sequence: Sequence) -> bool:
        """Whether the hidden state of the position before the last token's is known."""
        known = self._known.get(sequence.request.request_id)
        return known is not None and known.positions == len(sequence.token_ids) - 1
