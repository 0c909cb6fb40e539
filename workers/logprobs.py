"""Log-probabilities of tokens in the target's own distribution, the same bit for bit whatever else a step computes.

A row's sum of exponentials is one of integers (`kernels.filters.weights`), which has no order and no rounding, and its
logarithm is the host's. So a row does not depend on how many rows there are, on the device, or on how they are cut.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np
import torch

from kernels.filters.weights import WEIGHT_BITS, integer_weights
from workers.sequence import TokenLogprob
from workers.upload import index, upload

ROWS_AT_ONCE = 2
"""Rows whose integers exist at a time: with more of them a CPU's caches are too small, and it takes twice as long."""


def measure(logits: torch.Tensor, chosen: torch.Tensor, num_top: int) -> torch.Tensor:
    """All that `read` needs of rows of logits [n, vocab], raw, and of the tokens `chosen` [n] i64; on their device.

    Returns [n, 3 + 2 * min(num_top, vocab)] i64: integers, and bits of float64.
    """
    parts = [
        _measure(rows.float(), tokens, min(num_top, logits.shape[1]))
        for rows, tokens in zip(logits.split(ROWS_AT_ONCE), chosen.split(ROWS_AT_ONCE), strict=True)
    ]
    return torch.cat(parts)


def _measure(logits: torch.Tensor, chosen: torch.Tensor, num_top: int) -> torch.Tensor:
    largest = logits.amax(-1, keepdim=True)
    total = integer_weights(logits - largest).sum(-1, keepdim=True)
    own = logits.gather(1, chosen[:, None])
    top = most_likely(logits, num_top)
    numbers = torch.cat((largest, own, logits.gather(1, top)), 1).to(torch.float64).view(torch.int64)
    return torch.cat((total, top, numbers), 1)


def most_likely(logits: torch.Tensor, n: int) -> torch.Tensor:
    """[rows, n] i64: the tokens of the n largest of each row of logits [rows, vocab] f32, falling; of equals the lowest
    token is first.
    """
    if n == 0:
        return torch.empty(len(logits), 0, dtype=torch.int64, device=logits.device)
    # One integer for both: a topk over logits alone leaves open which of equal ones it takes, and bfloat16 has many.
    bits = (logits + 0.0).view(torch.int32)
    rank = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(torch.int64)
    tokens = torch.arange(logits.shape[1], device=logits.device)
    return ((rank << 32) - tokens).topk(n).indices


def read(measured: torch.Tensor, chosen: Seq[int], num_top: int) -> list[TokenLogprob]:
    """One TokenLogprob of each row that `measure` made for `num_top` or more, on the host."""
    width = (measured.shape[1] - 3) // 2
    table = measured.numpy()
    totals, tops = table[:, 0].tolist(), table[:, 1 : 1 + width].tolist()
    numbers = np.ascontiguousarray(table[:, 1 + width :]).view(np.float64).tolist()
    out = []
    for token, total, top, (largest, own, *likely) in zip(chosen, totals, tops, numbers, strict=True):
        log_total = largest + math.log(total / 2**WEIGHT_BITS)
        listed = zip(top[:num_top], likely[:num_top], strict=True)
        out.append(TokenLogprob(token, own - log_total, tuple((i, logit - log_total) for i, logit in listed)))
    return out


@dataclass(frozen=True, slots=True)
class RowsToMeasure:
    """Rows of a verdict whose log-probabilities are wanted: those of sequence b are number cu[b] to cu[b + 1].

    firsts: of each, its sequence's first row among the logits. owners, depths: their places in the verdict's token_ids.
    num_top: of each sequence, None where it wants none.
    """

    firsts: list[int]
    owners: list[int]
    depths: list[int]
    cu: list[int]
    num_top: list[int | None]

    @classmethod
    def of(
        cls,
        num_top: Seq[int | None],
        rows_of: Seq[range],
        num_accepted: Seq[int] | None,
        most: int | None = None,
    ) -> RowsToMeasure:
        """The rows of each sequence that asks: those that emit a token, or all where nobody knows which (None).

        most: tokens that a sequence may emit, where trees have fewer levels than nodes.
        """
        rows = cls([], [], [], [0], list(num_top))
        for b, own in enumerate(rows_of):
            if num_top[b] is not None:
                length = len(own[:most]) if num_accepted is None else num_accepted[b] + 1
                rows.firsts.extend([own.start] * length)
                rows.owners.extend([b] * length)
                rows.depths.extend(range(length))
            rows.cu.append(len(rows.firsts))
        return rows

    def measure(
        self, logits: torch.Tensor, token_ids: torch.Tensor, nodes: torch.Tensor | None = None
    ) -> torch.Tensor | None:
        """What `read` needs of the target's raw logits, on their device; None where nobody asks.

        token_ids: the verdict's. nodes: accepted ones by depth, where trees were verified; None for chains.
        """
        if not self.firsts:
            return None
        columns = [torch.tensor(column) for column in (self.firsts, self.owners, self.depths)]
        firsts, owners, depths = upload(columns, logits.device)
        rows = firsts + depths
        if nodes is not None:
            # Behind the root's row a sequence has one for each node, in their order.
            row_of = torch.nn.functional.pad(nodes.to(torch.int64) + 1, (1, 0))
            rows = firsts + row_of[owners, depths]
        # Rows behind the last token emitted name none; they are not read.
        chosen = token_ids[owners, depths].clamp(min=0)
        return measure(logits[rows], chosen, max(n for n in self.num_top if n is not None))

    def read(self, b: int, token_ids: Seq[int], measured: torch.Tensor | None) -> tuple[TokenLogprob, ...]:
        """Of the tokens that sequence b emitted; empty where it does not ask."""
        num_top = self.num_top[b]
        if measured is None or num_top is None:
            return ()
        return tuple(read(measured[self.cu[b] : self.cu[b] + len(token_ids)], token_ids, num_top))


def prompt_logprobs(logits: torch.Tensor, token_ids: Seq[int], num_top: int) -> list[TokenLogprob]:
    """Of tokens of a prompt, by the rows [n, vocab] of raw logits that decide them."""
    if not len(token_ids):
        return []
    return read(measure(logits, index(token_ids, logits.device), num_top).cpu(), token_ids, num_top)
