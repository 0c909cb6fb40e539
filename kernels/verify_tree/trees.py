"""What a verification of trees is asked and what it answers."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass

import torch

from kernels.verify.verdict import LOGIT_TYPES

MAX_NODES = 512
"""Of one tree: a program walks a tree with its nodes in registers."""


@dataclass(frozen=True, slots=True)
class TreeVerdict:
    """Outcome of one draft-verify step for a batch of B trees; D is the depth limit.

    num_accepted: [B] i32, depth of the accepted path. accepted_nodes: [B, D] i32, index of the accepted node among the
    sequence's nodes for each depth, then -1. token_ids: [B, D + 1] i64, the accepted tokens, then the recovered or
    bonus token, then -1.
    num_examined: [B, D] i32, how many siblings were tried at each depth: the accepted one and those before it, or all
    when none stood; 0 where nothing was tried. accepted_rank: [B, D] i32, rank of the accepted one among its siblings,
    -1 where none was. Rank r was at risk at a depth where num_examined > r.
    overlap: [num_nodes] f32, the probability that a node tried stands, given its place and the siblings tried before,
    over the draw of its token: sum over the vocabulary of min(residual, draft_probs); NaN for nodes not tried. For a
    greedy row and for a proposal without draft logits the draft distribution is one-hot. On coupled rows with draft
    logits only first siblings have it.
    """

    num_accepted: torch.Tensor
    accepted_nodes: torch.Tensor
    token_ids: torch.Tensor
    num_examined: torch.Tensor
    accepted_rank: torch.Tensor
    overlap: torch.Tensor


@dataclass(frozen=True, slots=True)
class TreeLimits:
    """What the host knows of the trees of a batch: bounds, not necessarily reached."""

    depth: int
    children: int
    nodes: int


def measure_limits(parents: torch.Tensor, cu_nodes: torch.Tensor) -> TreeLimits:
    """Exact limits, read from the tensors; malformed ones are left for `Trees` to name."""
    bounds, flat = cu_nodes.reshape(-1).tolist(), parents.reshape(-1).tolist()
    deepest = widest = largest = 0
    for start, end in itertools.pairwise(bounds):
        tree = flat[start:end]
        depths: list[int] = []
        for parent in tree:
            depths.append(1 + (depths[parent] if 0 <= parent < len(depths) else 0))
        deepest = max(deepest, *depths, 0)
        widest = max(widest, *Counter(tree).values(), 0)
        largest = max(largest, len(tree))
    return TreeLimits(deepest, widest, largest)


@dataclass(frozen=True, slots=True)
class Trees:
    """The validated arguments of `verify_tree`; shapes and meaning as there."""

    target_logits: torch.Tensor
    draft_token_ids: torch.Tensor
    parents: torch.Tensor
    draft_logits: torch.Tensor | None
    cu_nodes: torch.Tensor
    temperature: torch.Tensor
    seeds: torch.Tensor
    positions: torch.Tensor
    coupled: torch.Tensor
    limits: TreeLimits

    def __post_init__(self) -> None:
        self._check_types()
        self._check_shapes()
        # Reading values of a device tensor would stall the stream, so only host tensors are checked further.
        if self.cu_nodes.device.type == "cpu":
            self._check_values()

    def _check_types(self) -> None:
        if self.target_logits.dtype not in LOGIT_TYPES:
            raise ValueError(f"target_logits is {self.target_logits.dtype}; it must be float32, bfloat16 or float16")
        if self.target_logits.ndim != 2 or self.target_logits.shape[1] < 1:
            raise ValueError(
                f"target_logits has shape {tuple(self.target_logits.shape)}; it must be [rows, vocabulary]"
            )
        if self.draft_logits is not None and self.draft_logits.dtype != self.target_logits.dtype:
            raise ValueError(f"draft_logits is {self.draft_logits.dtype}; cast it to {self.target_logits.dtype}")
        for name, wanted in (
            ("draft_token_ids", torch.int64),
            ("parents", torch.int32),
            ("cu_nodes", torch.int32),
            ("temperature", torch.float32),
            ("seeds", torch.int64),
            ("positions", torch.int64),
            ("coupled", torch.bool),
        ):
            value: torch.Tensor = getattr(self, name)
            if value.dtype != wanted:
                raise ValueError(f"{name} is {value.dtype}; it must be {wanted}")
            if value.ndim != 1:
                raise ValueError(f"{name} has shape {tuple(value.shape)}; it must have one dimension")
        for name in ("draft_token_ids", "parents", "draft_logits", "cu_nodes", "temperature", "seeds", "positions",
                     "coupled"):  # fmt: skip
            value = getattr(self, name)
            if value is not None and value.device != self.target_logits.device:
                raise ValueError(f"{name} is on {value.device}, not on {self.target_logits.device}; move one")

    def _check_shapes(self) -> None:
        batch, num_nodes = len(self.temperature), len(self.draft_token_ids)
        for name, wanted in (
            ("parents", num_nodes), ("cu_nodes", batch + 1), ("seeds", batch), ("positions", batch), ("coupled", batch)
        ):  # fmt: skip
            if len(getattr(self, name)) != wanted:
                raise ValueError(
                    f"{name} has {len(getattr(self, name))} entries; {num_nodes} nodes of {batch} sequences "
                    f"need {wanted}"
                )
        if len(self.target_logits) != num_nodes + batch:
            raise ValueError(
                f"target_logits has {len(self.target_logits)} rows; {num_nodes} nodes of {batch} sequences "
                f"need {num_nodes + batch}"
            )
        if self.draft_logits is not None and self.draft_logits.shape != self.target_logits.shape:
            raise ValueError(
                f"draft_logits has shape {tuple(self.draft_logits.shape)}; it must be that of target_logits, "
                f"{tuple(self.target_logits.shape)}"
            )
        for field, name in (("depth", "max_depth"), ("children", "max_children"), ("nodes", "max_nodes")):
            limit = getattr(self.limits, field)
            if not 0 <= limit <= MAX_NODES:
                raise ValueError(f"{name} is {limit}; it must lie in [0, {MAX_NODES}]")

    def _check_values(self) -> None:
        bounds, num_nodes = self.cu_nodes.tolist(), len(self.draft_token_ids)
        if bounds[0] != 0 or bounds[-1] != num_nodes or any(a > b for a, b in itertools.pairwise(bounds)):
            raise ValueError(f"cu_nodes is {bounds}; it must rise from 0 to {num_nodes}, the number of nodes")
        flat = self.parents.tolist()
        for b, (start, end) in enumerate(itertools.pairwise(bounds)):
            for node, parent in enumerate(flat[start:end]):
                if not -1 <= parent < node:
                    raise ValueError(
                        f"parents says {parent} for node {node} of sequence {b}; it must be -1 or a node before it"
                    )
        found = measure_limits(self.parents, self.cu_nodes)
        for field, name in (("depth", "max_depth"), ("children", "max_children"), ("nodes", "max_nodes")):
            if getattr(self.limits, field) < getattr(found, field):
                raise ValueError(f"{name} is {getattr(self.limits, field)}, but a tree has {getattr(found, field)}")
        vocab_size = self.target_logits.shape[1]
        if num_nodes and not 0 <= int(self.draft_token_ids.min()) <= int(self.draft_token_ids.max()) < vocab_size:
            raise ValueError(f"draft_token_ids must lie in [0, {vocab_size})")
        if not bool(((self.temperature >= 0) & self.temperature.isfinite()).all()):
            raise ValueError(f"temperature is {self.temperature.tolist()}; each must be finite and at least 0")
