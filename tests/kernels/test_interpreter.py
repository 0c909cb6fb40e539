"""The corrections to Triton's interpreter: bfloat16 as PyTorch and accelerators have it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kernels.interpreter import round_to_bfloat16, row_by_row, widen_bfloat16

HARD = (0.0, -0.0, float("inf"), float("-inf"), 3.4e38, -3.4e38, 1e-40, 1.0 + 2.0**-8, 1.0 + 3 * 2.0**-8, 1.0 + 2.0**-7)


def values() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    spread = torch.randn(2000, generator=generator) * 10 ** torch.empty(2000).uniform_(-30, 30, generator=generator)
    return torch.cat([torch.tensor(HARD), spread])


def test_float32_rounds_to_the_nearest_bfloat16_and_ties_to_even() -> None:
    expected = values().bfloat16().view(torch.int16).numpy().view(np.uint16)
    np.testing.assert_array_equal(round_to_bfloat16(values().numpy()), expected)


def test_bfloat16_widens_without_a_change() -> None:
    narrow = values().bfloat16()
    widened = widen_bfloat16(narrow.view(torch.int16).numpy().view(np.uint16))
    np.testing.assert_array_equal(widened, narrow.float().numpy())


@pytest.mark.parametrize("bits", [0x7FC00000, 0x7F800001, 0xFFFFFFFF, 0x7FFFFFFF])
def test_nan_stays_nan(bits: int) -> None:
    nan = np.array([bits], dtype=np.uint32).view(np.float32)
    assert np.isnan(widen_bfloat16(round_to_bfloat16(nan))).all()


def test_a_row_of_a_product_has_the_same_bits_wherever_it_stands_and_whatever_stands_beside_it() -> None:
    draw = np.random.default_rng(3)
    a, b = (draw.standard_normal(shape).astype(np.float32) for shape in ((17, 64), (64, 48)))
    whole = row_by_row(a, b)
    assert np.array_equal(row_by_row(a[::-1].copy(), b)[::-1], whole)
    assert all(np.array_equal(row_by_row(a[i : i + 1], b)[0], whole[i]) for i in range(17))
    np.testing.assert_allclose(whole, a.astype(np.float64) @ b, rtol=1e-4, atol=1e-4)
