"""EAGLE drafts from the target's own features, with one decoder layer and KV slots of its own.

It is told the target's features of every position that stays, also while K is 0, and computes them only when it is to
propose: whatever it has missed is caught up first, so its KV never has a hole. Behind the last known position it goes
on from its own outputs; those it forgets, as the next step brings the target's features of the same positions.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate

import torch
from torch import nn
from torch.nn.functional import embedding

from controlplane.decision.ranks import ROOT
from kernels.packed_linear import packed_linear
from workers.attention import SlotCache, attention_sizes, keep_and_attend
from workers.compiled.compilable import Compilable
from workers.compiled.form import Form, linears
from workers.compiled.graph import CompiledGraph
from workers.kv_cache import BlockKV, KVSlots
from workers.late_tokens import LateTokens
from workers.proposers.base import NO_TREES, Proposal
from workers.proposers.eagle_form import EagleForm
from workers.proposers.eagle_model import EagleModel
from workers.proposers.growth import Growth, branch_all, growths_of, proposal_of
from workers.sequence import Sequence
from workers.step_layout import Rows, lay_out, padding
from workers.token_tree import TokenTree, Trees
from workers.upload import index

CATCH_UP_CHUNK = 128


@dataclass(frozen=True, slots=True)
class SharedWeights:
    """What a drafter uses of its target: embeddings [vocab, hidden] and LM head [vocab, hidden]."""

    embeddings: torch.Tensor
    head: torch.Tensor


@dataclass(slots=True)
class _EagleState:
    """A sequence's slot, the positions whose KV it holds, and the features [n, layers, hidden] of those after them."""

    slot: int
    fed: int = 0
    features: list[torch.Tensor] = field(default_factory=list)
    known: int = 0

    def keep_last(self) -> None:
        """All was fed; the last position stays to be fed again, should a draft be wanted of the same text once more."""
        self.features = [self.features[-1][-1:]]
        self.fed = self.known - 1


@dataclass(slots=True)
class _Draft:
    """A sequence's draft under way; outputs: of the layer [hidden], behind ROOT and each node with children."""

    state: _EagleState
    growth: Growth
    outputs: dict[int, torch.Tensor] = field(default_factory=dict)


