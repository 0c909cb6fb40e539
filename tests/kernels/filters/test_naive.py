"""The definition of a threshold: against brute force, against the workers' masks, and at its edges."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.filters.limits import limits_of
from kernels.filters.naive import restricted, row_threshold
from kernels.filters.weights import integer_weights
from workers.sampling import restrict
from workers.sequence import SamplingParams

OFF = -math.inf


def kept(scores: list[float], top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0) -> list[int]:
    log_min_p = math.log(min_p) if min_p else OFF
    row = restricted(torch.tensor(scores), top_k, top_p, log_min_p)
    return row.isfinite().nonzero()[:, 0].tolist()


@settings(deadline=None, max_examples=150, derandomize=True)
@given(
    # Halves, so that ties are common, and few enough that masses stay apart from top_p or meet it exactly.
    scores=st.lists(st.integers(-12, 6).map(lambda i: i / 2), min_size=1, max_size=9),
    top_k=st.integers(0, 10),
    top_p=st.sampled_from([0.0, 0.1, 0.35, 0.5, 0.77, 0.9, 0.98, 1.0]),
    min_p=st.sampled_from([0.0, 0.03, 0.2, 0.7, 1.0]),
)
def test_a_token_stays_if_and_only_if_the_three_rules_say_so(
    scores: list[float], top_k: int, top_p: float, min_p: float
) -> None:
    largest = max(scores)
    left = [s for s in scores if not top_k or sum(other > s for other in scores) < top_k]
    mass = sum(math.exp(s) for s in left)
    expected = []
    for token, score in enumerate(scores):
        before = sum(math.exp(s) for s in left if s > score) / mass
        in_nucleus = top_p == 1 or score == largest or before < top_p
        near = abs(before - top_p) < 1e-6
        assert not near or top_p in (0.0, 1.0), "the sizes above were chosen to have no near-tie"
        if score in left and in_nucleus and math.exp(score - largest) >= min_p * (1 - 1e-9):
            expected.append(token)
    assert kept(scores, top_k, top_p, min_p) == expected


def test_equal_scores_stay_or_fall_together() -> None:
    scores = [2.0, 1.0, 3.0, 2.0, 2.0, 0.0]
    assert kept(scores, top_k=2) == [0, 2, 3, 4]
    assert kept(scores, top_p=0.6) == [0, 2, 3, 4]


def test_the_nucleus_is_of_what_top_k_leaves() -> None:
    scores = torch.tensor([0.3, 0.25, 0.2, 0.15, 0.1]).log().tolist()
    assert kept(scores, top_p=0.7) == [0, 1, 2]
    assert kept(scores, top_k=3, top_p=0.7) == [0, 1]


def test_a_top_p_of_0_leaves_the_largest() -> None:
    assert kept([1.0, 3.0, 2.0], top_p=0.0) == [1]


def test_masked_tokens_stay_masked_where_top_k_asks_for_more_than_there_are() -> None:
    scores = [1.0, OFF, 0.5, OFF, OFF]
    assert kept(scores, top_k=4) == [0, 2]
    assert kept(scores, top_k=4, top_p=0.999) == [0, 2]


def test_a_nucleus_that_ends_beyond_the_first_look_is_found() -> None:
    scores = torch.randn(4000, generator=torch.Generator().manual_seed(1)) * 0.1
    probs = torch.softmax(scores.double(), 0).sort(descending=True).values
    expected = int((probs.cumsum(0) - probs < 0.9).sum())
    assert expected > 2000
    assert len(kept(scores.tolist(), top_p=0.9)) == expected


@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.7])
@pytest.mark.parametrize(("top_k", "top_p"), [(0, 0.9), (0, 0.5), (40, 1.0), (40, 0.8), (1, 1.0), (0, 0.999)])
def test_rows_without_ties_keep_what_the_workers_mask_keeps(top_k: int, top_p: float, temperature: float) -> None:
    logits = torch.randn(6, 3000, generator=torch.Generator().manual_seed(2)) * 3
    sampling = SamplingParams(max_tokens=1, temperature=temperature, top_k=top_k, top_p=top_p)
    for row, theirs in zip(logits, restrict(logits, sampling), strict=True):
        assert len(row.unique()) == len(row)
        ours = restricted(row * (1.0 / torch.tensor(temperature)), top_k, top_p, OFF)
        assert torch.equal(ours.isfinite(), theirs.isfinite())


def test_the_threshold_is_a_score_of_the_row() -> None:
    scores = torch.randn(500, generator=torch.Generator().manual_seed(3))
    assert row_threshold(scores, 17, 1.0, OFF) == float(scores.sort(descending=True).values[16])
    assert row_threshold(scores, 0, 1.0, OFF) == OFF


def test_weights_are_exponentials_in_units_of_the_largest() -> None:
    distances = -torch.linspace(0, 27, 2001)
    weights = integer_weights(distances).double() * 2.0**-40
    exact = distances.double().exp()
    assert float(((weights - exact).abs() / (exact + 2.0**-21)).max()) < 2e-6
    assert integer_weights(torch.tensor([0.0, -60.0, OFF])).tolist() == [2**40, 0, 0]


def test_a_sum_of_weights_does_not_depend_on_its_order() -> None:
    weights = integer_weights(-torch.rand(1 << 18, generator=torch.Generator().manual_seed(4)) * 20)
    shuffled = weights[torch.randperm(1 << 18, generator=torch.Generator().manual_seed(5))]
    assert int(weights.sum()) == int(shuffled.cumsum(0)[-1]) == sum(weights.tolist())


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"top_k": torch.tensor([1, 2])}, "top_k is torch.int64"),
        ({"top_k": torch.tensor([1], dtype=torch.int32)}, r"top_k is torch.int32 \(1,\)"),
        ({"top_k": torch.tensor([1, -2], dtype=torch.int32)}, "at least 0, and 0 is off"),
        ({"top_p": torch.tensor([0.5, 1.5])}, r"top_p is .* must lie in \[0, 1\], and 1 is off"),
        ({"top_p": torch.tensor([0.5, float("nan")])}, "top_p"),
        ({"min_p": torch.tensor([0.5, -0.1])}, r"min_p is .* must lie in \[0, 1\], and 0 is off"),
        ({"min_p": torch.tensor([0.5, 0.1], device="meta")}, "min_p is on meta"),
    ],
)
def test_limits_that_do_not_fit_are_named(limits: dict[str, torch.Tensor], message: str) -> None:
    defaults: dict[str, torch.Tensor | None] = {"top_k": None, "top_p": None, "min_p": None}
    with pytest.raises(ValueError, match=message):
        limits_of(**(defaults | limits), like=torch.ones(2))


def test_no_filter_at_all_is_no_limits() -> None:
    assert limits_of(None, None, None, torch.ones(2)) is None
