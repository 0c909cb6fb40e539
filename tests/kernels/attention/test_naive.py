"""The definition itself, against PyTorch's own attention over each row's path in the text."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from kernels.attention import ancestor_words, depths_of, tree_attention, write_kv

BLOCK, HEADS, KV_HEADS, DIM = 16, 6, 2, 24
TREE = (-1, 0, 0, 1, 3, 2, 5)
"""Rows 0, 1, 3, 4 and 0, 2, 5, 6 are its two paths."""


class Text:
    """Keys and values [slots, KV_HEADS, DIM] of one sequence of `context` tokens and a tree, written to a cache."""

    def __init__(self, context: int, parents: tuple[int, ...], seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.context, self.parents = context, parents
        slots = context + len(parents)
        self.keys = torch.randn(slots, KV_HEADS, DIM, generator=generator)
        self.values = torch.randn(slots, KV_HEADS, DIM, generator=generator)
        self.query = torch.randn(len(parents), HEADS, DIM, generator=generator)
        columns = -(-slots // BLOCK)
        self.caches = torch.full((2, columns + 1, BLOCK, KV_HEADS, DIM), torch.nan)
        self.block_tables = torch.arange(columns, 0, -1, dtype=torch.int32)[None]
        whole = (torch.zeros(1, dtype=torch.int32), torch.tensor([0, slots], dtype=torch.int32))
        write_kv(self.keys, self.values, self.caches[0], self.caches[1], self.block_tables, *whole, backend="naive")

    def arguments(self) -> dict[str, Any]:
        return {
            "query": self.query,
            "k_cache": self.caches[0],
            "v_cache": self.caches[1],
            "block_tables": self.block_tables,
            "context_lens": torch.tensor([self.context], dtype=torch.int32),
            "cu_rows": torch.tensor([0, len(self.parents)], dtype=torch.int32),
            "ancestors": ancestor_words([self.parents]),
            "backend": "naive",
        }

    def path(self, row: int) -> list[int]:
        """Slots of the text that ends in `row`."""
        above = [] if self.parents[row] < 0 else self.path(self.parents[row])
        return [*(above or range(self.context)), self.context + row]

    def expected(self, row: int, window: int | None = None) -> torch.Tensor:
        """[HEADS, DIM]: the row as the last token of its path."""
        path = self.path(row)[-window if window else None :]
        keys, values = self.keys[path].transpose(0, 1), self.values[path].transpose(0, 1)
        return scaled_dot_product_attention(self.query[row][:, None], keys, values, enable_gqa=True)[:, 0]


@pytest.mark.parametrize("window", [None, 1, 2, 3, 4, 20, 100])
@pytest.mark.parametrize("context", [0, 1, 16, 33])
def test_a_row_of_a_tree_sees_its_path_and_nothing_else(context: int, window: int | None) -> None:
    text = Text(context, TREE)
    found = tree_attention(**text.arguments(), sliding_window=window)
    for row in range(len(TREE)):
        torch.testing.assert_close(found[row], text.expected(row, window), rtol=0.0, atol=1e-5)


def test_without_a_bitmask_rows_are_a_chain() -> None:
    text = Text(5, (-1, 0, 1, 2))
    masked = text.arguments()
    assert torch.equal(tree_attention(**(masked | {"ancestors": None})), tree_attention(**masked))


def test_given_depths_are_taken_at_their_word() -> None:
    text = Text(9, TREE)
    derived = tree_attention(**text.arguments(), sliding_window=3)
    depths = depths_of(ancestor_words([TREE]))
    assert torch.equal(tree_attention(**text.arguments(), depths=depths, sliding_window=3), derived)
    assert not torch.equal(tree_attention(**text.arguments(), depths=depths * 2, sliding_window=3), derived)


def test_a_cap_bounds_the_scores_and_a_scale_multiplies_them() -> None:
    text = Text(7, (-1,))
    scores = torch.einsum("hd,shd->hs", text.query[0], text.keys.repeat_interleave(HEADS // KV_HEADS, 1)) * 0.7
    probs = torch.softmax(1.5 * torch.tanh(scores / 1.5), -1)
    expected = torch.einsum("hs,shd->hd", probs, text.values.repeat_interleave(HEADS // KV_HEADS, 1))
    found = tree_attention(**text.arguments(), scale=0.7, softcap=1.5)[0]
    torch.testing.assert_close(found, expected, rtol=0.0, atol=1e-6)


def test_a_block_behind_the_window_may_be_gone() -> None:
    text = Text(40, TREE)
    whole = tree_attention(**text.arguments(), sliding_window=8)
    text.block_tables[0, :2] = -1
    assert torch.equal(tree_attention(**text.arguments(), sliding_window=8), whole)


def test_a_hole_where_a_row_looks_is_named() -> None:
    text = Text(40, TREE)
    text.block_tables[0, 1] = -1
    with pytest.raises(ValueError, match="no block for position 16 of sequence 0"):
        tree_attention(**text.arguments())


def test_writing_touches_the_rows_slots_only() -> None:
    caches = torch.full((2, 4, BLOCK, KV_HEADS, DIM), -1.0)
    keys, values = torch.rand(2, 5, KV_HEADS, DIM)
    tables = torch.tensor([[2, 0], [1, -1]], dtype=torch.int32)
    contexts, bounds = torch.tensor([14, 3], dtype=torch.int32), torch.tensor([0, 4, 5], dtype=torch.int32)
    write_kv(keys, values, caches[0], caches[1], tables, contexts, bounds, backend="naive")
    places = [(2, 14), (2, 15), (0, 0), (0, 1), (1, 3)]
    for cache, rows in zip(caches, (keys, values), strict=True):
        assert all(torch.equal(cache[place], row) for place, row in zip(places, rows, strict=True))
        assert int((cache != -1.0).sum()) == rows.numel()


def test_the_bitmask_holds_each_rows_path_across_words() -> None:
    parents = (-1, *range(32), 5, 33, *range(34, 65))
    masks = ancestor_words([(-1, 0), parents], words=4)
    assert masks.shape == (2 + len(parents), 4)
    for row in range(len(parents)):
        path = {row}
        while parents[min(path)] >= 0:
            path.add(parents[min(path)])
        bits = [w * 32 + i for w, i in itertools.product(range(4), range(32)) if int(masks[2 + row, w]) >> i & 1]
        assert set(bits) == path


def test_the_depth_of_a_row_is_the_number_of_rows_above_it() -> None:
    assert depths_of(ancestor_words([TREE])).tolist() == [0, 1, 1, 2, 3, 2, 3]
    assert depths_of(ancestor_words([tuple(range(-1, 69))])).tolist() == list(range(70))


@pytest.mark.parametrize(
    ("parents", "words", "message"),
    [(((-1, 1),), None, "row 1 has parent 1"), (((-2,),), None, "row 0 has parent -2"), (((-1,) * 33,), 1, "needs 2")],
)  # fmt: skip
def test_a_tree_out_of_order_or_too_wide_is_refused(parents: Any, words: int | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ancestor_words(parents, words)
