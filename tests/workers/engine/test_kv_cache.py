"""Slots are handed out lowest first, given back once, and start as zeros."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from workers.kv_cache import KVSlots


def make_slots(num_slots: int = 3) -> KVSlots:
    return KVSlots(num_slots, 4, 2, 1, 8, torch.float32, torch.device("cpu"))


def test_the_lowest_free_slot_comes_first() -> None:
    kv = make_slots()
    assert [kv.allocate() for _ in range(3)] == [0, 1, 2]
    kv.free(2)
    kv.free(0)
    assert [kv.allocate(), kv.allocate()] == [0, 2]


def test_when_all_are_used_none_can_be_had() -> None:
    kv = make_slots(1)
    kv.allocate()
    assert not kv.can_allocate()
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
        if allocate and kv.can_allocate():
            slot = kv.allocate()
            assert slot not in held
            held.add(slot)
        elif held:
            kv.free(held.pop())
        assert kv.used == len(held)


def test_slots_start_as_zeros() -> None:
    """A masked key still meets its value in a product: what lies there must not be NaN."""
    kv = make_slots()
    assert len(kv.keys) == len(kv.values) == 2
    assert all(tensor.shape == (3, 4, 1, 8) and not tensor.any() for tensor in (*kv.keys, *kv.values))
