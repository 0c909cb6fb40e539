"""Probability mass as integers, so that a sum has no rounding and no order, and every backend decides a nucleus alike.

The weight of a token is exp(score - largest) in units of 2^-40, computed by additions, multiplications and shifts alone
(no library's exp, which differ in the last place). Its relative error is under 2e-6 where the weight is 1e-8; less than
2^-40 of the largest token is 0. 2^20 tokens of the largest weight still fit.
"""

from __future__ import annotations

import torch

WEIGHT_BITS = 40
MAX_VOCAB = 1 << 20
LOG2_E = 1.4426950216293335
"""log2(e), a float32."""
FLOOR = -63.0
"""Binary exponent at which a weight is certainly 0; also keeps -inf out of the arithmetic."""
EXP2_COEFFICIENTS = (
    0.6931513547897339, 0.2401641607284546, 0.05580044537782669, 0.009016687981784344, 0.0018671829020604491
)  # fmt: skip
"""2^f = 1 + c1 f + ... + c5 f^5 for f in [0, 1), all float32: least squares of the relative error, which is 2e-7."""
MANTISSA_BITS = 24


def integer_weights(distances: torch.Tensor) -> torch.Tensor:
    """exp(distances) * 2^40 as int64, rounded down; `distances` (score - largest, float32) are at most 0."""
    exponents = (distances * LOG2_E).clamp(min=FLOOR)
    whole = exponents.floor()
    fraction = exponents - whole
    power = torch.full_like(fraction, EXP2_COEFFICIENTS[-1])
    for coefficient in (*EXP2_COEFFICIENTS[-2::-1], 1.0):
        power = power * fraction + coefficient
    mantissa = (power * 2.0**MANTISSA_BITS).to(torch.int64)
    return (mantissa << (WEIGHT_BITS - MANTISSA_BITS)) >> (-whole).to(torch.int64)
