"""Memory that was freed, given back to the system: glibc keeps what threads of a loader had, and at times all of it.

Weights are read by several threads, each with an arena of its own. What such an arena held on its way to int8, or to a
packed bank, is free inside the process and still resident: 10 to 310 MB of a model of 270, from one start to the next.
"""

from __future__ import annotations

import ctypes


def give_back_freed_memory() -> None:
    """Once what was large has been freed; tens of milliseconds. Does nothing where the C library is not glibc."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
