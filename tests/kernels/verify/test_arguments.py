"""What `verify_chain` refuses, and which backend it takes."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
import torch

from kernels.verify import BackendUnavailable, verify_chain


def arguments() -> dict[str, Any]:
    return {
        "target_logits": torch.zeros(5, 6),
        "draft_token_ids": torch.tensor([1, 2, 3]),
        "draft_logits": torch.zeros(3, 6),
        "cu_draft": torch.tensor([0, 2, 3], dtype=torch.int32),
        "temperature": torch.ones(2),
        "seeds": torch.zeros(2, dtype=torch.int64),
        "positions": torch.ones(2, dtype=torch.int64),
        "coupled": torch.zeros(2, dtype=torch.bool),
    }


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("target_logits", torch.zeros(4, 6), "target_logits has 4 rows; 3 draft tokens of 2 sequences need 5"),
        ("target_logits", torch.zeros(5, 6, dtype=torch.float64), "target_logits is torch.float64"),
        ("target_logits", torch.zeros(5), "target_logits has shape"),
        ("draft_logits", torch.zeros(3, 7), "draft_logits has shape"),
        ("draft_token_ids", torch.tensor([1, 2, 6]), r"draft_token_ids must lie in \[0, 6\)"),
        ("draft_token_ids", torch.tensor([1, 2, 3], dtype=torch.int32), "draft_token_ids is torch.int32"),
        ("cu_draft", torch.tensor([0, 4, 3], dtype=torch.int32), "must rise from 0 to 3"),
        ("cu_draft", torch.tensor([0, 3], dtype=torch.int32), "cu_draft has 2 entries"),
        ("temperature", torch.tensor([1.0, -1.0]), "at least 0"),
        ("temperature", torch.tensor([1.0, float("nan")]), "finite"),
        ("seeds", torch.zeros(3, dtype=torch.int64), "seeds has 3 entries"),
        ("positions", torch.zeros(2, dtype=torch.int32), "positions is torch.int32"),
        ("coupled", torch.zeros(2), "coupled is torch.float32"),
        ("max_k", 1, "max_k is 1, but cu_draft has a chain of 2"),
        ("rule", "tree", "rule is 'tree'; use one of token, block"),
        ("top_k", torch.tensor([1, 2]), "top_k is torch.int64"),
        ("top_p", torch.tensor([0.5, 2.0]), "top_p is"),
        ("target_logits", torch.zeros(5, 1).expand(5, 2**20 + 1), "a vocabulary of 1048577; at most 1048576"),
        ("backend", "cuda", "backend is 'cuda'; use one of auto, naive, fused"),
    ],
)
def test_arguments_that_do_not_fit_are_named(name: str, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        verify_chain(**(arguments() | {name: value}))


def test_a_wider_max_k_pads_the_tokens() -> None:
    assert verify_chain(**arguments(), max_k=4).token_ids.shape == (2, 5)


def test_the_fused_backend_by_name_is_refused_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(BackendUnavailable, match="TRITON_INTERPRET=1"):
        verify_chain(**arguments(), backend="fused")


def test_verification_works_without_triton() -> None:
    program = (
        "import sys; sys.modules['triton'] = None\n"
        "import torch, kernels.verify as v\n"
        "i = torch.zeros(1, dtype=torch.int64)\n"
        "a = (torch.zeros(1, 4), i[:0], None, torch.zeros(2, dtype=torch.int32), torch.zeros(1), i, i, i.bool())\n"
        "print(v.verify_chain(*a).token_ids.tolist())\n"
        "try: v.verify_chain(*a, backend='fused')\n"
        "except v.BackendUnavailable as e: print(e)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    tokens, refusal = done.stdout.splitlines()
    assert tokens == "[[0]]"
    assert "Triton is not installed" in refusal


def test_transformers_does_not_mistake_our_kernels_for_the_package_of_that_name() -> None:
    program = (
        "import kernels, transformers.integrations.hub_kernels\n"
        "from transformers.utils import is_kernels_available\n"
        "print(kernels.__file__, hasattr(kernels, '__version__'), is_kernels_available())\n"
    )
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[1:] == ["False", "False"]
