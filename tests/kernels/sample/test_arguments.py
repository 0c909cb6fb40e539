"""What `sample` refuses, and that it needs no Triton."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch

from kernels.sample import BackendUnavailable, LogitBias, TokenCounts, count_tokens, sample


def arguments() -> dict[str, Any]:
    return {
        "logits": torch.zeros(2, 6),
        "temperature": torch.ones(2),
        "seeds": torch.zeros(2, dtype=torch.int64),
        "positions": torch.ones(2, dtype=torch.int64),
    }


def bias(token_ids: list[int], values: list[float], cu: list[int]) -> dict[str, Any]:
    return {"logit_bias": LogitBias(torch.tensor(token_ids), torch.tensor(values), torch.tensor(cu, dtype=torch.int32))}


def penalty(**given: Any) -> dict[str, Any]:
    return {"token_counts": count_tokens([[1], [2]], [[], []])} | given


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"logits": torch.zeros(2, 6, dtype=torch.float64)}, "logits is torch.float64"),
        ({"logits": torch.zeros(6)}, "logits has shape"),
        ({"logits": torch.zeros(3, 6)}, "logits has 3 rows; 2 temperatures need 2"),
        ({"seeds": torch.zeros(2)}, "seeds is torch.float32"),
        ({"positions": torch.zeros(3, dtype=torch.int64)}, r"positions is torch.int64 \(3,\)"),
        ({"coupled": torch.zeros(2)}, "coupled is torch.float32"),
        ({"temperature": torch.tensor([1.0, -1.0])}, "temperature is .* at least 0"),
        ({"top_k": torch.tensor([-1, 2], dtype=torch.int32)}, "top_k is"),
        ({"presence_penalty": torch.ones(2)}, "without token_counts"),
        (penalty(presence_penalty=torch.ones(3)), "presence_penalty is torch.float32"),
        (penalty(frequency_penalty=torch.tensor([1.0, torch.inf])), "frequency_penalty is .* finite"),
        (penalty(repetition_penalty=torch.tensor([1.0, 0.0])), "repetition_penalty is .* above 0"),
        (bias([1], [1.0], [0, 1]), "logit_bias has shapes"),
        (bias([1], [1.0], [0, 1, 2]), "logit_bias.cu is .* rise from 0 to 1"),
        (bias([6], [1.0], [0, 1, 1]), r"logit_bias.token_ids must lie in \[0, 6\)"),
        (bias([3, 3], [1.0, 2.0], [0, 2, 2]), "twice in a row"),
        (bias([3], [torch.inf], [0, 1, 1]), "logit_bias has a value of NaN or .inf"),
        (bias([3], [torch.nan], [0, 1, 1]), "logit_bias has a value of NaN or .inf"),
        (
            {
                "frequency_penalty": torch.ones(2),
                "token_counts": TokenCounts(
                    torch.tensor([1]), torch.tensor([1]), torch.tensor([0, 1, 1], dtype=torch.int32)
                ),
            },
            "token_counts is torch.int64, torch.int64",
        ),
        ({"purpose": 7}, "7 is not a valid Purpose"),
        ({"backend": "cuda"}, "backend is 'cuda'"),
    ],
)
def test_arguments_that_do_not_fit_are_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sample(**(arguments() | given))


def test_a_token_may_be_named_once_in_each_row() -> None:
    assert sample(**arguments(), **bias([3, 3], [9.0, 9.0], [0, 1, 2])).token_ids.shape == (2,)


def test_the_fused_backend_by_name_is_refused_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(BackendUnavailable, match="TRITON_INTERPRET=1"):
        sample(**arguments(), backend="fused")


def test_sampling_works_without_triton() -> None:
    program = (
        "import sys; sys.modules['triton'] = None\n"
        "import torch; from kernels.sample import sample\n"
        "i = torch.zeros(1, dtype=torch.int64)\n"
        "print(sample(torch.tensor([[0.0, 1.0]]), torch.zeros(1), i, i).token_ids.tolist())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["[1]"]
