"""What `verify_tree` refuses, and which backend it takes."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch

from kernels.launch import BackendUnavailable
from kernels.verify_tree import verify_tree


def arguments() -> dict[str, Any]:
    return {
        "target_logits": torch.zeros(5, 6),
        "draft_token_ids": torch.tensor([1, 2, 3]),
        "parents": torch.tensor([-1, 0, -1], dtype=torch.int32),
        "draft_logits": torch.zeros(5, 6),
        "cu_nodes": torch.tensor([0, 2, 3], dtype=torch.int32),
        "temperature": torch.ones(2),
        "seeds": torch.zeros(2, dtype=torch.int64),
        "positions": torch.ones(2, dtype=torch.int64),
        "coupled": torch.zeros(2, dtype=torch.bool),
    }


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("target_logits", torch.zeros(4, 6), "target_logits has 4 rows; 3 nodes of 2 sequences need 5"),
        ("target_logits", torch.zeros(5, 6, dtype=torch.float64), "target_logits is torch.float64"),
        ("target_logits", torch.zeros(5), "target_logits has shape"),
        ("draft_logits", torch.zeros(3, 6), "draft_logits has shape"),
        ("draft_logits", torch.zeros(5, 6, dtype=torch.bfloat16), "draft_logits is torch.bfloat16; cast it"),
        ("draft_token_ids", torch.tensor([1, 2, 6]), r"draft_token_ids must lie in \[0, 6\)"),
        ("parents", torch.tensor([-1, 1, -1], dtype=torch.int32), "parents says 1 for node 1 of sequence 0"),
        ("parents", torch.tensor([-1, 0, 0], dtype=torch.int32), "parents says 0 for node 0 of sequence 1"),
        ("parents", torch.tensor([-1, 0, -2], dtype=torch.int32), "parents says -2"),
        ("parents", torch.tensor([-1, 0, -1]), "parents is torch.int64"),
        ("cu_nodes", torch.tensor([0, 4, 3], dtype=torch.int32), "must rise from 0 to 3"),
        ("cu_nodes", torch.tensor([0, 3], dtype=torch.int32), "cu_nodes has 2 entries"),
        ("temperature", torch.tensor([1.0, -1.0]), "at least 0"),
        ("seeds", torch.zeros(3, dtype=torch.int64), "seeds has 3 entries"),
        ("positions", torch.zeros(2, dtype=torch.int32), "positions is torch.int32"),
        ("coupled", torch.zeros(2), "coupled is torch.float32"),
        ("max_depth", 1, "max_depth is 1, but a tree has 2"),
        ("max_children", 0, "max_children is 0, but a tree has 1"),
        ("max_nodes", 1, "max_nodes is 1, but a tree has 2"),
        ("max_nodes", 513, r"max_nodes is 513; it must lie in \[0, 512\]"),
        ("backend", "cuda", "backend is 'cuda'; use one of auto, naive, fused"),
    ],
)
def test_arguments_that_do_not_fit_are_named(name: str, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        verify_tree(**(arguments() | {name: value}))


def test_arguments_that_fit_are_taken() -> None:
    assert verify_tree(**arguments()).token_ids.shape == (2, 3)


def test_the_fused_backend_by_name_is_refused_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(BackendUnavailable, match="TRITON_INTERPRET=1"):
        verify_tree(**arguments(), backend="fused")


def test_trees_are_verified_without_triton() -> None:
    program = (
        "import sys; sys.modules['triton'] = None\n"
        "import torch\n"
        "from kernels.verify_tree import verify_tree\n"
        "i = torch.zeros(1, dtype=torch.int64)\n"
        "n = torch.zeros(0, dtype=torch.int64)\n"
        "a = (torch.zeros(1, 4), n, n.int(), None, torch.zeros(2, dtype=torch.int32), torch.zeros(1), i, i, i.bool())\n"
        "print(verify_tree(*a).token_ids.tolist())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["[[0]]"]
