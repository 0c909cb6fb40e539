"""Freed memory really leaves the process."""

from __future__ import annotations

import subprocess
import sys

import pytest

from benchmarks.worker_memory import ROLLUP

pytestmark = pytest.mark.skipif(not ROLLUP.exists(), reason="this kernel does not say what a process holds")

BELOW_A_PIN = """
import ctypes
from benchmarks.worker_memory import resident
from workers.freed_memory import give_back_freed_memory
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
small = 64 << 10  # below what glibc maps by itself, so that it lies in the heap
blocks = [libc.malloc(small) for _ in range(1600)]
for block in blocks:
    ctypes.memset(block, 1, small)
for block in blocks[:-1]:
    libc.free(block)  # the last one stays, and keeps the heap as long as it is
held = resident()["rss"]
give_back_freed_memory()
print(held - resident()["rss"])
"""


def test_what_a_heap_keeps_below_a_block_in_use_is_given_back() -> None:
    said = subprocess.run([sys.executable, "-c", BELOW_A_PIN], check=True, stdout=subprocess.PIPE, text=True).stdout
    assert float(said) > 80, "of 104 MB freed"
