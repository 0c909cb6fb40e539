"""The integer weights of `weights.py` in Triton, and float32 as integers of the same order."""

# Triton gives its functions neither types nor a place for them.
# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"

from __future__ import annotations

import triton
import triton.language as tl

from kernels.filters.weights import EXP2_COEFFICIENTS, FLOOR, LOG2_E, MANTISSA_BITS, WEIGHT_BITS

_C1, _C2, _C3, _C4, _C5 = (tl.constexpr(c) for c in EXP2_COEFFICIENTS)
_LOG2_E = tl.constexpr(LOG2_E)
_FLOOR = tl.constexpr(FLOOR)
_MANTISSA = tl.constexpr(2.0**MANTISSA_BITS)
_SHIFT = tl.constexpr(WEIGHT_BITS - MANTISSA_BITS)


@triton.jit
def integer_weights(distances):
    """The same integers as weights.integer_weights, provided that multiplications and additions are not fused."""
    exponents = tl.maximum(distances * _LOG2_E, _FLOOR)
    whole = tl.floor(exponents)
    fraction = exponents - whole
    power = fraction * 0.0 + _C5
    power = power * fraction + _C4
    power = power * fraction + _C3
    power = power * fraction + _C2
    power = power * fraction + _C1
    power = power * fraction + 1.0
    mantissa = (power * _MANTISSA).to(tl.int64)
    return (mantissa << _SHIFT) >> (-whole).to(tl.int64)


@triton.jit
def ordered(scores):
    """float32 as i32 of the same order (0 is above -0)."""
    bits = scores.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def score_of(key):
    """The float32 of a key (i64 in the range of i32)."""
    key = key.to(tl.int32)
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
