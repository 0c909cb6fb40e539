"""Where rows of an accepted path end, by the definition, and what a commit refuses."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from kernels.kv_commit import kv_commit
from kernels.launch import BackendUnavailable

LAYERS, NUM_BLOCKS, BLOCK_SIZE, HEADS, DIM = 2, 9, 4, 3, 8


def arguments() -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    shape = (LAYERS, NUM_BLOCKS, BLOCK_SIZE, HEADS, DIM)
    return {
        "k_cache": torch.randn(shape, generator=generator),
        "v_cache": torch.randn(shape, generator=generator),
        "block_tables": torch.tensor([[3, 5, 1], [7, 0, 2]], dtype=torch.int32),
        "first_positions": torch.tensor([2, 5]),
        "accepted_nodes": torch.tensor([[1, 4, 8], [0, 3, -1]], dtype=torch.int32),
        "num_accepted": torch.tensor([3, 2], dtype=torch.int32),
    }


def row_of(cache: torch.Tensor, table: torch.Tensor, position: int) -> torch.Tensor:
    return cache[:, int(table[position // BLOCK_SIZE]), position % BLOCK_SIZE]


@pytest.mark.parametrize("name", ["k_cache", "v_cache"])
def test_the_row_of_every_accepted_node_ends_at_its_depth(name: str) -> None:
    call = arguments()
    before = call[name].clone()
    kv_commit(**call)
    for b in range(2):
        table, first = call["block_tables"][b], int(call["first_positions"][b])
        for depth in range(int(call["num_accepted"][b])):
            node = int(call["accepted_nodes"][b, depth])
            moved = row_of(call[name], table, first + 1 + depth)
            assert torch.equal(moved, row_of(before, table, first + 1 + node))


def test_no_other_row_changes_by_a_bit() -> None:
    call = arguments()
    before = call["k_cache"].clone()
    before[0, 8, 0, 0, 0] = call["k_cache"][0, 8, 0, 0, 0] = torch.nan
    kv_commit(**call)
    changed = (before.view(torch.int32) != call["k_cache"].view(torch.int32)).flatten(-2).any(-1)
    # Positions 3, 4, 5 of the first sequence and 7 of the second; its node 0 was in place.
    wanted = torch.zeros_like(changed)
    for block, slot in ((3, 3), (5, 0), (5, 1), (0, 3)):
        wanted[:, block, slot] = True
    assert torch.equal(changed, wanted)


def test_a_path_that_is_a_chain_moves_nothing() -> None:
    call = arguments() | {"accepted_nodes": torch.tensor([[0, 1, 2], [0, 1, 2]], dtype=torch.int32)}
    before = call["k_cache"].clone()
    kv_commit(**call)
    assert torch.equal(call["k_cache"], before)


@pytest.mark.parametrize("hole", [1, 2])
def test_a_row_without_a_block_at_either_end_is_not_moved(hole: int) -> None:
    call = arguments()
    call["block_tables"][0, hole] = -1
    before = call["k_cache"].clone()
    kv_commit(**call)
    table = arguments()["block_tables"][0]
    # From position 4 to 3, from 7 to 4, from 11 to 5.
    for source, destination in ((4, 3), (7, 4), (11, 5)):
        moves = hole not in (source // BLOCK_SIZE, destination // BLOCK_SIZE)
        origin = source if moves else destination
        assert torch.equal(row_of(call["k_cache"], table, destination), row_of(before, table, origin))


def test_caches_of_one_tensor_a_layer_end_like_a_stacked_one() -> None:
    stacked, layered = arguments(), arguments()
    kv_commit(**stacked)
    keys, values = list(layered["k_cache"].unbind(0)), list(layered["v_cache"].unbind(0))
    kv_commit(**(layered | {"k_cache": keys, "v_cache": values}))
    assert torch.equal(torch.stack(keys), stacked["k_cache"])
    assert torch.equal(torch.stack(values), stacked["v_cache"])


def test_a_second_commit_of_the_path_as_a_chain_changes_nothing() -> None:
    call = arguments()
    kv_commit(**call)
    once = call["k_cache"].clone()
    kv_commit(**(call | {"accepted_nodes": torch.tensor([[0, 1, 2], [0, 1, -1]], dtype=torch.int32)}))
    assert torch.equal(call["k_cache"], once)


@pytest.mark.parametrize("path", list(itertools.combinations(range(5), 3)))
def test_overlapping_moves_lose_no_row(path: tuple[int, ...]) -> None:
    cache = torch.arange(8.0).reshape(1, 1, 8, 1, 1).repeat(1, 1, 1, 1, DIM)
    other = cache.clone()
    kv_commit(
        cache, other, torch.zeros(1, 1, dtype=torch.int32), torch.tensor([1]),
        torch.tensor([path], dtype=torch.int32), torch.tensor([3], dtype=torch.int32),
    )  # fmt: skip
    assert cache[0, 0, 2:5, 0, 0].tolist() == [2.0 + node for node in path]


def test_an_empty_batch_is_no_work() -> None:
    call = arguments()
    nothing = {
        "block_tables": torch.zeros(0, 3, dtype=torch.int32),
        "first_positions": torch.zeros(0, dtype=torch.int64),
        "accepted_nodes": torch.zeros(0, 3, dtype=torch.int32),
        "num_accepted": torch.zeros(0, dtype=torch.int32),
    }
    before = call["k_cache"].clone()
    kv_commit(**(call | nothing))
    assert torch.equal(call["k_cache"], before)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("k_cache", torch.zeros(2, 9, 4, 3), "k_cache has shape"),
        ("k_cache", torch.zeros(2, 9, 4, 3, 8, dtype=torch.float64), "k_cache is torch.float64"),
        ("v_cache", torch.zeros(2, 9, 4, 3, 8, dtype=torch.float16), "v_cache is torch.float16, but k_cache is"),
        ("v_cache", torch.zeros(3, 9, 4, 3, 8), "k_cache has 2 layers and v_cache 3"),
        ("v_cache", torch.zeros(2, 9, 4, 1, 8), "v_cache has layers of"),
        ("v_cache", torch.zeros(2, 9, 4, 8, 3).transpose(3, 4), "v_cache has stride 3 along head_dim"),
        ("v_cache", [torch.zeros(9, 4, 3, 8)] * 2, "must both be tensors or both be sequences"),
        ("block_tables", torch.tensor([[3, 5, 9], [7, 0, 2]], dtype=torch.int32), "names block 9; the cache has 9"),
        ("block_tables", torch.tensor([[3, 5, -2], [7, 0, 2]], dtype=torch.int32), "block below -1"),
        ("block_tables", torch.tensor([[3, 5, 1], [7, 0, 2]]), "block_tables is torch.int64"),
        ("first_positions", torch.tensor([2, 5], dtype=torch.int32), "first_positions is torch.int32"),
        ("first_positions", torch.tensor([3, 5]), "first_positions is 3 for sequence 0: its node 8"),
        ("accepted_nodes", torch.tensor([[4, 1, 8], [0, 3, -1]], dtype=torch.int32), "a path's nodes rise"),
        ("accepted_nodes", torch.tensor([[1, 4, 8]], dtype=torch.int32), "accepted_nodes has 1 sequences"),
        ("num_accepted", torch.tensor([4, 2], dtype=torch.int32), "num_accepted is 4 for sequence 0"),
        ("backend", "cuda", "backend is 'cuda'"),
    ],
)
def test_arguments_that_do_not_fit_are_named(name: str, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kv_commit(**(arguments() | {name: value}))


def test_the_fused_backend_by_name_is_refused_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(BackendUnavailable, match="TRITON_INTERPRET=1"):
        kv_commit(**arguments(), backend="fused")
