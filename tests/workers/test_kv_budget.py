"""How many blocks of KV a worker holds: as set, or what half of the free memory has room for."""

from __future__ import annotations

import pytest
import torch

import workers.kv_budget
from workers.kv_budget import free_memory, kv_blocks
from workers.model_support import UnsupportedModel

CPU = torch.device("cpu")
MB = 1_000_000


@pytest.fixture
def free(monkeypatch):
    """Says how much memory is free."""

    def say(amount):
        monkeypatch.setattr(workers.kv_budget, "free_memory", lambda device: amount)

    return say


def blocks(tokens=0, max_sequences=4, context=160, bytes_per_token=1000) -> int:
    return kv_blocks(tokens, max_sequences, context, bytes_per_token, CPU, "tiny")


def test_without_a_setting_each_sequence_has_room_for_a_whole_context(free) -> None:
    free(100 * MB)
    assert blocks() == 4 * 10


def test_half_of_the_free_memory_bounds_it(free) -> None:
    free(640_000)
    assert blocks() == 20


def test_where_nothing_says_what_is_free_nothing_bounds_it(free) -> None:
    free(None)
    assert blocks() == 40


def test_a_setting_is_taken_as_it_is_in_whole_blocks(free) -> None:
    free(1)
    assert blocks(tokens=170) == 11


def test_without_room_for_one_context_the_start_says_what_to_change(free) -> None:
    free(319_000)
    with pytest.raises(UnsupportedModel, match=r"max_context=160 tokens, .* lower max_context, or set kv_cache_tokens"):
        blocks()


@pytest.fixture
def machine(tmp_path):
    """A machine with 8 MB available, by its files; `limit` and `used` of a container, None for no container."""

    def make(limit=None, used="1000000"):
        (tmp_path / "meminfo").write_text("MemTotal: 9000 kB\nMemAvailable: 8000 kB\n")
        if limit is not None:
            (tmp_path / "memory.max").write_text(f"{limit}\n")
            (tmp_path / "memory.current").write_text(f"{used}\n")
        return free_memory(CPU, tmp_path / "meminfo", tmp_path)

    return make


@pytest.mark.parametrize(
    ("limit", "free"), [(None, 8000 * 1024), ("max", 8000 * 1024), ("3000000", 2_000_000), ("900000", 0)]
)
def test_free_is_what_the_machine_and_its_container_leave(machine, limit, free) -> None:
    assert machine(limit) == free


def test_a_machine_that_says_nothing_has_no_bound(tmp_path) -> None:
    assert free_memory(CPU, tmp_path / "none", tmp_path) is None
