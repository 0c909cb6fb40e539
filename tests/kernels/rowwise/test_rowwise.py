"""Linear layers and means against their definitions, in Triton's interpreter, and that no row depends on another.

TRITON_INTERPRET is fixed for a process when a kernel is decorated, and the rest of the suite needs it unset. So this
file runs itself once as a program in a process of its own, which leaves every case's outcome in a file.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from kernels.rowwise import linear, mean

pytestmark = pytest.mark.timeout(900)  # a busy machine takes many times what an idle one does
FP32, BF16, FP16 = torch.float32, torch.bfloat16, torch.float16


@dataclass(frozen=True)
class Case:
    rows: int
    inputs: int
    outputs: int
    dtype: torch.dtype = FP32
    bias: bool = False
    column_major: bool = False
    """The weight is a transposed view, as a Conv1D's is."""


CASES = {
    "one row": Case(1, 64, 48),
    "uneven": Case(5, 80, 300, bias=True),
    "odd": Case(3, 37, 19),
    "bf16": Case(70, 96, 130, BF16, bias=True),
    "fp16": Case(2, 64, 128, FP16),
    "split": Case(3, 1100, 40, bias=True),
    "split bf16": Case(65, 1024, 16, BF16, bias=True),
    "split fp16": Case(4, 576, 64, FP16),
    "wide": Case(2, 600, 256 * 256, FP32),
    "wide bf16": Case(2, 600, 256 * 128, BF16, bias=True),
    "column major": Case(6, 64, 48, bias=True, column_major=True),
}
INVARIANT = ("uneven", "bf16", "split", "split bf16")
MEANS = {"64": (3, 64, FP32), "576": (5, 576, FP32), "2500 bf16": (2, 2500, BF16), "1 fp16": (4, 1, FP16)}
NUMBERS = (1, 2, 3, 17)


