"""Whether a position has the same KV however its text was cut: tried out on the device, with the model itself.

The prefix cache hands on KV that was computed in another cut: behind a shorter head, or token by token as it was
emitted. Text must not depend on that, and no library promises it: a matrix product may sum in another order for
another number of rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from workers.kv_cache import BLOCK_SIZE, blocks_for
from workers.model_runner import ModelRunner
from workers.scheduler import PREFILL_CHUNK
from workers.step_layout import Rows

CUTS = (16, 1, 7, 32)
"""Rows of the pieces, before what is left: those of a block, of steps with and without drafts, of a replay."""
MORE = 16
"""Positions behind a whole chunk."""


def has_uniform_rows(runner: ModelRunner) -> bool:
    """Compute one text twice, in a prompt's chunks and in pieces, in blocks that nobody uses yet.

    True where all bits agree, over as much of a chunk and MORE positions as the runner has room for.
    """
    length = min(PREFILL_CHUNK + MORE, runner.context, runner.kv.num_blocks // 2 * BLOCK_SIZE)
    if length <= sum(CUTS):
        return False
    token_ids = [(11 * i + 5) % runner.vocab_size for i in range(length)]
    number = blocks_for(length)
    whole, cut = range(1, 1 + number), range(1 + number, 1 + 2 * number)
    _compute(runner, whole, token_ids, (PREFILL_CHUNK,))
    _compute(runner, cut, token_ids, CUTS)
    return all(map(torch.equal, runner.kv.read(whole, length), runner.kv.read(cut, length)))


def _compute(runner: ModelRunner, blocks: Sequence[int], token_ids: list[int], lengths: Sequence[int]) -> None:
    start = 0
    for length in (*lengths, len(token_ids)):
        if token_ids[start : start + length]:
            runner.forward([Rows(blocks, start, token_ids[start : start + length])], [0])
        start += length
