"""What the operations launch is what their `launches()` list, with fusion of multiply and add off.

No kernel runs: what would be launched is noted instead, and what Triton would compile for it: types, constants, and
which arguments are taken for 1 or for a multiple of 16.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import pytest
import torch

triton = pytest.importorskip("triton", reason="Triton is published for Linux only")

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.backends.nvidia.compiler import CUDABackend  # noqa: E402
from triton.runtime.jit import create_function_from_signature  # noqa: E402

from benchmarks.kernels_cases import Case, cases  # noqa: E402
from benchmarks.kernels_compile import all_launches  # noqa: E402
from kernels import launch as kernel_launch  # noqa: E402
from kernels.sample import LogitBias, count_tokens, sample  # noqa: E402
from kernels.verify import gumbel_noise, verify_chain  # noqa: E402
from kernels.verify.verdict import Rule  # noqa: E402
from kernels.verify_tree import verify_tree  # noqa: E402

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
        assert any_is_of(kernel, arguments), described(kernel, arguments)


@pytest.mark.parametrize("vocab_size", [304, 301, 1], ids=["aligned", "unaligned", "one token"])
@pytest.mark.parametrize("batch", [16, 3, 1])
@pytest.mark.parametrize("call", ["chain", "block rule", "no draft logits", "tree", "sample", "penalised", "noise"])
def test_no_value_of_an_argument_makes_triton_compile_a_form_that_is_not_listed(
    call: str, batch: int, vocab_size: int, noted: list[tuple[Any, Mapping[str, Any]]]
) -> None:
    for rows_start in (0, 1):  # with 1, no row but by chance is at a multiple of 16 bytes
        launch_once(call, batch, vocab_size, rows_start)
    assert noted
    unlisted = {described(*launched) for launched in noted if not any_is_of(*launched)}
    assert unlisted == set()


def test_a_form_for_a_promise_that_is_not_listed_is_seen(noted: list[tuple[Any, Mapping[str, Any]]]) -> None:
    launch_once("noise", 3, 304, 0)
    (kernel, arguments), *_ = noted
    assert any_is_of(kernel, arguments)
    as_triton_would = triton.jit(kernel.fn)
    assert not any_is_of(as_triton_would, arguments)


def launch_once(call: str, batch: int, vocab_size: int, rows_start: int) -> None:
    def rows(count: int) -> torch.Tensor:
        table = torch.zeros(count * vocab_size + rows_start, dtype=torch.bfloat16)
        return table[rows_start:].view(count, vocab_size)

    ones, twos = torch.ones(batch), torch.full((batch,), 2)
    if call == "noise":
        gumbel_noise(twos, twos, vocab_size, backend="fused")
        return
    rules: dict[str, Any] = {"seeds": twos, "positions": twos, "coupled": twos == 1}
    drafts = torch.arange(batch + 1, dtype=torch.int32)
    tokens = torch.zeros(batch, dtype=torch.int64)
    if call in ("sample", "penalised"):
        counts = count_tokens([[0]] * batch, [[0]] * batch)
        penalties: dict[str, Any] = {"presence_penalty": ones, "token_counts": counts} if call == "penalised" else {}
        bias = LogitBias(tokens, ones, drafts) if call == "penalised" else None
        sample(rows(batch), ones, **rules, top_p=ones / 2, **penalties, logit_bias=bias, backend="fused")
    elif call == "tree":
        verify_tree(
            rows(2 * batch), tokens, torch.full((batch,), -1, dtype=torch.int32), rows(2 * batch), drafts, ones,
            **rules, backend="fused", max_depth=1, max_children=1, max_nodes=1,
        )  # fmt: skip
    else:
        draft_logits = None if call == "no draft logits" else rows(batch)
        rule: Rule = "block" if call == "block rule" else "token"
        verify_chain(
            rows(2 * batch), tokens, draft_logits, drafts, ones, **rules, top_p=ones / 2, rule=rule, backend="fused",
            max_k=1,
        )  # fmt: skip


def any_is_of(kernel: Any, arguments: Mapping[str, Any]) -> bool:
    return any(is_of(launch, kernel, arguments) for launch in all_launches().values())


def is_of(launch: Any, kernel: Any, arguments: Mapping[str, Any]) -> bool:
    """Whether Triton, asked what it would compile for these arguments, names what the launch says."""
    if launch.kernel.fn is not kernel.fn:
        return False
    if (launch.num_warps, launch.num_stages) != tuple(arguments.get(name, DEFAULTS[name]) for name in DEFAULTS):
        return False
    given = {name: arguments[name] for name in kernel.arg_names}
    form = dict(zip(kernel.arg_names, binder_of(kernel)(**given)[1], strict=True))
    for name, (kind, promise) in form.items():
        if name in launch.constants:
            listed = ("constexpr", launch.constants[name])
        else:
            listed = (launch.pointers.get(name, "i32"), "D" if name in launch.divisible_by_16 else "")
        if (kind.replace("*u1", "*i1"), "" if promise is None else promise) != listed:  # two names of one type
            return False
    return True


@functools.cache
def binder_of(kernel: Any) -> Any:
    backend = CUDABackend(GPUTarget("cuda", 90, 32))
    return create_function_from_signature(kernel.signature, kernel.params, backend)


def described(kernel: Any, arguments: Mapping[str, Any]) -> str:
    shown = {name: v.dtype if isinstance(v, torch.Tensor) else v for name, v in arguments.items()}
    return f"{kernel.__name__} is launched so, which no launch lists: {shown}"
