"""Tree verification in Triton: six launches and one for each sibling but the first, no [rows, V] tensor of floats."""

from __future__ import annotations

import torch
import triton

from kernels.launch import are_rows_aligned
from kernels.verify_tree.fused_rounds import ROUND_PLANES, SCALAR_PLANES
from kernels.verify_tree.fused_rows import BEST_SCORE, PLACE_PLANES, STATISTIC_PLANES
from kernels.verify_tree.fused_tests import END_PLANES, TEST_PLANES
from kernels.verify_tree.launches import (
    BLOCK,
    MAX_VOCAB,
    finish_launch,
    resample_launch,
    round_launch,
    statistics_launch,
    tests_launch,
    topology_launch,
    tree_block,
    walk_launch,
)
from kernels.verify_tree.trees import Trees, TreeVerdict


def verify_tree(trees: Trees) -> TreeVerdict:
    """See `kernels.verify_tree.verify_tree`."""
    target = _row_contiguous(trees.target_logits)
    has_draft_logits = trees.draft_logits is not None
    # A pointer that no kernel follows when there are no draft logits.
    draft = _row_contiguous(trees.draft_logits) if trees.draft_logits is not None else target
    num_rows, vocab_size = target.shape
    if vocab_size > MAX_VOCAB:
        raise ValueError(f"target_logits has {vocab_size} tokens a row; the fused kernels take {MAX_VOCAB}")
    batch, depth, device = len(trees.temperature), trees.limits.depth, target.device

    def floats(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.float32, device=device)

    def integers(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.int32, device=device)

    verdict = TreeVerdict(
        num_accepted=integers(batch),
        accepted_nodes=integers(batch, depth),
        token_ids=torch.empty((batch, depth + 1), dtype=torch.int64, device=device),
        num_examined=integers(batch, depth),
        accepted_rank=integers(batch, depth),
        overlap=floats(len(trees.draft_token_ids)),
    )
    if batch == 0:
        return verdict

    num_blocks = triton.cdiv(vocab_size, BLOCK)
    rejections = max(0, trees.limits.children - 1) if has_draft_logits else 0
    places = integers(PLACE_PLANES, num_rows)
    child_width = max(1, trees.limits.children)
    children, child_tokens = integers(num_rows, child_width), integers(num_rows, child_width)
    statistics = floats(STATISTIC_PLANES, num_rows, num_blocks)
    best_tokens = integers(num_rows, num_blocks)
    rounds = floats(max(1, rejections), ROUND_PLANES, num_rows, num_blocks)
    scalars = floats(max(1, rejections), SCALAR_PLANES, num_rows)
    tests, ends = floats(TEST_PLANES, num_rows, child_width), floats(END_PLANES, num_rows)
    before = floats(batch * (depth + 1), num_blocks)
    scores, resampled = floats(2, batch, num_blocks), integers(2, batch, num_blocks)

    places_of = (places, places.stride(0))
    children_of = (children, child_tokens, child_width)
    statistics_of = (statistics, statistics.stride(0))
    tests_of, ends_of = (tests, tests.stride(0)), (ends, ends.stride(0))
    logits = (target, target.stride(0), draft, draft.stride(0))
    # Kernels step through these one by one: a column of a table, or one number expanded, is copied first.
    temperature, coupled, cu_nodes = (
        trees.temperature.contiguous(),
        trees.coupled.contiguous(),
        trees.cu_nodes.contiguous(),
    )
    heat = (temperature, 1.0 / temperature)
    streams = (trees.seeds.contiguous(), trees.positions.contiguous(), coupled)
    path = (verdict.num_accepted, verdict.token_ids, verdict.accepted_nodes, verdict.num_examined,
            verdict.accepted_rank)  # fmt: skip
    aligned = are_rows_aligned(target, draft)
    block = tree_block(trees.limits.nodes)

    topology_launch(block).run(
        # A program a row, and enough of them to fill a verdict that is wider than the largest tree.
        (batch, max(trees.limits.nodes, depth) + 1),
        *places_of, *children_of, verdict.overlap, *path, trees.parents.contiguous(),
        trees.draft_token_ids.contiguous(), cu_nodes, depth, trees.limits.children,
    )  # fmt: skip
    statistics_launch(target.dtype, has_draft_logits, aligned).run(
        (num_rows, num_blocks),
        *statistics_of, best_tokens, *places_of, *logits, *heat, *streams, vocab_size, num_blocks,
    )  # fmt: skip
    for rejected in range(1, rejections + 1):
        round_launch(target.dtype, aligned).run(
            (num_rows, num_blocks),
            rounds, scalars, scalars.stride(1), rejected, *statistics_of, *places_of, child_tokens, child_width,
            *logits, *heat, coupled, vocab_size, num_blocks,
        )  # fmt: skip
    tests_launch(target.dtype, has_draft_logits).run(
        (num_rows,),
        *tests_of, *ends_of, rounds, *statistics_of, *places_of, child_tokens, child_width, *logits, *heat,
        coupled, vocab_size, num_blocks,
    )  # fmt: skip
    walk_launch(block).run(
        (batch,),
        *path, verdict.overlap, depth, *tests_of, *places_of, *children_of, statistics[BEST_SCORE.value], best_tokens,
        cu_nodes, temperature, *streams, num_blocks,
    )  # fmt: skip
    resample_launch(target.dtype, has_draft_logits, aligned).run(
        (batch * (depth + 1), num_blocks),
        before, scores, resampled, scores.stride(0), verdict.num_accepted, verdict.accepted_nodes, depth,
        verdict.num_examined, *ends_of, *places_of, child_tokens, child_width, *statistics_of, *logits, cu_nodes,
        *heat, *streams, vocab_size, num_blocks,
    )  # fmt: skip
    finish_launch(has_draft_logits).run(
        (batch,),
        verdict.token_ids, verdict.overlap, verdict.num_accepted, verdict.accepted_nodes, depth, verdict.num_examined,
        *ends_of, before, *places_of, children, child_width, scores, resampled, scores.stride(0), cu_nodes,
        temperature, coupled, num_blocks,
    )  # fmt: skip
    return verdict


def _row_contiguous(logits: torch.Tensor) -> torch.Tensor:
    return logits if logits.stride(-1) == 1 else logits.contiguous()
