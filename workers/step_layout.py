"""One forward's tables: which tokens it computes, where their KV lies and what each of them sees.

Rows of all sequences lie behind each other, so that linear layers waste nothing. Tables are made on the host and go to
a device by one copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from kernels.attention import ancestor_words, depths_of
from workers.gathered_attention import Gathering
from workers.kv_cache import BLOCK_SIZE, NULL_BLOCK, blocks_for
from workers.late_tokens import LateTokens
from workers.upload import upload

ROW_STEP = 4
"""Rows come in multiples of it (workers/attention.py says why)."""


@dataclass(frozen=True, slots=True)
class Rows:
    """The tokens of one sequence that this forward computes: they sit at start, start + 1, ... of its `blocks`.

    parents: of a tree, the row number of each one's parent, -1 for one that continues what lies before start: a row
    sees that and its ancestors, and stands as far behind start as it has ancestors. None: each continues the one
    before.
    """

    blocks: Sequence[int]
    start: int
    token_ids: Sequence[int]
    parents: Sequence[int] | None = None


@dataclass(frozen=True, slots=True)
class Bounds:
    """What the tables of a forward are made for, where it is more than its rows need: shapes and launches follow these.

    width: blocks of a table. max_rows: of a sequence. max_context: tokens before `start`. words: of a row's ancestor
    mask, 0 for forwards without trees.
    """

    width: int
    max_rows: int
    max_context: int
    words: int = 0


@dataclass(frozen=True, slots=True)
class StepLayout:
    """Where each row of one forward sits.

    token_ids, positions: [rows] int64; flat_index: [rows] int64, the row's place in the blocks laid end to end; kept:
    [kept] int64, the rows whose logits are wanted, the first one again where they are no multiple of ROW_STEP.
    num_rows: rows before the padding. Padding rows repeat the first row and write the same KV again. block_tables,
    context_lens, cu_rows, max_rows, max_context: of the sequences, as `kernels.attention.tree_attention` takes them.
    ancestors, depths: of rows among which there is a tree, as there. gathering: None where that computes.
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    flat_index: torch.Tensor
    kept: torch.Tensor
    num_rows: int
    block_tables: torch.Tensor
    context_lens: torch.Tensor
    cu_rows: torch.Tensor
    max_rows: int
    max_context: int
    ancestors: torch.Tensor | None = None
    depths: torch.Tensor | None = None
    gathering: Gathering | None = None

    @property
    def tables(self) -> list[torch.Tensor]:
        """All tensors of it."""
        own = [value for name in _TABLES if (value := getattr(self, name)) is not None]
        return own if self.gathering is None else [*own, *self.gathering.tables]

    def with_tables(self, tables: Sequence[torch.Tensor]) -> StepLayout:
        """The same layout with other tensors in place of `tables`."""
        names = [name for name in _TABLES if getattr(self, name) is not None]
        own: dict[str, Any] = dict(zip(names, tables, strict=False))
        gathering = self.gathering
        if gathering is not None:
            gathering = gathering.with_tables(tables[len(names) :])
        return replace(self, gathering=gathering, **own)

    def to(self, device: torch.device) -> StepLayout:
        """From the host to `device`, by one copy; on a CPU the same."""
        return self if device.type == "cpu" else self.with_tables(upload(self.tables, device))

    def put(self, late: LateTokens | None) -> None:
        """Have tokens that the host does not know at their rows, by number; padding rows follow the first row."""
        if late is None:
            return
        more = range(self.num_rows, len(self.token_ids))
        if more and 0 in late.places:
            first = late.tokens[late.places.index(0)].expand(len(more))
            late = late.at([*late.places, *more], torch.cat((late.tokens, first)))
        late.put(self.token_ids)


_TABLES = (
    "token_ids", "positions", "flat_index", "kept", "block_tables", "context_lens", "cu_rows", "ancestors", "depths",
)  # fmt: skip


def padding(num_rows: int) -> int:
    """Rows to add, for a multiple of ROW_STEP."""
    return -num_rows % ROW_STEP


def lay_out(
    rows: Sequence[Rows], keep: Sequence[int], sizes: Sequence[int] | None, bounds: Bounds | None = None
) -> StepLayout:
    """Flatten `rows` (at least one token) into one forward, on the host. keep: numbers of rows whose logits are wanted.

    sizes: of `workers.attention.attention_sizes`. bounds: of what the tables must have room for; None for these rows'
    own.

    Raises ValueError for a tree where keys are gathered: summed in another order, its rows would have other bits than
    its chains.
    """
    ancestors = depths = None
    if (bounds is not None and bounds.words) or any(r.parents is not None for r in rows):
        if sizes is not None:
            raise ValueError("gathered attention computes no trees; draft chains")
        trees = [r.parents or range(-1, len(r.token_ids) - 1) for r in rows]
        ancestors = ancestor_words(trees, None if bounds is None else bounds.words)
        depths = depths_of(ancestors)
    token_ids: list[int] = []
    positions: list[int] = []
    places: list[int] = []
    cu_rows = [0]
    for r in rows:
        n = len(r.token_ids)
        token_ids += r.token_ids
        if depths is None:
            positions += range(r.start, r.start + n)
        else:
            positions += (r.start + depths[cu_rows[-1] : cu_rows[-1] + n]).tolist()
        places += [r.blocks[p // BLOCK_SIZE] * BLOCK_SIZE + p % BLOCK_SIZE for p in range(r.start, r.start + n)]
        cu_rows.append(len(token_ids))
    num_rows = len(token_ids)
    for column in (token_ids, positions, places):
        column += column[:1] * padding(num_rows)
    starts, lengths = [r.start for r in rows], [len(r.token_ids) for r in rows]
    most = bounds or Bounds(
        blocks_for(max(start + n for start, n in zip(starts, lengths, strict=True))), max(lengths), max(starts)
    )
    width, gathering = most.width, None
    if sizes is not None:
        gathering = Gathering.of(starts, lengths, sizes, ROW_STEP, padding(num_rows))
        width = blocks_for(gathering.context)
    tables = np.full((len(rows), width), NULL_BLOCK, np.int32)
    for table, r in zip(tables, rows, strict=True):
        own = r.blocks[:width]
        table[: len(own)] = own
    return StepLayout(
        token_ids=torch.tensor(token_ids),
        positions=torch.tensor(positions),
        flat_index=torch.tensor(places),
        kept=torch.tensor([*keep, *[keep[0]] * padding(len(keep))]),
        num_rows=num_rows,
        block_tables=torch.from_numpy(tables),
        context_lens=torch.tensor(starts, dtype=torch.int32),
        cu_rows=torch.tensor(cu_rows, dtype=torch.int32),
        max_rows=most.max_rows,
        max_context=most.max_context,
        ancestors=ancestors,
        depths=depths,
        gathering=gathering,
    )
