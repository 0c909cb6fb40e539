"""The arms of the CPU attention benchmark do the same work, and a disagreement is never timed."""

from __future__ import annotations

import pytest
import torch

from benchmarks.attention_cpu import Arms, Shape, measured, shapes
from kernels.attention import native

if reason := native.obstacle("cpu", 64):
    pytest.skip(f"no C++ compiler works here: {reason}", allow_module_level=True)


@pytest.mark.parametrize("shape", [Shape(2, 5, 40), Shape(1, 1, 17, dtype="float32"), Shape(3, 8, 16, 4, 2, 16)])
def test_both_arms_attend_alike(shape: Shape) -> None:
    arms = Arms(shape, max_layers=2)
    torch.testing.assert_close(arms.native(), arms.sdpa(), rtol=0.0, atol=2e-2)


def test_arms_that_disagree_are_not_timed() -> None:
    arms = Arms(Shape(1, 2, 20), max_layers=2)
    arms.mask = arms.mask & (torch.arange(arms.mask.shape[-1]) < 3)
    with pytest.raises(ValueError, match="native is off by"):
        measured(arms, rounds=1)


def test_no_shape_is_measured_twice() -> None:
    assert len(set(shapes())) == len(shapes())
