"""The definition of the Medusa heads against sums written out by hand, and what it refuses."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from kernels.medusa_heads import BackendUnavailable, medusa_heads


def arguments(vocab: int = 9, *, shared: bool = True, dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(3)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(dtype)

    return {
        "hidden": normal(3, 16),
        "residual_weight": normal(2, 16, 16) / 4,
        "residual_bias": normal(2, 16),
        "lm_head_weight": normal(vocab, 16) if shared else normal(2, vocab, 16),
        "k": 4,
    }


def tied() -> dict[str, Any]:
    """The state of the one row is (1, 0, 0, ...): a logit is the first weight of its row."""
    hidden = torch.zeros(1, 16)
    hidden[0, 0] = 1.0
    head = torch.zeros(5, 16)
    head[:, 0] = torch.tensor([1.0, 2.0, 2.0, 3.0, 2.0])
    return {
        "hidden": hidden,
        "residual_weight": torch.zeros(1, 16, 16),
        "residual_bias": None,
        "lm_head_weight": head,
        "k": 4,
    }


def logits_by_hand(case: dict[str, Any], row: int, head: int) -> list[float]:
    x = case["hidden"][row].double().tolist()
    weight, bias = case["residual_weight"][head].double().tolist(), case["residual_bias"][head].double().tolist()
    inner = [sum(w * v for w, v in zip(line, x, strict=True)) + b for line, b in zip(weight, bias, strict=True)]
    state = [v + y / (1 + math.exp(-y)) for v, y in zip(x, inner, strict=True)]
    lm_head = case["lm_head_weight"] if case["lm_head_weight"].ndim == 2 else case["lm_head_weight"][head]
    return [sum(w * s for w, s in zip(line, state, strict=True)) for line in lm_head.double().tolist()]


@pytest.mark.parametrize("shared", [True, False])
def test_the_best_tokens_are_those_of_the_written_out_sum(shared: bool) -> None:
    case = arguments(shared=shared)
    found = medusa_heads(**case, backend="naive")
    for row in range(3):
        for head in range(2):
            logits = logits_by_hand(case, row, head)
            ranked = sorted(range(len(logits)), key=lambda token: -logits[token])[:4]
            assert found.token_ids[row, head].tolist() == ranked
            assert found.logits[row, head].tolist() == pytest.approx([logits[token] for token in ranked], abs=1e-4)


def test_the_log_sum_exp_is_over_all_tokens() -> None:
    case = arguments()
    found = medusa_heads(**case, backend="naive")
    total = sum(math.exp(logit) for logit in logits_by_hand(case, 1, 1))
    assert found.log_sum_exp[1, 1].item() == pytest.approx(math.log(total), abs=1e-4)


def test_all_probabilities_sum_to_one() -> None:
    found = medusa_heads(**(arguments() | {"k": 9}), backend="naive")
    probs = (found.logits - found.log_sum_exp[..., None]).exp()
    torch.testing.assert_close(probs.sum(-1), torch.ones(3, 2))


def test_ties_go_to_the_lowest_token() -> None:
    assert medusa_heads(**tied()).token_ids.tolist() == [[[3, 1, 2, 4]]]


def test_ties_go_to_the_lowest_token_after_the_map() -> None:
    vocab_map = torch.tensor([50, 40, 10, 60, 20])
    assert medusa_heads(**tied(), vocab_map=vocab_map).token_ids.tolist() == [[[60, 10, 20, 40]]]


def test_the_map_changes_nothing_but_the_names_of_tokens() -> None:
    case, vocab_map = arguments(), torch.arange(9) * 1000 + 5
    plain, mapped = medusa_heads(**case), medusa_heads(**case, vocab_map=vocab_map)
    assert torch.equal(mapped.token_ids, vocab_map[plain.token_ids])
    assert torch.equal(mapped.logits, plain.logits)


def test_a_nan_logit_ranks_last_and_shows_in_the_log_sum_exp() -> None:
    case = tied()
    case["lm_head_weight"][3, 0] = torch.nan
    found = medusa_heads(**case)
    assert found.token_ids.tolist() == [[[1, 2, 4, 0]]]
    assert found.log_sum_exp.isnan().all()


def test_the_state_is_rounded_to_the_dtype_of_the_model() -> None:
    hidden = torch.full((1, 16), 1.0, dtype=torch.bfloat16)
    bias = torch.full((1, 16), 2.0**-8, dtype=torch.bfloat16)  # SiLU of it is a quarter of bfloat16's step above 1
    head = torch.ones(1, 16, dtype=torch.bfloat16)
    found = medusa_heads(hidden, torch.zeros(1, 16, 16, dtype=torch.bfloat16), bias, head, k=1)
    assert found.logits.item() == 16.0


def test_logits_are_not_rounded_to_the_dtype_of_the_model() -> None:
    case = arguments(dtype=torch.bfloat16)
    logits = medusa_heads(**case).logits
    assert logits.dtype == torch.float32
    assert not torch.equal(logits, logits.bfloat16().float())


def test_no_rows_give_no_candidates() -> None:
    found = medusa_heads(**(arguments() | {"hidden": torch.zeros(0, 16)}))
    assert found.token_ids.shape == (0, 2, 4)
    assert found.log_sum_exp.shape == (0, 2)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("hidden", torch.zeros(3, 16, dtype=torch.float64), "hidden is torch.float64"),
        ("hidden", torch.zeros(16), "hidden has shape"),
        ("hidden", torch.zeros(3, 15), "must be a multiple of 16"),
        ("residual_weight", torch.zeros(2, 16, 32), r"residual_weight has shape .* must be \(heads, 16, 16\)"),
        ("residual_weight", torch.zeros(2, 16, 16).half(), "residual_weight is torch.float16"),
        ("residual_bias", torch.zeros(3, 16), r"residual_bias has shape \(3, 16\)"),
        ("lm_head_weight", torch.zeros(9, 32), "lm_head_weight has shape"),
        ("lm_head_weight", torch.zeros(3, 9, 16), "lm_head_weight has shape"),
        ("k", 0, "k is 0; it must be 1 to 9"),
        ("k", 10, "k is 10; it must be 1 to 9"),
        ("vocab_map", torch.arange(8), r"vocab_map has shape \(8,\)"),
        ("vocab_map", torch.arange(9, dtype=torch.int32), "vocab_map is torch.int32"),
        ("vocab_map", torch.zeros(9, dtype=torch.int64), "names a token twice"),
        ("vocab_map", torch.arange(9) - 1, "must hold token ids"),
        ("backend", "cuda", "backend is 'cuda'"),
    ],
)
def test_arguments_that_do_not_fit_are_named(name: str, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        medusa_heads(**(arguments() | {name: value}))


def test_no_more_than_sixteen_candidates_are_given() -> None:
    with pytest.raises(ValueError, match="k is 17; it must be 1 to 16"):
        medusa_heads(**(arguments(vocab=20) | {"k": 17}))


def test_the_fused_backend_by_name_is_refused_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(BackendUnavailable, match="TRITON_INTERPRET=1"):
        medusa_heads(**arguments(), backend="fused")
