"""The Triton kernels of the Medusa heads against the definition, in Triton's interpreter.

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

from kernels.medusa_heads import Candidates, medusa_heads

pytestmark = pytest.mark.timeout(900)  # a busy machine takes many times the 20 s of an idle one
FP32, BF16, FP16 = torch.float32, torch.bfloat16, torch.float16


@dataclass(frozen=True)
class Case:
    vocab: int
    batch: int
    heads: int
    hidden: int
    k: int
    dtype: torch.dtype = FP32
    shared: bool = True
    bias: bool = True
    mapped: bool = False
    whole: bool = False
    """Numbers are small integers, so that logits are exact and most of them tie."""
    poison: float | None = None
    """First weight of two rows of the LM head, whose other weights are 0."""


CASES = {
    "7": Case(7, 3, 4, 64, k=4),
    "7-all-of-them": Case(7, 2, 2, 16, k=7, mapped=True),
    "one-token": Case(1, 2, 1, 16, k=1),
    "32000-bf16": Case(32000, 2, 2, 64, k=4, dtype=BF16),
    "49152": Case(49152, 4, 3, 32, k=10),
    "262144": Case(262144, 1, 1, 16, k=2, bias=False),
    "300-own-heads": Case(300, 70, 2, 96, k=6, dtype=BF16, shared=False, bias=False, mapped=True),
    "1000-own-heads-fp16": Case(1000, 5, 3, 144, k=3, dtype=FP16, shared=False),
    "1000-shared-map": Case(1000, 33, 2, 80, k=5, mapped=True),
    "ties": Case(700, 5, 2, 32, k=16, bias=False, whole=True),
    "ties-map": Case(700, 5, 2, 32, k=16, dtype=BF16, bias=False, whole=True, mapped=True),
    "ties-own-heads": Case(700, 20, 2, 32, k=9, dtype=FP16, bias=False, whole=True, shared=False),
    "nan": Case(300, 2, 2, 16, k=3, poison=float("nan")),
    "infinite": Case(16, 2, 2, 16, k=16, poison=-float("inf")),
}
ALONE = "300-own-heads"
"""Rows of this case are also asked for one by one, and in another order."""
ROWS = (1, 64, 69)


def build(name: str) -> dict[str, Any]:
    case = CASES[name]
    generator = torch.Generator().manual_seed(case.vocab + case.hidden + case.k)

    def values(*shape: int) -> torch.Tensor:
        if case.whole:
            return torch.randint(-1, 2, shape, generator=generator).to(case.dtype)
        return torch.randn(*shape, generator=generator).to(case.dtype)

    weight = values(case.heads, case.hidden, case.hidden) / case.hidden**0.5
    head = values(*(() if case.shared else (case.heads,)), case.vocab, case.hidden)
    if case.poison is not None:
        head[..., 5:7, :] = 0.0
        head[..., 5:7, 0] = case.poison
    hidden = values(case.batch, case.hidden)
    hidden[:, 0] = 3.0  # so that the sign of an infinite logit is that of its weight
    if name == "nan":
        hidden[0] = torch.nan  # and every logit of it
    return {
        "hidden": hidden,
        "residual_weight": torch.zeros_like(weight) if case.whole else weight,
        "residual_bias": values(case.heads, case.hidden) if case.bias else None,
        "lm_head_weight": head,
        "k": case.k,
        "vocab_map": torch.randperm(2 * case.vocab, generator=generator)[: case.vocab] if case.mapped else None,
    }


def run_interpreted(output: str) -> None:
    """Run all cases on the fused backend; fresh memory holds garbage, so that a forgotten write is seen."""
    from kernels.interpreter import correct_interpreter
    from kernels.launch import Launch
    from kernels.medusa_heads import fused  # noqa: F401  (decorated here, before memory is poisoned)

    correct_interpreter()
    empty, run = torch.empty, Launch.run
    launched: set[str] = set()

    def poisoned(*size: Any, **options: Any) -> torch.Tensor:
        fresh = empty(*size, **options)
        return fresh.fill_(torch.nan if fresh.is_floating_point() else -12345)

    def noted(launch: Launch, grid: tuple[int, ...], *arguments: Any) -> None:
        launched.add(launch.name)
        run(launch, grid, *arguments)

    cases = {name: build(name) for name in CASES}
    torch.empty, Launch.run = poisoned, noted  # type: ignore[method-assign]
    outcome: dict[str, Any] = {}
    for name, case in cases.items():
        outcome[name] = _tensors(medusa_heads(**case, backend="fused"))
    together = cases[ALONE]["hidden"]
    for row in ROWS:
        alone = cases[ALONE] | {"hidden": together[row : row + 1].clone()}
        outcome[f"row-{row}"] = _tensors(medusa_heads(**alone, backend="fused"))
    turned = cases[ALONE] | {"hidden": together.flip(0)}
    outcome["turned"] = _tensors(medusa_heads(**turned, backend="fused"))
    outcome["launched"] = sorted(launched)
    torch.save(outcome, output)


def _tensors(found: Candidates) -> tuple[torch.Tensor, ...]:
    return found.token_ids, found.logits, found.log_sum_exp


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


@pytest.fixture(scope="module")
def definitions() -> dict[str, Candidates]:
    return {name: medusa_heads(**build(name), backend="naive") for name in CASES}


@pytest.mark.parametrize("name", CASES)
def test_fused_finds_the_same_tokens(name: str, outcomes: dict[str, Any], definitions: dict[str, Candidates]) -> None:
    assert outcomes[name][0].tolist() == definitions[name].token_ids.tolist()


@pytest.mark.parametrize("name", CASES)
def test_fused_finds_the_same_logits(name: str, outcomes: dict[str, Any], definitions: dict[str, Candidates]) -> None:
    torch.testing.assert_close(outcomes[name][1], definitions[name].logits, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("name", CASES)
def test_fused_finds_the_same_log_sum_exp(
    name: str, outcomes: dict[str, Any], definitions: dict[str, Candidates]
) -> None:
    expected = definitions[name].log_sum_exp
    torch.testing.assert_close(outcomes[name][2], expected, rtol=1e-5, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize("row", ROWS)
def test_a_row_alone_is_the_row_in_its_batch_bit_for_bit(row: int, outcomes: dict[str, Any]) -> None:
    for together, alone in zip(outcomes[ALONE], outcomes[f"row-{row}"], strict=True):
        assert torch.equal(together[row], alone[0])


def test_the_order_of_the_batch_changes_no_bit(outcomes: dict[str, Any]) -> None:
    for there, back in zip(outcomes[ALONE], outcomes["turned"], strict=True):
        assert torch.equal(there, back.flip(0))


def test_all_that_is_launched_is_listed_for_the_compiler_tests(outcomes: dict[str, Any]) -> None:
    pytest.importorskip("triton", reason="Triton is published for Linux only")
    from kernels.medusa_heads.launches import launches

    assert set(outcomes["launched"]) <= {launch.name for launch in launches()}
    assert len(outcomes["launched"]) > 10


def test_the_largest_vocabulary_has_a_merge() -> None:
    pytest.importorskip("triton", reason="Triton is published for Linux only")
    from kernels.medusa_heads.heads import MAX_VOCAB
    from kernels.medusa_heads.launches import TYPE_NAMES, launches, merge_launch, tile

    for dtype in TYPE_NAMES:
        assert merge_launch(-(-MAX_VOCAB // tile(dtype)["COLUMNS"])) in launches()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA or ROCm device")
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.poison is None])
def test_fused_agrees_on_an_accelerator(name: str, definitions: dict[str, Candidates]) -> None:
    case = {key: value.cuda() if isinstance(value, torch.Tensor) else value for key, value in build(name).items()}
    found, expected = medusa_heads(**case, backend="fused"), definitions[name]
    # A state may round the other way in half precision.
    tolerance = 1e-3 if CASES[name].dtype == FP32 else 0.1
    torch.testing.assert_close(found.logits.cpu(), expected.logits, rtol=1e-3, atol=tolerance)
    torch.testing.assert_close(found.log_sum_exp.cpu(), expected.log_sum_exp, rtol=1e-3, atol=tolerance)
    if CASES[name].whole or CASES[name].dtype == FP32:
        assert found.token_ids.tolist() == expected.token_ids.tolist()


if __name__ == "__main__":
    run_interpreted(sys.argv[1])
