"""Whether the rows of a token tree have the bits of its chains: tried out on the device, with the model itself.

Greedy and seeded text must not depend on the shape of a draft. Attention is asked for that (`kernels.attention`), and
no library promises the rest.
"""

from __future__ import annotations

import torch

from workers.kv_cache import blocks_for
from workers.model_runner import ModelRunner
from workers.step_layout import Rows
from workers.token_tree import TokenTree

TREE = TokenTree((-1, -1, 0, 0, 1, 2, 5, 5, 7))
"""Siblings at several depths, and paths on both sides of each other."""
CONTEXT = 27
"""Tokens before it: it lies on both sides of a border of blocks."""


def tree_obstacle(runner: ModelRunner) -> str | None:
    """Why trees cannot be drafted for this target; None where they can. In blocks that nobody uses yet."""
    length = CONTEXT + 1 + len(TREE)
    if length > runner.context or 2 * blocks_for(length) > runner.kv.num_blocks:
        return f"the context or the KV cache is too small to try one out: it takes {length} tokens, twice"
    text = [(13 * i + 7) % runner.vocab_size for i in range(length)]
    number = blocks_for(length)
    whole, cut = range(1, 1 + number), range(1 + number, 1 + 2 * number)
    for blocks in (whole, cut):
        runner.forward([Rows(blocks, 0, text[:CONTEXT])], [0])
    parents = [-1, *(parent + 1 for parent in TREE.parents)]
    try:
        rows = runner.forward([Rows(whole, CONTEXT, text[CONTEXT:], parents)], range(1 + len(TREE)))
    except ValueError as error:
        return str(error)
    of_tree = runner.kv.read(whole, length)
    for leaf in (node for node in range(len(TREE)) if not TREE.children[node + 1]):
        path = [0, *(node + 1 for node in TREE.path(leaf))]
        chain = runner.forward([Rows(cut, CONTEXT, [text[CONTEXT + row] for row in path])], range(len(path)))
        of_chain = runner.kv.read(cut, CONTEXT + len(path))
        moved = [CONTEXT + row for row in path]
        is_equal = torch.equal(rows[path], chain) and all(
            torch.equal(ours[moved], theirs[CONTEXT:]) for ours, theirs in zip(of_tree, of_chain, strict=True)
        )
        if not is_equal:
            return f"on {runner.device} a tree's row differs in its last bits from the same path as a chain"
    return None
