"""Blocks start as zeros and keep features; a drafter's slots are handed out lowest first and given back once."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from workers.kv_cache import BLOCK_SIZE, BlockKV, KVSlots, blocks_for


def make_slots(num_slots: int = 3) -> KVSlots:
    return KVSlots(num_slots, 40)


def test_the_lowest_free_slot_comes_first() -> None:
    kv = make_slots()
    assert [kv.allocate() for _ in range(3)] == [0, 1, 2]
    kv.free(2)
    kv.free(0)
    assert [kv.allocate(), kv.allocate()] == [0, 2]


def test_when_all_are_used_none_can_be_had() -> None:
    kv = make_slots(1)
    kv.allocate()
    with pytest.raises(IndexError):
        kv.allocate()


@pytest.mark.parametrize("slot", [0, 1, 3, -1])
def test_what_is_not_in_use_cannot_be_freed(slot) -> None:
    kv = make_slots()
    if slot == 0:
        kv.free(kv.allocate())
    with pytest.raises(ValueError, match=f"slot {slot} is not in use"):
        kv.free(slot)


@settings(deadline=None)
@given(st.lists(st.booleans(), max_size=40))
def test_used_and_free_slots_always_add_up(moves) -> None:
    kv, held = make_slots(5), set()
    for allocate in moves:
        if allocate and len(held) < 5:
            slot = kv.allocate()
            assert slot not in held
            held.add(slot)
        elif held:
            kv.free(held.pop())
        assert kv.used == len(held)


def test_slots_share_no_block_and_none_is_the_one_that_belongs_to_nobody() -> None:
    kv = make_slots()
    assert [list(kv.blocks(slot)) for slot in range(3)] == [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
    assert kv.num_blocks == 9


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (BLOCK_SIZE, 1), (BLOCK_SIZE + 1, 2)])
def test_tokens_fill_whole_blocks(tokens, blocks) -> None:
    assert blocks_for(tokens) == blocks


def make_blocks() -> BlockKV:
    return BlockKV(3, 2, 1, 8, torch.float32, torch.device("cpu"))


def test_blocks_start_as_zeros() -> None:
    """A masked key still meets its value in a product: what lies there must not be NaN."""
    kv = make_blocks()
    assert len(kv.keys) == len(kv.values) == 2
    assert all(tensor.shape == (4, BLOCK_SIZE, 1, 8) and not tensor.any() for tensor in (*kv.keys, *kv.values))


def test_features_are_read_from_the_blocks_they_were_written_to() -> None:
    kv = make_blocks()
    kv.keep_features(2, 8)
    features = torch.rand(5, 2, 8)
    # Positions 14 to 18 of a sequence in blocks 3 and 1.
    kv.write_features(torch.tensor([3 * 16 + 14, 3 * 16 + 15, 16, 17, 18]), features)
    assert torch.equal(kv.read_features([3, 1], 14, 19), features)
