"""What the operations launch is what their `launches()` list, with fusion of multiply and add off.

No kernel runs: what would be launched for the shapes of the benchmark is noted instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

triton = pytest.importorskip("triton", reason="Triton is published for Linux only")

from benchmarks.kernels_cases import Case, cases  # noqa: E402
from benchmarks.kernels_compile import all_launches  # noqa: E402
from kernels import launch as kernel_launch  # noqa: E402

OPTIONS = ("num_warps", "num_stages", "enable_fp_fusion")
DEFAULTS = {"num_warps": 4, "num_stages": 1}


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, Mapping[str, Any]]]:
    """Every launch from here on: the kernel and its arguments by name."""
    calls: list[tuple[Any, Mapping[str, Any]]] = []

    def note(kernel: Any, *positional: Any, grid: Any, warmup: bool, **named: Any) -> None:
        calls.append((kernel, dict(zip(kernel.arg_names, positional, strict=False)) | named))

    monkeypatch.setattr(triton.JITFunction, "run", note)
    monkeypatch.setattr(kernel_launch, "_obstacle_to_fused", lambda device: None)
    return calls


@pytest.mark.parametrize("case", cases("tiny"), ids=lambda case: f"{case.op}: {case.shape}")
def test_what_is_launched_is_listed_and_keeps_multiply_and_add_apart(
    case: Case, noted: list[tuple[Any, Mapping[str, Any]]]
) -> None:
    case.build(torch.device("cpu")).timed()
    assert noted
    for kernel, arguments in noted:
        assert arguments["enable_fp_fusion"] is False, kernel.__name__
        assert any(is_of(launch, kernel, arguments) for launch in all_launches().values()), described(kernel, arguments)


def is_of(launch: Any, kernel: Any, arguments: Mapping[str, Any]) -> bool:
    if launch.kernel is not kernel or any(arguments.get(name) != value for name, value in launch.constants.items()):
        return False
    if (launch.num_warps, launch.num_stages) != tuple(arguments.get(name, DEFAULTS[name]) for name in DEFAULTS):
        return False
    types = {name: value.dtype for name, value in arguments.items() if isinstance(value, torch.Tensor)}
    return all(launch.pointers.get(name) == f"*{triton_name(dtype)}" for name, dtype in types.items())


def triton_name(dtype: torch.dtype) -> str:
    names = {torch.float32: "fp32", torch.float64: "fp64", torch.bfloat16: "bf16", torch.float16: "fp16"}
    names |= {torch.bool: "i1", torch.uint8: "u8", torch.int32: "i32", torch.int64: "i64"}
    return names[dtype]


def described(kernel: Any, arguments: Mapping[str, Any]) -> str:
    shown = {name: v.dtype if isinstance(v, torch.Tensor) else v for name, v in arguments.items()}
    return f"{kernel.__name__} is launched so, which no launch lists: {shown}"
