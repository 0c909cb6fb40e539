"""The random numbers of `noise` in C++, for CPUs: built at first use, and the same to the bit."""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path

import numpy as np

from kernels.native_build import BuildFailed, build

SOURCE = Path(__file__).with_name("native_noise.cpp")


def obstacle() -> str | None:
    """Why this cannot run here; None if it can. The first call builds it, in a second."""
    function = _load()
    return function if isinstance(function, str) else None


def uniforms(seeds: np.ndarray, positions: np.ndarray, count: int, purpose: int) -> np.ndarray:
    """[n, count] float32 inside (0, 1) of `seeds` and `positions` [n] u64, whose number i is token i's.

    count: a multiple of 4. Raises RuntimeError where there is an obstacle.
    """
    function = _load()
    if isinstance(function, str):
        raise RuntimeError(function)
    seeds, positions = np.ascontiguousarray(seeds), np.ascontiguousarray(positions)
    out = np.empty((len(seeds), count), np.float32)
    function(seeds.ctypes.data, positions.ctypes.data, len(seeds), count, purpose, out.ctypes.data)
    return out


@functools.cache
def _load() -> ctypes._NamedFuncPointer | str:
    """The function, or what went wrong."""
    try:
        function = ctypes.CDLL(str(build([SOURCE]))).kadence_uniforms
    except (BuildFailed, OSError) as error:
        return str(error)
    number, pointer = ctypes.c_int64, ctypes.c_void_p
    function.argtypes = [pointer, pointer, number, number, ctypes.c_uint32, pointer]
    function.restype = None
    return function