def build(name: str, rows: int | None = None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """The first rows are the same, however many."""
    case, generator = CASES[name], torch.Generator().manual_seed(len(name))
    weight = torch.randn(case.outputs, case.inputs, generator=generator) / case.inputs**0.5
    bias = torch.randn(case.outputs, generator=generator).to(case.dtype) if case.bias else None
    states = torch.randn(rows or case.rows, case.inputs, generator=generator).to(case.dtype)
    weight = weight.to(case.dtype)
    return states, weight.T.contiguous().T if case.column_major else weight, bias


def build_mean(name: str) -> torch.Tensor:
    rows, size, dtype = MEANS[name]
    return torch.randn(rows, size, generator=torch.Generator().manual_seed(size)).to(dtype)


def run_interpreted(output: str) -> None:
    """Run all cases on the fused backend; fresh memory holds garbage, so that a forgotten write is seen."""
    from kernels.interpreter import correct_interpreter
    from kernels.launch import Launch
    from kernels.rowwise import fused  # noqa: F401  (decorated here, before memory is poisoned)

    correct_interpreter()
    empty, run = torch.empty, Launch.run
    launched: set[str] = set()

    def poisoned(*size: Any, **options: Any) -> torch.Tensor:
        return empty(*size, **options).fill_(torch.nan)

    def noted(launch: Launch, grid: tuple[int, ...], *arguments: Any) -> None:
        launched.add(launch.name)
        run(launch, grid, *arguments)

    cases = {name: build(name) for name in CASES}
    torch.empty, Launch.run = poisoned, noted  # type: ignore[method-assign]
    outcome: dict[str, Any] = {name: linear(*case, backend="fused") for name, case in cases.items()}
    outcome |= {f"mean {name}": mean(build_mean(name), backend="fused") for name in MEANS}
    for name in INVARIANT:
        states, weight, bias = build(name, 70)
        whole = outcome[f"{name} of 70"] = linear(states, weight, bias, backend="fused")
        outcome[f"{name} turned"] = linear(states.flip(0), weight, bias, backend="fused").flip(0)
        for n in NUMBERS:
            at = len(whole) - n
            outcome[f"{name} {n}"] = linear(states[at:], weight, bias, backend="fused")
    outcome["launched"] = sorted(launched)
    torch.save(outcome, output)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    pytest.importorskip("triton", reason="Triton is published for Linux only")
    output = tmp_path_factory.mktemp("interpreted") / "outcomes.pt"
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        [sys.executable, str(Path(__file__)), str(output)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    loaded: dict[str, Any] = torch.load(output, weights_only=True)
    return loaded


def tolerance(dtype: torch.dtype) -> dict[str, float]:
    return {"rtol": 1e-5, "atol": 1e-5} if dtype == FP32 else {"rtol": 1e-2, "atol": 1e-2}


@pytest.mark.parametrize("name", CASES)
def test_a_linear_layer_is_what_it_is_defined_as(name: str, outcomes: dict[str, Any]) -> None:
    torch.testing.assert_close(outcomes[name], linear(*build(name), backend="naive"), **tolerance(CASES[name].dtype))


@pytest.mark.parametrize("name", CASES)
def test_the_definition_is_the_librarys_linear_layer(name: str) -> None:
    expected = torch.nn.functional.linear(*build(name))
    torch.testing.assert_close(linear(*build(name)), expected, **tolerance(CASES[name].dtype))


@pytest.mark.parametrize("name", MEANS)
def test_a_mean_is_what_it_is_defined_as(name: str, outcomes: dict[str, Any]) -> None:
    expected = mean(build_mean(name), backend="naive")
    torch.testing.assert_close(outcomes[f"mean {name}"], expected, **tolerance(MEANS[name][2]))
    torch.testing.assert_close(expected, build_mean(name).mean(-1), **tolerance(MEANS[name][2]))


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("name", INVARIANT)
def test_a_row_has_the_same_bits_in_any_company(name: str, number: int, outcomes: dict[str, Any]) -> None:
    assert torch.equal(outcomes[f"{name} of 70"][-number:], outcomes[f"{name} {number}"])


@pytest.mark.parametrize("name", INVARIANT)
def test_the_order_of_rows_changes_no_bit(name: str, outcomes: dict[str, Any]) -> None:
    assert torch.equal(outcomes[f"{name} of 70"], outcomes[f"{name} turned"])


def test_all_that_is_launched_is_listed_for_the_compiler_tests(outcomes: dict[str, Any]) -> None:
    pytest.importorskip("triton", reason="Triton is published for Linux only")
    from kernels.rowwise.launches import launches

    listed = {launch.name for launch in launches()}
    assert set(outcomes["launched"]) <= listed
    assert len(outcomes["launched"]) > 10


def test_splits_depend_on_the_layer_alone() -> None:
    pytest.importorskip("triton", reason="Triton is published for Linux only")
    from kernels.rowwise.launches import splits_of

    assert [splits_of(4096, 4096, BF16), splits_of(128256, 4096, BF16), splits_of(64, 100, FP32)] == [8, 1, 1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((torch.zeros(2, 3), torch.zeros(4, 5)), r"rows is \(2, 3\), weight \(4, 5\)"),
        ((torch.zeros(3), torch.zeros(4, 3)), r"must be \[M, K\] and \[N, K\]"),
        ((torch.zeros(2, 3), torch.zeros(4, 3), torch.zeros(3)), r"bias has shape \(3,\)"),
        ((torch.zeros(2, 3), torch.zeros(4, 3, dtype=BF16)), "weight is torch.bfloat16"),
        ((torch.zeros(2, 3, dtype=torch.float64), torch.zeros(4, 3, dtype=torch.float64)), "rows is torch.float64"),
    ],
)
def test_arguments_that_do_not_fit_are_named(arguments: tuple[torch.Tensor, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        linear(*arguments)


def test_a_mean_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="N of at least 1"):
        mean(torch.zeros(2, 0))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA or ROCm device")
@pytest.mark.parametrize("name", CASES)
def test_fused_agrees_on_an_accelerator_and_no_row_depends_on_another(name: str) -> None:
    states, weight, bias = (None if t is None else t.cuda() for t in build(name, 70))
    whole = linear(states, weight, bias, backend="fused")
    torch.testing.assert_close(whole.cpu(), linear(*build(name, 70)), **tolerance(CASES[name].dtype))
    for n in (1, 2, 3, 16, 33, 69):
        assert torch.equal(linear(states[70 - n :], weight, bias, backend="fused"), whole[-n:])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA or ROCm device")
@pytest.mark.parametrize("name", MEANS)
def test_a_mean_agrees_on_an_accelerator(name: str) -> None:
    rows = build_mean(name).cuda()
    found = mean(rows, backend="fused")
    torch.testing.assert_close(found.cpu(), mean(build_mean(name)), **tolerance(MEANS[name][2]))
    assert torch.equal(mean(rows[-1:], backend="fused"), found[-1:])


if __name__ == "__main__":
    run_interpreted(sys.argv[1])
