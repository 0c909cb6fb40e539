"""Every Triton kernel compiles for the accelerators we name, on a machine that has none of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kernels.launch import ENABLE_FP_FUSION, NARROW_WARPS, WIDE_WARPS

triton = pytest.importorskip("triton", reason="Triton is published for Linux only")

TARGETS = {"sm_80": ("cuda", 80, 32), "sm_90": ("cuda", 90, 32), "gfx942": ("hip", "gfx942", 64)}
WARPS = {
    "verify_statistics_kernel": WIDE_WARPS,
    "verify_accept_kernel": NARROW_WARPS,
    "verify_resample_kernel": WIDE_WARPS,
    "verify_finish_kernel": NARROW_WARPS,
    "gumbel_noise_kernel": WIDE_WARPS,
}
POINTERS = {
    "statistics_ptr": "*fp32", "overlap_ptr": "*fp32", "partial_overlap_ptr": "*fp32", "score_ptr": "*fp32",
    "normaliser_ptr": "*fp32", "noise_ptr": "*fp32", "temperature_ptr": "*fp32", "inverse_temperature_ptr": "*fp32",
    "target_ptr": "*bf16", "draft_ptr": "*bf16", "best_token_ptr": "*i32", "cu_draft_ptr": "*i32",
    "num_accepted_ptr": "*i32", "seed_ptr": "*i64", "position_ptr": "*i64", "token_ptr": "*i64",
    "draft_token_ptr": "*i64", "coupled_ptr": "*i1",
}  # fmt: skip
CONSTANTS = {"BLOCK": 4096, "BATCH_BLOCK": 8, "BLOCKS": 16, "WIDTH_BLOCK": 16, "PURPOSE": 3}


def compiled(name: str, target: tuple[str, Any, int], has_draft_logits: bool) -> Any:
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from kernels.verify import fused_kernels, fused_noise

    kernel = getattr(fused_noise if name == "gumbel_noise_kernel" else fused_kernels, name)
    constants = CONSTANTS | {"HAS_DRAFT_LOGITS": has_draft_logits}
    signature = {a: "constexpr" if a in constants else POINTERS.get(a, "i32") for a in kernel.arg_names}
    used = {a: constants[a] for a in kernel.arg_names if a in constants}
    options = {"num_warps": WARPS[name], "enable_fp_fusion": ENABLE_FP_FUSION}
    return triton.compile(ASTSource(kernel, signature, constexprs=used), target=GPUTarget(*target), options=options)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", WARPS)
def test_a_kernel_compiles_to_machine_code(
    name: str, target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    binary = compiled(name, TARGETS[target], has_draft_logits=True)
    assert len(binary.asm["hsaco" if target.startswith("gfx") else "cubin"]) > 1000


@pytest.mark.parametrize("name", ["verify_statistics_kernel", "verify_accept_kernel", "verify_resample_kernel"])
def test_a_kernel_compiles_for_proposals_without_draft_logits(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    assert len(compiled(name, TARGETS["sm_90"], has_draft_logits=False).asm["cubin"]) > 1000


def test_the_noise_takes_the_accurate_logarithm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The approximate one errs by 2^-22 near 1, where the noise of the winning tokens comes from.
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    assert "lg2.approx" not in compiled("gumbel_noise_kernel", TARGETS["sm_90"], True).asm["ptx"]
