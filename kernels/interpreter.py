"""Three corrections to Triton's interpreter, without which kernels cannot be tested in it to the bit.

Its `tl.dot` multiplies the bit patterns of bfloat16 as if they were integers, and its conversion from float32 to
bfloat16 cuts off where every accelerator rounds to nearest even. And `tl.dot` is a BLAS's product, of which a row may
depend on how many there are and on its place (OpenBLAS's kernels for Haswell, which it takes on Zen 5), where that of
an accelerator's tile does not. For processes that set TRITON_INTERPRET=1.
"""

from __future__ import annotations

from typing import Any

import numpy as np

_WHOLE_FLOATS = {np.dtype(np.float16), np.dtype(np.float32)}
_corrected: list[bool] = []
_hastened: list[bool] = []


def correct_interpreter() -> None:
    """Correct this process' interpreter; again and again does no harm."""
    import triton.language as tl
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    if _corrected:
        return
    convert, dot = InterpreterBuilder.cast_impl, InterpreterBuilder.create_dot

    def cast_impl(self: Any, source: Any, wanted: Any) -> Any:
        types = (source.dtype.scalar, wanted.scalar)
        if types == (tl.float32, tl.bfloat16):
            return TensorHandle(round_to_bfloat16(source.data), tl.bfloat16)
        if types == (tl.bfloat16, tl.float32):
            return TensorHandle(widen_bfloat16(source.data), tl.float32)
        return convert(self, source, wanted)

    def create_dot(self: Any, a: Any, b: Any, d: Any, *rest: Any, **options: Any) -> Any:
        a, b = (cast_impl(self, x, tl.float32) if x.dtype.scalar == tl.bfloat16 else x for x in (a, b))
        if {a.data.dtype, b.data.dtype} <= _WHOLE_FLOATS:
            product = row_by_row(a.data.astype(d.data.dtype), b.data.astype(d.data.dtype))
            return TensorHandle(product + d.data, d.dtype.scalar)
        return dot(self, a, b, d, *rest, **options)

    InterpreterBuilder.cast_impl = cast_impl
    InterpreterBuilder.create_dot = create_dot
    _corrected.append(True)


def hasten_interpreter() -> None:
    """Halve the time of this process' interpreter, which no longer gives back what it replaces in triton.language.

    It replaces the language's functions by interpreted ones at every call of a device function, thousands of times a
    launch; once a process does, where nothing is compiled.
    """
    import triton.language as tl
    from triton.runtime import interpreter

    if not hasattr(interpreter, "_LangPatchScope") or _hastened:
        return
    patch, patched_functions, patched_modules = interpreter._patch_lang, set(), set()

    def patch_once(function: Any) -> Any:
        if function not in patched_functions:
            patched_functions.add(function)
            modules = frozenset(id(m) for m in function.__globals__.values() if m is tl or m is tl.core)
            if modules not in patched_modules:
                patched_modules.add(modules)
                patch(function)
        return interpreter._LangPatchScope()

    interpreter._patch_lang = patch_once
    _hastened.append(True)


def row_by_row(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The product of [..., m, k] and [..., k, n], of which each element is summed alike wherever it stands."""
    product: np.ndarray = np.einsum("...ik,...kj->...ij", a, b, optimize=False)
    return product


def round_to_bfloat16(values: np.ndarray) -> np.ndarray:
    """Bits (uint16) of the bfloat16 nearest to each float32, ties to even; NaN stays NaN."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(values), 0x7FC0, rounded).astype(np.uint16)


def widen_bfloat16(bits: np.ndarray) -> np.ndarray:
    """The float32 of each bfloat16, given by its bits (uint16)."""
    return (bits.astype(np.uint32) << 16).view(np.float32)