class EagleProposer:
    """One forward of one layer a level, for the whole batch.

    A chain's tokens are computed one after the other. Of a tree, each level is computed with all levels above it again,
    for only rows of one forward can be kept from seeing each other; a row more costs little where one costs a forward.

    vocabulary: [size] int64, ascending ids that it may draft. version: which weights these are. trees: that it is to
    draft; none where its attention gathers keys, which knows no trees.
    """

    is_deterministic = False

    def __init__(
        self,
        model: EagleModel,
        vocabulary: torch.Tensor,
        shared: SharedWeights,
        num_slots: int,
        context: int,
        name: str = "eagle",
        version: str = "unknown",
        trees: Trees = NO_TREES,
    ) -> None:
        self.name, self.version = name, version
        self.feature_layers = model.shape.features
        shape, weight = model.shape, model.norm.weight
        self._model = model.train(False)
        self._vocabulary = vocabulary.to(weight.device)
        self._embeddings = shared.embeddings.detach()
        self._head = shared.head.detach()[self._vocabulary]
        self._target_vocab = shared.head.shape[0]
        self._slots = KVSlots(num_slots, context)
        heads = shape.kv_heads, shape.head_dim, weight.dtype, weight.device
        self._kv = BlockKV(self._slots.num_blocks, 1, *heads)
        self._sizes = attention_sizes(context, shape.heads, *heads)
        self.trees: Trees = trees if self._sizes is None else NO_TREES
        self._states: dict[str, _EagleState] = {}
        self._graph: CompiledGraph | None = None
        self._reducing = 0

    @property
    def compilables(self) -> tuple[Compilable, ...]:
        return (self,)

    def form(self) -> Form:
        return EagleForm(self._model, self._head)

    def tried_inputs(self, numbers: Seq[int]) -> tuple[torch.Tensor, ...]:
        rows = torch.tensor(list(numbers), device=self._head.device)
        tokens, features = (self._embeddings[(n * rows + 3) % min(len(self._embeddings), 997)][None] for n in (7, 11))
        return tokens, features, rows[None], torch.arange(len(rows))

    def adopt(self, graph: CompiledGraph) -> None:
        self._reducing = EagleForm(self._model, self._head).reducing
        self._graph = graph

    def drop_eager(self) -> None:
        """Of the head and the layer, only shapes and types are read from here on."""
        for layer in linears(self._model):
            layer.weight = nn.Parameter(torch.empty(0, dtype=layer.weight.dtype), requires_grad=False)
        self._head = self._head[:0].clone()

    def learn(self, sequence: Sequence, start: int, features: torch.Tensor) -> None:
        """Keep the features; those of a sequence whose beginning was never learnt are of no use."""
        request_id = sequence.request.request_id
        if start == 0 and request_id not in self._states:
            self._states[request_id] = _EagleState(self._slots.allocate())
        state = self._states.get(request_id)
        if state is not None and state.known == start:
            state.features.append(features)
            state.known += len(features)

    @torch.inference_mode()
    def propose(self, batch: Seq[Sequence], k: Seq[int], trees: Seq[TokenTree | None] = ()) -> Proposal:
        growths, positions = growths_of(batch, k, trees, self._is_ready, device=self._head.device), [0] * len(batch)
        drafts = {b: _Draft(self._state(batch[b]), growth) for b, growth in enumerate(growths) if growth.tokens}
        outputs, logits = self._catch_up([batch[b] for b in drafts]) if drafts else (torch.empty(0),) * 2
        for b, draft in drafts.items():
            positions[b] += draft.state.known - draft.state.fed
            draft.state.keep_last()
        front = [(b, ROOT) for b in drafts]
        level = 0
        while front:
            for (b, node), output in zip(front, outputs, strict=True):
                drafts[b].outputs[node] = output
            places = [(drafts[b].growth, node, row[None]) for (b, node), row in zip(front, logits, strict=True)]
            branch_all(places, self._vocabulary, self._target_vocab)
            front, outputs, logits = self._level(drafts, level, positions)
            level += 1
        return proposal_of(growths, positions)

    def _level(
        self, drafts: Mapping[int, _Draft], level: int, positions: list[int]
    ) -> tuple[list[tuple[int, int]], torch.Tensor, torch.Tensor]:
        """Compute the nodes of that level that have children: which they are, and the outputs [n, hidden] and logits
        [n, draft vocabulary] behind them.

        positions: computed of each sequence, counted on.
        """
        front: list[tuple[int, int]] = []
        rows: list[Rows] = []
        features: list[torch.Tensor] = []
        fresh: list[int] = []  # the front's among all rows
        late: list[tuple[int, torch.Tensor]] = []
        for b, draft in drafts.items():
            growth, tree, start = draft.growth, draft.growth.tree, len(draft.growth.sequence.token_ids) - 1
            blocks, nodes, parents = self._blocks(draft.state), tree.to_level(level), None
            if all(tree.depths[node] < level for node in nodes):
                continue
            if tree.is_chain:
                start, nodes = start + level, nodes[-1:]
            else:
                place = {node: row for row, node in enumerate(nodes)}
                parents = [place.get(tree.parents[node], ROOT) for node in nodes]
            for node in nodes:
                if tree.depths[node] == level:
                    fresh.append(len(features))
                    front.append((b, node))
                if growth.is_late:
                    late.append((len(features), growth.drawn[node]))
                features.append(draft.outputs[tree.parents[node]])
            rows.append(Rows(blocks, start, [growth.tokens[node] for node in nodes], parents))
            positions[b] += len(nodes)
        if not rows:
            return front, torch.empty(0), torch.empty(0)
        outputs, logits = self._layer(rows, torch.stack(features), fresh, LateTokens.of(late))
        return front, outputs[index(fresh, outputs.device)], logits

    def prime(self, batch: Seq[Sequence]) -> None:
        shape, weight = self._model.shape, self._model.norm.weight
        for sequence in batch:
            known = len(sequence.token_ids) - 1
            last = torch.zeros(1, len(shape.features), shape.hidden, dtype=weight.dtype, device=weight.device)
            state = _EagleState(self._slots.allocate(), known - 1, [last], known)
            self._states[sequence.request.request_id] = state

    def release(self, sequence: Sequence) -> None:
        state = self._states.pop(sequence.request.request_id, None)
        if state is not None:
            self._slots.free(state.slot)

    def _state(self, sequence: Sequence) -> _EagleState:
        return self._states[sequence.request.request_id]

    def _blocks(self, state: _EagleState) -> range:
        return self._slots.blocks(state.slot)

    def _is_ready(self, sequence: Sequence) -> bool:
        """Whether the target's features are known of every position but the last token's."""
        state = self._states.get(sequence.request.request_id)
        return state is not None and state.known == len(sequence.token_ids) - 1 and state.fed < state.known

    def _catch_up(self, sequences: Seq[Sequence]) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute all positions with known features that the slots do not hold.

        Returns of the last ones the outputs [n, hidden] and the logits [n, draft vocabulary].
        """
        states = [self._state(s) for s in sequences]
        waiting = [torch.cat(state.features) for state in states]
        last: list[tuple[torch.Tensor, torch.Tensor]] = [(torch.empty(0), torch.empty(0))] * len(states)
        for begin in range(0, max(map(len, waiting)), CATCH_UP_CHUNK):
            going = [i for i, features in enumerate(waiting) if len(features) > begin]
            rows = []
            for i in going:
                start = states[i].fed + begin
                chunk = len(waiting[i][begin : begin + CATCH_UP_CHUNK])
                # The feature of a position goes with the token after it.
                text = sequences[i].token_ids[start + 1 : start + 1 + chunk]
                rows.append(Rows(self._blocks(states[i]), start, text))
            features = torch.cat([waiting[i][begin : begin + CATCH_UP_CHUNK] for i in going])
            ends = [end - 1 for end in accumulate(len(row.token_ids) for row in rows)]
            outputs, logits = self._layer(rows, self._project(features), ends)
            for n, i in enumerate(going):
                last[i] = outputs[ends[n]], logits[n]
        return torch.stack([output for output, _ in last]), torch.stack([row for _, row in last])

    def _project(self, features: torch.Tensor) -> torch.Tensor:
        if self._graph is None:
            return self._model.project(features)
        self._graph.bank.choose()
        return packed_linear(features.flatten(-2), [self._reducing], [self._model.shape.hidden])

    def _layer(
        self, rows: list[Rows], feature: torch.Tensor, keep: Seq[int], late: LateTokens | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The layer's outputs [rows, hidden] for the rows' tokens with `feature` [rows, hidden]; writes their KV.

        Also the logits [len(keep), draft vocabulary] of the rows in `keep`. late: tokens of rows.
        """
        layout = lay_out(rows, keep, self._sizes).to(feature.device)
        layout.put(late)
        feature = torch.cat((feature, feature[:1].expand(padding(layout.num_rows), -1)))[None]
        tokens = embedding(layout.token_ids, self._embeddings)[None]
        cache = SlotCache(self._kv, layout)
        if self._graph is not None:
            attention = partial(keep_and_attend, cache)
            logits, outputs = self._graph(attention, tokens, feature, layout.positions[None], layout.kept)
            return outputs[0, : layout.num_rows], logits[0, : len(keep)]
        feature = self._model.join(tokens, feature)
        q, keys = self._model.attend(tokens, feature, layout.positions)
        attended = keep_and_attend(cache, 0, q, keys.k, keys.v)
        outputs = self._model.finish(feature, attended.transpose(1, 2))[0, : layout.num_rows]
        return outputs, self._model.logits(outputs[layout.kept[: len(keep)]], self._head)
