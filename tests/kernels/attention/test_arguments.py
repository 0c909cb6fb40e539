"""What attention and the writing to the cache refuse, and which backend they take."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch

from kernels.attention import BackendUnavailable, tree_attention, write_kv

I32 = torch.int32


def attention(**changes: Any) -> torch.Tensor:
    arguments: dict[str, Any] = {
        "query": torch.zeros(3, 4, 64),
        "k_cache": torch.zeros(5, 16, 2, 64),
        "v_cache": torch.zeros(5, 16, 2, 64),
        "block_tables": torch.tensor([[0, 1], [2, -1]], dtype=I32),
        "context_lens": torch.tensor([20, 3], dtype=I32),
        "cu_rows": torch.tensor([0, 2, 3], dtype=I32),
        "ancestors": torch.tensor([[1], [3], [1]], dtype=I32),
    }
    return tree_attention(**(arguments | changes))


def test_arguments_that_fit_are_computed() -> None:
    assert attention().shape == (3, 4, 64)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"query": torch.zeros(3, 4)}, "query has shape"),
        ({"query": torch.zeros(3, 4, 64, dtype=torch.float64)}, "query is torch.float64"),
        ({"query": torch.zeros(3, 3, 64)}, "query has 3 heads; they must be a multiple of the cache's 2"),
        ({"query": torch.zeros(3, 4, 32)}, "query has head_dim 32, the cache 64"),
        ({"query": torch.zeros(3, 4, 64, dtype=torch.bfloat16)}, "k_cache is torch.float32; the rows are"),
        ({"k_cache": torch.zeros(5, 16, 64)}, "k_cache has shape"),
        ({"k_cache": torch.zeros(5, 16, 64, 2).transpose(2, 3)}, "the last dimension of k_cache is strided"),
        ({"v_cache": torch.zeros(6, 16, 2, 64)}, "v_cache has shape"),
        ({"k_cache": torch.zeros(5, 8, 2, 64), "v_cache": torch.zeros(5, 8, 2, 64)}, "block_size is 8"),
        ({"block_tables": torch.zeros(2, 2, dtype=torch.int64)}, "block_tables is torch.int64"),
        ({"block_tables": torch.zeros(2, dtype=I32)}, "block_tables has shape"),
        ({"block_tables": torch.zeros(3, 2, dtype=I32)}, "block_tables has 3 rows; 2 context_lens need 2"),
        ({"block_tables": torch.tensor([[0, 1], [5, -1]], dtype=I32)}, "names block 5; the cache has 5"),
        ({"block_tables": torch.zeros(2, 4, dtype=I32)[:, ::2]}, "last dimension of block_tables is strided"),
        ({"context_lens": torch.tensor([31, 3], dtype=I32)}, "holds 32 slots a sequence; sequence 0 needs 33"),
        ({"context_lens": torch.tensor([-1, 3], dtype=I32)}, r"each must lie in \[0, max_context=3\]"),
        ({"max_context": 10}, r"each must lie in \[0, max_context=10\]"),
        ({"max_rows": 1}, "max_rows is 1, but sequence 0 has 2 rows"),
        ({"cu_rows": torch.tensor([0, 3], dtype=I32)}, "cu_rows has 2 entries; 2 context_lens need 3"),
        ({"cu_rows": torch.tensor([0, 4, 3], dtype=I32)}, "must rise from 0 to 3"),
        ({"ancestors": torch.tensor([[1], [1], [1]], dtype=I32)}, "row 1 does not see itself"),
        ({"ancestors": torch.ones(2, 1, dtype=I32)}, "ancestors has shape"),
        ({"ancestors": torch.ones(3, 1)}, "ancestors is torch.float32"),
        ({"ancestors": torch.ones(3, 0, dtype=I32)}, "ancestors has 0 words a row; 2 rows need 1"),
        ({"ancestors": torch.ones(3, 2, dtype=I32)[:, ::2]}, "ancestors is strided"),
        ({"depths": torch.zeros(2, dtype=I32)}, "depths has shape"),
        ({"ancestors": None, "depths": torch.zeros(3, dtype=I32)}, "depths is given without ancestors"),
        ({"sliding_window": 0}, "sliding_window is 0"),
        ({"softcap": 0.0}, "softcap is 0.0"),
        ({"backend": "cuda"}, "backend is 'cuda'"),
    ],
)  # fmt: skip
def test_arguments_that_do_not_fit_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        attention(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"keys": torch.zeros(3, 2, 32)}, "keys has shape"),
        ({"values": torch.zeros(2, 2, 64)}, "values has shape"),
        ({"values": torch.zeros(3, 2, 64, dtype=torch.float16)}, "values is torch.float16"),
        ({"keys": torch.zeros(3, 2, 64, dtype=I32)}, "keys is torch.int32"),
        ({"block_tables": torch.tensor([[0, -1], [2, -1]], dtype=I32)}, "no block for position 20 of sequence 0"),
        ({"max_rows": 1}, "max_rows is 1"),
    ],
)
def test_rows_that_cannot_be_written_are_named(changes: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {
        "keys": torch.zeros(3, 2, 64),
        "values": torch.zeros(3, 2, 64),
        "k_cache": torch.zeros(5, 16, 2, 64),
        "v_cache": torch.zeros(5, 16, 2, 64),
        "block_tables": torch.tensor([[0, 1], [2, -1]], dtype=I32),
        "context_lens": torch.tensor([20, 3], dtype=I32),
        "cu_rows": torch.tensor([0, 2, 3], dtype=I32),
    }
    with pytest.raises(ValueError, match=message):
        write_kv(**(arguments | changes))


def test_no_rows_give_no_result() -> None:
    nothing = torch.zeros(0, dtype=I32)
    found = attention(
        query=torch.zeros(0, 4, 64), block_tables=torch.zeros(0, 2, dtype=I32), context_lens=nothing,
        cu_rows=torch.zeros(1, dtype=I32), ancestors=None,
    )  # fmt: skip
    assert found.shape == (0, 4, 64)


def test_the_fused_backend_by_name_is_refused_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(BackendUnavailable, match="TRITON_INTERPRET=1"):
        attention(backend="fused")


def test_a_head_size_that_no_kernel_was_built_for_is_refused_by_name_only(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton", reason="Triton is published for Linux only")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    odd: dict[str, Any] = {
        "query": torch.zeros(3, 4, 48), "k_cache": torch.zeros(5, 16, 2, 48), "v_cache": torch.zeros(5, 16, 2, 48),
    }  # fmt: skip
    assert attention(**odd, backend="auto").shape == (3, 4, 48)
    with pytest.raises(BackendUnavailable, match="head_dim is 48"):
        attention(**odd, backend="fused")


def test_attention_works_without_triton() -> None:
    program = (
        "import sys; sys.modules['triton'] = None\n"
        "import torch, kernels.attention as a\n"
        "i = torch.zeros(1, dtype=torch.int32)\n"
        "c = torch.ones(1, 16, 1, 64)\n"
        "bounds = torch.tensor([0, 1], dtype=torch.int32)\n"
        "print(a.tree_attention(torch.zeros(1, 1, 64), c, c, i[None], i, bounds).sum())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "tensor(64.)"
