"""Verification of draft trees: accept one path from the root and add one token of the target's own."""

from __future__ import annotations

import torch

from kernels.launch import Backend, choose_backend
from kernels.verify_tree import naive
from kernels.verify_tree.trees import TreeLimits, Trees, TreeVerdict, measure_limits

__all__ = ["TreeVerdict", "verify_tree"]


def verify_tree(
    target_logits: torch.Tensor,
    draft_token_ids: torch.Tensor,
    parents: torch.Tensor,
    draft_logits: torch.Tensor | None,
    cu_nodes: torch.Tensor,
    temperature: torch.Tensor,
    seeds: torch.Tensor,
    positions: torch.Tensor,
    coupled: torch.Tensor,
    *,
    backend: Backend = "auto",
    max_depth: int | None = None,
    max_children: int | None = None,
    max_nodes: int | None = None,
) -> TreeVerdict:
    """Verify B trees of draft tokens, ragged and in mixed sampling modes, without a [rows, V] probability tensor.

    target_logits: [num_nodes + B, V] float32, bfloat16 or float16. Sequence b has rows from cu_nodes[b] + b on: the
    root's (the token before the tree), then one for each of its nodes. -inf masks a token; each row needs a finite
    logit. Logits come after top-k, top-p and penalties but before temperature.
    draft_token_ids: [num_nodes] i64. parents: [num_nodes] i32, the parent's index among the sequence's nodes, below the
    node's own, or -1 for a child of the root; siblings are tried in the order of their indices.
    draft_logits: [num_nodes + B, V] of target_logits' dtype, rows as there: what the children of that row were drawn
    from, one after the other without replacement, before the temperature (a row whose finite logits are used up gives
    uniform draws over all untried tokens). Rows without children are not read. None when children are deterministic.
    cu_nodes: [B + 1] i32, rising from 0 to num_nodes; a sequence without nodes is plain sampling.
    temperature, seeds, positions, coupled: [B], as in `kernels.verify.verify_chain`; a token at depth d (0 for the
    root's children) has the random numbers of position + d.
    max_depth, max_children, max_nodes: the deepest tree, the most siblings and the largest tree, if the caller knows
    them; without all three a device tensor costs a synchronisation.

    Greedy and coupled rows follow the child that is the target's own token, the first of equal siblings. Other rows use
    recursive rejection without replacement (Chen et al. 2024, "Sequoia", algorithm 2), which is exact.

    Raises ValueError for arguments that do not fit together, BackendUnavailable for a named backend that cannot run.
    """
    if max_depth is None or max_children is None or max_nodes is None:
        found = measure_limits(parents, cu_nodes)
    else:
        found = TreeLimits(max_depth, max_children, max_nodes)
    limits = TreeLimits(
        found.depth if max_depth is None else max_depth,
        found.children if max_children is None else max_children,
        found.nodes if max_nodes is None else max_nodes,
    )
    trees = Trees(
        target_logits, draft_token_ids, parents, draft_logits, cu_nodes, temperature, seeds, positions, coupled, limits
    )
    if choose_backend(backend, target_logits.device) == "naive":
        return naive.verify_tree(trees)
    from kernels.verify_tree import fused  # here, so that nobody imports Triton who does not run it

    return fused.verify_tree(trees)
