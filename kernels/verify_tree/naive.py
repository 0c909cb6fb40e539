"""The definition of tree verification, one row at a time in plain PyTorch; reads only rows that the walk reaches."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch

from kernels.verify.noise import Purpose, gumbel_noise, uniforms
from kernels.verify.verdict import GREEDY_BELOW
from kernels.verify_tree import rejection
from kernels.verify_tree.trees import Trees, TreeVerdict

ROOT = -1


@dataclass(frozen=True, slots=True)
class _Tree:
    """One sequence's part of the batch; rows and nodes are counted from its own root, overlap [nodes] is written."""

    target_logits: torch.Tensor
    draft_logits: torch.Tensor | None
    draft_token_ids: list[int]
    children: dict[int, list[int]]
    inverse_temperature: float
    is_greedy: bool
    is_coupled: bool
    seed: torch.Tensor
    position: torch.Tensor
    uniforms: list[list[float]]
    """[depth][rank]"""
    overlap: torch.Tensor

    def target_scores(self, node: int) -> torch.Tensor:
        return self.target_logits[node + 1].float() * self.inverse_temperature

    def target_probs(self, node: int) -> torch.Tensor:
        return torch.softmax(self.target_scores(node), -1)

    def draft_probs(self, node: int, tried: list[int], token: int, like: torch.Tensor) -> torch.Tensor:
        """What the child `token` of `node` was drawn from, when its siblings `tried` had been drawn before it."""
        if self.draft_logits is None:
            return rejection.one_hot(like, token)
        return rejection.draft_probs_of(self.draft_logits[node + 1].float() * self.inverse_temperature, tried)

    def noise(self, depth: int, purpose: Purpose) -> torch.Tensor:
        vocab_size = self.target_logits.shape[1]
        return gumbel_noise(self.seed[None], (self.position + depth)[None], vocab_size, purpose)[0]


@dataclass(frozen=True, slots=True)
class _Choice:
    """What happened among the children of one node: the accepted child, or the token emitted in its place."""

    child: int | None
    num_examined: int
    token: int


def verify_tree(trees: Trees) -> TreeVerdict:
    """Walk every tree until no child stands; see `kernels.verify_tree.verify_tree`."""
    device = trees.target_logits.device
    bounds, parents = trees.cu_nodes.tolist(), trees.parents.tolist()
    # Compared as float32, which is what a kernel compares.
    token_ids, is_greedy = trees.draft_token_ids.tolist(), (trees.temperature < GREEDY_BELOW).tolist()
    inverse_temperatures, coupled = (1.0 / trees.temperature).tolist(), trees.coupled.tolist()
    overlap = torch.full((len(token_ids),), torch.nan, dtype=torch.float32, device=device)
    drawn = _acceptance_uniforms(trees)
    walks: list[list[_Choice]] = []
    for b, (start, end) in enumerate(itertools.pairwise(bounds)):
        children: dict[int, list[int]] = {}
        for node, parent in enumerate(parents[start:end]):
            children.setdefault(parent, []).append(node)
        rows = slice(start + b, end + b + 1)
        tree = _Tree(
            target_logits=trees.target_logits[rows],
            draft_logits=None if trees.draft_logits is None else trees.draft_logits[rows],
            draft_token_ids=token_ids[start:end],
            children=children,
            inverse_temperature=inverse_temperatures[b],
            is_greedy=is_greedy[b],
            is_coupled=coupled[b],
            seed=trees.seeds[b],
            position=trees.positions[b],
            uniforms=drawn[b],
            overlap=overlap[start:end],
        )
        walks.append(_walk(tree))
    return _verdict(walks, trees.limits.depth, overlap)


def _acceptance_uniforms(trees: Trees) -> list[list[list[float]]]:
    """[B][depth][rank], drawn at once: it is a hundred array operations however few the numbers."""
    limits, batch = trees.limits, len(trees.seeds)
    if not limits.depth or bool((trees.coupled | (trees.temperature < GREEDY_BELOW)).all()):
        return [[] for _ in range(batch)]
    depths = torch.arange(limits.depth, device=trees.seeds.device)
    positions = (trees.positions[:, None] + depths).reshape(-1)
    drawn = uniforms(trees.seeds.repeat_interleave(limits.depth), positions, limits.children, Purpose.ACCEPT)
    nested: list[list[list[float]]] = drawn.reshape(batch, limits.depth, limits.children).tolist()
    return nested


