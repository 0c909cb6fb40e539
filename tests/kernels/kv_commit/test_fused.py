"""The Triton kernel of the commit against the definition, in Triton's interpreter and a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from kernels.kv_commit import kv_commit

# name: KV heads, head_dim, dtype, layout, block size. Layouts: "stacked", "layers" apart, or "sliced", which is stacked
# with odd strides.
CASES: dict[str, tuple[int, int, torch.dtype, str, int]] = {
    "3-64-bf16": (3, 64, torch.bfloat16, "stacked", 16),
    "3-96-fp16-layers": (3, 96, torch.float16, "layers", 8),
    "8-128-bf16-layers": (8, 128, torch.bfloat16, "layers", 16),
    "8-256-fp32": (8, 256, torch.float32, "stacked", 4),
    "8-96-fp32-sliced": (8, 96, torch.float32, "sliced", 5),
    "3-64-fp16-sliced": (3, 64, torch.float16, "sliced", 1),
    "8-128-fp32-context": (8, 128, torch.float32, "layers", 128),
    "40-128-bf16": (40, 128, torch.bfloat16, "stacked", 16),
}
# Accepted paths: chains of 0 to 16 nodes and paths through trees of up to 64 nodes; two cross holes of their table.
PATHS = (
    (), (0,), tuple(range(16)), (1,), (63,), (3, 20, 41, 63), tuple(range(57, 64)), tuple(range(0, 32, 2)),
    (0, 1, 2, 5, 9, 60), (2, 3, 4), (7, 30), (5, 40, 63),
)  # fmt: skip
HOLED = {10: 0, 11: 40}
"""Node whose place has no block, by sequence: a destination of the first, a source of the other."""
LAYERS, DEPTH = 2, 16


def build(name: str) -> dict[str, Any]:
    """Arguments of one case; every element of the caches has bits of its own, NaNs among them."""
    heads, dim, dtype, layout, block_size = CASES[name]
    generator = torch.Generator().manual_seed(len(name))
    first = torch.arange(len(PATHS)) * 5 % 23
    max_blocks = -(-(int(first.max()) + 66) // block_size)
    num_blocks = len(PATHS) * max_blocks + 3
    tables = torch.randperm(num_blocks, generator=generator)[: len(PATHS) * max_blocks].reshape(len(PATHS), -1).int()
    for b, node in HOLED.items():
        tables[b, (int(first[b]) + 1 + node) // block_size] = -1

    def cache() -> torch.Tensor:
        padding = 3 if layout == "sliced" else 0
        shape = (LAYERS, num_blocks, block_size, heads + padding, dim + padding)
        whole = torch.randint(-(2**15), 2**15, shape, generator=generator, dtype=torch.int32)
        whole = (whole * 65537).view(torch.float32) if dtype.itemsize == 4 else whole.to(torch.int16).view(dtype)
        return whole[:, :, :, padding:, padding:] if padding else whole

    keys, values = cache(), cache()
    return {
        "k_cache": [layer.clone() for layer in keys] if layout == "layers" else keys,
        "v_cache": [layer.clone() for layer in values] if layout == "layers" else values,
        "block_tables": tables,
        "first_positions": first,
        "accepted_nodes": torch.tensor([[*path, *[-1] * (DEPTH - len(path))] for path in PATHS], dtype=torch.int32),
        "num_accepted": torch.tensor([len(path) for path in PATHS], dtype=torch.int32),
    }


def bits(cache: torch.Tensor | list[torch.Tensor]) -> torch.Tensor:
    whole = cache if isinstance(cache, torch.Tensor) else torch.stack(cache)
    return whole.contiguous().view(torch.int32 if whole.element_size() == 4 else torch.int16)


def run_interpreted(output: str) -> None:
    """Run all cases on the fused backend, and hold every launch against the list of launches."""
    import triton

    from kernels.kv_commit import fused_kernels, launches

    warnings.simplefilter("error")
    assert isinstance(fused_kernels.kv_commit_kernel, triton.runtime.interpreter.InterpretedFunction)
    listed = {launch.name for launch in launches.launches()}
    launched: list[str] = []
    chosen = launches.launch_for

    def recorded(*key: Any) -> Any:
        launch = chosen(*key)
        launched.append(launch.name)
        return launch

    from kernels.kv_commit import fused

    fused.launch_for = recorded  # type: ignore[assignment]
    outcome: dict[str, Any] = {}
    for name in CASES:
        case = build(name)
        kv_commit(**case, backend="fused")
        outcome[name] = (bits(case["k_cache"]), bits(case["v_cache"]))
    outcome["unlisted"] = [name for name in launched if name not in listed]
    outcome["launched"] = launched
    torch.save(outcome, output)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    pytest.importorskip("triton", reason="Triton is published for Linux only")
    output = tmp_path_factory.mktemp("interpreted") / "outcomes.pt"
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(Path(__file__)), str(output)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    loaded: dict[str, Any] = torch.load(output, weights_only=True)
    return loaded


@pytest.mark.parametrize("name", CASES)
def test_fused_moves_the_same_rows_to_the_bit(name: str, outcomes: dict[str, Any]) -> None:
    case = build(name)
    before = bits(case["k_cache"]).clone()
    kv_commit(**case, backend="naive")
    assert torch.equal(outcomes[name][0], bits(case["k_cache"]))
    assert torch.equal(outcomes[name][1], bits(case["v_cache"]))
    assert not torch.equal(before, bits(case["k_cache"]))


def test_one_launch_a_commit_and_each_is_listed(outcomes: dict[str, Any]) -> None:
    assert outcomes["unlisted"] == []
    assert len(outcomes["launched"]) == len(CASES)
    assert any("layers" in name for name in outcomes["launched"])
    assert any(not name.endswith("aligned") for name in outcomes["launched"])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA or ROCm device")
@pytest.mark.parametrize("name", CASES)
def test_fused_moves_the_same_rows_on_an_accelerator(name: str) -> None:
    expected, case = build(name), build(name)
    kv_commit(**expected, backend="naive")
    on_device = {
        key: value.cuda() if isinstance(value, torch.Tensor) else [layer.cuda() for layer in value]
        for key, value in case.items()
    }
    kv_commit(**on_device, backend="fused")
    for cache in ("k_cache", "v_cache"):
        moved = on_device[cache]
        back = moved.cpu() if isinstance(moved, torch.Tensor) else [layer.cpu() for layer in moved]
        assert torch.equal(bits(back), bits(expected[cache]))


if __name__ == "__main__":
    run_interpreted(sys.argv[1])
