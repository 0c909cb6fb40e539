"""The C++ operations against the definition, and what may change no bit of a row.

Caches hold NaN wherever no row looks. Every sum of the C++ follows positions of a row's own text, so prompts in chunks,
chains, trees and plain decodes of one text must agree to the bit.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from kernels.attention import ancestor_words, depths_of, native, tree_attention, write_kv
from tests.kernels.attention.test_fused import (
    MATES,
    SCENES,
    TOLERANCE,
    WATCHED,
    WRITES,
    Scene,
    build,
    chain,
    rows_of,
    tree,
    written,
)

FP32, BF16, FP16 = torch.float32, torch.bfloat16, torch.float16
SHAPES = {"9-3-64": (9, 3, 64), "4-1-80": (4, 1, 80), "2-2-16": (2, 2, 16), "32-8-128": (32, 8, 128)}
LIMITS: dict[str, dict[str, Any]] = {
    "plain": {}, "window-of-5": {"sliding_window": 5}, "window-of-300-capped": {"sliding_window": 300, "softcap": 2.0},
}  # fmt: skip
PARENTS = (-1, 0, 0, 1, 2, 3, 4, 5, 5, 6, 8, 7)
LENGTH = 600

if reason := native.obstacle("cpu", 64):
    pytest.skip(f"no C++ compiler works here: {reason}", allow_module_level=True)


def i32(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int32)


@pytest.fixture
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_every_source_decides_which_library_is_taken() -> None:
    folder = native.SOURCES[0].parent
    assert set(native.SOURCES) == {*folder.glob("*.cpp"), *folder.glob("*.h")}


@pytest.mark.parametrize("name", SCENES)
def test_native_attends_as_the_definition_does(name: str) -> None:
    case = build(SCENES[name])
    found, expected = (tree_attention(**case, backend=backend) for backend in ("native", "naive"))
    assert found.dtype == SCENES[name].dtype
    torch.testing.assert_close(found, expected, rtol=0.0, atol=TOLERANCE[SCENES[name].dtype])


@pytest.mark.parametrize("dim", [16, 48, 80, 112, 512])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_native_attends_with_any_multiple_of_16_numbers_a_head(dim: int, dtype: torch.dtype) -> None:
    case = build(Scene(((300, tree(9, 1)), (3, chain(2))), heads=(4, 2), head_dim=dim, dtype=dtype))
    found, expected = (tree_attention(**case, backend=backend) for backend in ("native", "naive"))
    torch.testing.assert_close(found, expected, rtol=0.0, atol=TOLERANCE[dtype])


@pytest.mark.parametrize("index", range(len(WRITES)))
def test_native_writes_the_same_slots(index: int) -> None:
    assert torch.equal(written("native", *WRITES[index]), written("naive", *WRITES[index]))


def test_a_given_scale_and_given_depths_are_taken_at_their_word() -> None:
    case = build(Scene(((30, PARENTS),), window=4))
    options = {"scale": 0.3, "depths": 2 * depths_of(ancestor_words([PARENTS]))}
    found, expected = (tree_attention(**case, **options, backend=backend) for backend in ("native", "naive"))
    torch.testing.assert_close(found, expected, rtol=0.0, atol=TOLERANCE[FP32])


def test_a_query_with_strided_numbers_is_attended() -> None:
    case = build(SCENES["decode"])
    strided = case["query"].transpose(1, 2).contiguous().transpose(1, 2)
    assert torch.equal(
        tree_attention(**(case | {"query": strided}), backend="native"), tree_attention(**case, backend="native")
    )


@pytest.mark.parametrize("at", range(4))
@pytest.mark.parametrize("watched", [s for pair in WATCHED.values() for s in pair], ids=["0", "1", "2", "3"])
def test_company_place_and_blocks_change_no_bit(watched: Scene, at: int) -> None:
    alone = tree_attention(**build(watched), backend="native")
    mates = (*MATES[:at], watched.sequences[0], *MATES[at:])
    crowd = replace(watched, sequences=mates)
    found = tree_attention(**build(crowd, blocks_seed=at + 1, spare_columns=at), backend="native")
    assert torch.equal(rows_of(crowd, at, found), alone)


@pytest.mark.parametrize("name", ["rows-1-to-17", "tree-of-64", "heads-32-8", "window-over-splits", "bf16"])
def test_the_number_of_threads_changes_no_bit(name: str, one_thread: None) -> None:
    case = build(SCENES[name])
    alone = tree_attention(**case, backend="native")
    torch.set_num_threads(2)
    assert torch.equal(tree_attention(**case, backend="native"), alone)


@pytest.mark.parametrize("contexts", [(2000,), (2000, 1500, 1200, 700, 2000, 300, 40, 2000)], ids=["one", "eight"])
def test_threads_that_share_a_sequence_change_no_bit(contexts: tuple[int, ...], one_thread: None) -> None:
    # One sequence is split over the threads, eight are not: the same splits are added in the same order.
    case = build(Scene(tuple((c, chain(5)) for c in contexts), masked=False))
    alone = tree_attention(**case, backend="native")
    torch.set_num_threads(2)
    assert all(torch.equal(tree_attention(**case, backend="native"), alone) for _ in range(5))


class Text:
    """Numbers of a text of LENGTH tokens, written to a cache of NaN in blocks of random order."""

    def __init__(self, shape: str, dtype: torch.dtype) -> None:
        heads, kv_heads, dim = SHAPES[shape]
        generator = torch.Generator().manual_seed(5)

        def normal(rows: int, heads: int) -> torch.Tensor:
            return torch.randn(rows, heads, dim, generator=generator).to(dtype)

        self.keys, self.values, self.query = normal(LENGTH, kv_heads), normal(LENGTH, kv_heads), normal(LENGTH, heads)
        self.node_keys, self.node_values = normal(len(PARENTS), kv_heads), normal(len(PARENTS), kv_heads)
        self.node_query = normal(len(PARENTS), heads)
        columns = LENGTH // 16 + 2
        self.k_cache = torch.full((2 * columns, 16, kv_heads, dim), torch.nan).to(dtype)
        self.v_cache = self.k_cache.clone()
        self.table = torch.randperm(2 * columns, generator=generator)[:columns].int()[None]

    def write(self, keys: torch.Tensor, values: torch.Tensor, first: int) -> None:
        bounds = i32(0, len(keys))
        write_kv(keys, values, self.k_cache, self.v_cache, self.table, i32(first), bounds, backend="native")

    def attend(self, query: torch.Tensor, first: int, **options: Any) -> torch.Tensor:
        bounds = i32(0, len(query))
        caches = (self.k_cache, self.v_cache)
        return tree_attention(query, *caches, self.table, i32(first), bounds, **options, backend="native")


def path_to(node: int) -> list[int]:
    return [] if node < 0 else [*path_to(PARENTS[node]), node]


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_prompt_in_chunks_or_token_by_token_has_the_bits_of_the_whole(
    shape: str, dtype: torch.dtype, limits: str
) -> None:
    text = Text(shape, dtype)
    text.write(text.keys, text.values, 0)
    whole = text.attend(text.query, 0, **LIMITS[limits])
    cuts = [range(0, LENGTH, size) for size in (7, 128, 257)]
    pieces = [(a, min(a + cut.step, LENGTH)) for cut in cuts for a in cut]
    pieces += [(i, i + 1) for i in (0, 1, 15, 16, 255, 256, 257, 511, 512, LENGTH - 1)]
    wrong = [
        (a, b) for a, b in pieces if not torch.equal(text.attend(text.query[a:b], a, **LIMITS[limits]), whole[a:b])
    ]
    assert wrong == []


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_row_of_a_tree_has_the_bits_of_its_path_as_a_chain_and_of_a_plain_decode(
    shape: str, dtype: torch.dtype, limits: str
) -> None:
    wrong = []
    for context in (0, 1, 15, 249, 250, 253, 255, 256, 505, LENGTH - 12):
        text = Text(shape, dtype)
        text.write(text.keys[:context], text.values[:context], 0)
        text.write(text.node_keys, text.node_values, context)
        found = text.attend(text.node_query, context, ancestors=ancestor_words([PARENTS]), **LIMITS[limits])
        for node in range(len(PARENTS)):
            path = path_to(node)
            text.write(text.node_keys[path], text.node_values[path], context)
            as_chain = text.attend(text.node_query[path], context, **LIMITS[limits])[-1]
            decoded = text.attend(text.node_query[path[-1:]], context + len(path) - 1, **LIMITS[limits])[0]
            if not (torch.equal(as_chain, found[node]) and torch.equal(decoded, found[node])):
                wrong.append((context, node))
    assert wrong == []


def test_a_bitmask_of_a_chain_changes_no_bit() -> None:
    case = build(Scene(((250, chain(40)),)))
    masked = tree_attention(**case, backend="native")
    assert torch.equal(tree_attention(**(case | {"ancestors": None}), backend="native"), masked)


def test_a_nan_in_a_later_row_or_a_sibling_reaches_no_other_row() -> None:
    case = build(Scene(((250, PARENTS), (20, chain(6)))))
    clean = tree_attention(**case, backend="native")
    last_of_chain, leaf = len(PARENTS) + 5, len(PARENTS) - 2
    for b, slot in ((0, 250 + leaf), (1, 25)):
        block = int(case["block_tables"][b, slot // 16])
        case["k_cache"][block, slot % 16] = torch.nan
        case["v_cache"][block, slot % 16] = torch.nan
    found = tree_attention(**case, backend="native")
    touched = found.isnan().flatten(1).any(1).nonzero()[:, 0].tolist()
    assert touched == [leaf, last_of_chain]
    others = [i for i in range(len(found)) if i not in touched]
    assert torch.equal(found[others], clean[others])


def test_scores_far_apart_neither_overflow_nor_vanish() -> None:
    case = build(Scene(((300, chain(3)),), masked=False))
    case["k_cache"].mul_(300)
    found, expected = (tree_attention(**case, backend=backend) for backend in ("native", "naive"))
    torch.testing.assert_close(found, expected, rtol=0.0, atol=1e-4)


def test_both_are_leaves_of_a_compiled_graph() -> None:
    case = build(Scene(((20, chain(3)), (5, chain(1))), masked=False))
    caches = case.pop("k_cache").clone(), case.pop("v_cache").clone()
    keys, values = torch.randn(2, 4, 3, 64)
    tables = [case[name] for name in ("block_tables", "context_lens", "cu_rows")]

    def step(query: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor) -> torch.Tensor:
        write_kv(keys * 2, values, k_cache, v_cache, *tables, max_rows=3)
        return tree_attention(query + 1, k_cache, v_cache, *tables, max_rows=3, max_context=20) * 2

    own = [cache.clone() for cache in caches]
    expected = step(case["query"], *own)
    found = torch.compile(step, fullgraph=True, backend="aot_eager")(case["query"], *caches)
    assert torch.equal(found, expected)
    assert all(torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0)) for a, b in zip(caches, own, strict=True))


def test_the_operations_say_what_they_change() -> None:
    case = build(Scene(((20, chain(3)),), masked=False))
    tables = tuple(case[name] for name in ("block_tables", "context_lens", "cu_rows"))
    caches = case["k_cache"].nan_to_num().contiguous(), case["v_cache"].nan_to_num().contiguous()
    checks = ("test_schema", "test_faketensor")
    torch.library.opcheck(
        torch.ops.kadence_attention.tree_attention,
        (case["query"], *caches, *tables, None, None, 0.1, None, None, None, None), test_utils=checks,
    )  # fmt: skip
    rows = torch.randn(2, 3, 3, 64)
    torch.library.opcheck(
        torch.ops.kadence_attention.write_kv, (*rows, *caches, *tables, None), test_utils=checks
    )  # fmt: skip


@pytest.mark.parametrize(
    "changes",
    [
        {"cu_rows": i32(0, 9)}, {"context_lens": i32(-1)}, {"block_tables": i32(0, 99)[None]},
        {"ancestors": i32(2, 1, 1)[:, None]}, {"depths": i32(0, 1, 2)}, {"softcap": -1.0}, {"sliding_window": 0},
    ],
    ids=lambda changes: next(iter(changes)),
)  # fmt: skip
def test_the_operation_itself_refuses_what_would_read_elsewhere(changes: dict[str, Any]) -> None:
    case = build(Scene(((20, chain(3)),), masked=False)) | {"depths": None, "scale": 0.1, "max_rows": None}
    names = (
        "query", "k_cache", "v_cache", "block_tables", "context_lens", "cu_rows", "ancestors", "depths", "scale",
        "sliding_window", "softcap", "max_rows",
    )  # fmt: skip
    arguments = [(case | changes)[name] for name in names]
    with pytest.raises(ValueError, match=r"\S"):
        torch.ops.kadence_attention.tree_attention(*arguments, None)


def test_rows_that_have_no_block_are_not_written_in_part() -> None:
    caches = torch.zeros(2, 4, 16, 1, 16)
    rows = torch.ones(2, 2, 1, 16)
    with pytest.raises(ValueError, match="no block for position 0 of sequence 1"):
        write_kv(*rows, *caches, i32(0, -1)[:, None], i32(0, 0), i32(0, 1, 2), backend="native")
    assert not caches.any()


def test_auto_takes_native_on_a_cpu() -> None:
    case = build(SCENES["tree-of-64"])
    by_name = {backend: tree_attention(**case, backend=backend) for backend in ("auto", "native", "naive")}
    assert torch.equal(by_name["auto"], by_name["native"])
    assert not torch.equal(by_name["auto"], by_name["naive"])


def test_the_definition_serves_head_sizes_that_native_does_not() -> None:
    case = build(Scene(((20, chain(3)),), heads=(2, 1), head_dim=24))
    assert torch.equal(tree_attention(**case), tree_attention(**case, backend="naive"))


@pytest.mark.parametrize("pair", list(itertools.pairwise((1, 2, 5, 6, 16, 17))), ids=str)
def test_rows_behind_a_row_change_no_bit_of_it(pair: tuple[int, int]) -> None:
    few, many = pair
    case = build(Scene(((505, chain(17)),), heads=(3, 1), masked=False))

    def first(rows: int) -> torch.Tensor:
        return tree_attention(
            **(case | {"query": case["query"][:rows], "cu_rows": i32(0, rows)}), backend="native"
        )  # fmt: skip

    assert torch.equal(first(many)[:few], first(few))