def _walk(tree: _Tree) -> list[_Choice]:
    """Descend from the root while a child stands."""
    choices: list[_Choice] = []
    node = ROOT
    while True:
        own_choice = tree.is_greedy or tree.is_coupled
        choice = (_follow_own_choice if own_choice else _try_children)(tree, node, len(choices))
        choices.append(choice)
        if choice.child is None:
            return choices
        node = choice.child


def _follow_own_choice(tree: _Tree, node: int, depth: int) -> _Choice:
    """Accept the child that holds the target's own token, which is emitted in every case.

    So the text depends neither on the drafter nor on the tree. Of equal siblings the first is taken.
    """
    if tree.is_greedy:
        token = _argmax(tree.target_logits[node + 1].float())
    else:
        token = _argmax(tree.target_scores(node) + tree.noise(depth, Purpose.COUPLED))
    children = tree.children.get(node, [])
    tokens = [tree.draft_token_ids[child] for child in children]
    rank = tokens.index(token) if token in tokens else None
    num_examined = len(children) if rank is None else rank + 1
    if tree.is_greedy:
        for r in range(num_examined):
            tree.overlap[children[r]] = float(r == rank)
    elif num_examined:
        residual = tree.target_probs(node)
        # A later sibling's chance under rejection has no meaning where none of the earlier was rejected by it.
        for r in range(num_examined if tree.draft_logits is None else 1):
            draft_probs = tree.draft_probs(node, [], tokens[r], residual)
            tree.overlap[children[r]] = rejection.overlap_of(residual, draft_probs)
            residual = rejection.residual_after(residual, draft_probs)
    return _Choice(None if rank is None else children[rank], num_examined, token)


def _try_children(tree: _Tree, node: int, depth: int) -> _Choice:
    """Recursive rejection sampling among the children of `node`."""
    children = tree.children.get(node, [])
    if not children:
        return _Choice(None, 0, _argmax(tree.target_scores(node) + tree.noise(depth, Purpose.RESAMPLE)))
    target_probs = residual = tree.target_probs(node)
    tried: list[int] = []
    for rank, child in enumerate(children):
        token = tree.draft_token_ids[child]
        draft_probs = tree.draft_probs(node, tried, token, residual)
        tree.overlap[child] = rejection.overlap_of(residual, draft_probs)
        # Strict, so that a token that the target gives no probability never passes.
        if tree.uniforms[depth][rank] < rejection.acceptance(residual, draft_probs, token):
            return _Choice(child, rank + 1, token)
        residual = rejection.residual_after(residual, draft_probs)
        tried.append(token)
    # By rounding alone: rejections that were next to impossible leave nothing.
    weights = residual if bool((residual > 0).any()) else target_probs
    return _Choice(None, len(children), _argmax(weights.log() + tree.noise(depth, Purpose.RESAMPLE)))


def _argmax(scores: torch.Tensor) -> int:
    """The lowest of the best tokens. numpy's is ten times as fast as torch's on a CPU, and a vocabulary is long."""
    return int(scores.cpu().numpy().argmax())


def _verdict(walks: list[list[_Choice]], max_depth: int, overlap: torch.Tensor) -> TreeVerdict:
    def table(rows: list[list[int]], width: int, filler: int, dtype: torch.dtype) -> torch.Tensor:
        padded = [(row + [filler] * (width - len(row)))[:width] for row in rows]
        return torch.tensor(padded, dtype=dtype, device=overlap.device).reshape(len(rows), width)

    paths = [[c.child for c in walk if c.child is not None] for walk in walks]
    ranks = [[-1 if c.child is None else c.num_examined - 1 for c in walk] for walk in walks]
    return TreeVerdict(
        num_accepted=torch.tensor([len(path) for path in paths], dtype=torch.int32, device=overlap.device),
        accepted_nodes=table(paths, max_depth, -1, torch.int32),
        token_ids=table([[c.token for c in walk] for walk in walks], max_depth + 1, -1, torch.int64),
        num_examined=table([[c.num_examined for c in walk] for walk in walks], max_depth, 0, torch.int32),
        accepted_rank=table(ranks, max_depth, -1, torch.int32),
        overlap=overlap,
    )
