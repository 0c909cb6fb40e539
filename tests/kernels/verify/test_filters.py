"""Filters inside verification: the law of the filtered target, whatever the drafter proposes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from scipy import stats

from kernels.verify import Purpose, Verdict, gumbel_noise, verify_chain

TARGET = torch.tensor([0.35, 0.25, 0.2, 0.12, 0.08])
DRAFT = torch.tensor([0.1, 0.2, 0.1, 0.25, 0.35])
FAIR, DAMNING = 1e-3, 1e-9
FILTERS: dict[str, tuple[dict[str, float], list[float]]] = {
    "top-k": ({"top_k": 3}, [0.35, 0.25, 0.2, 0.0, 0.0]),
    "top-p": ({"top_p": 0.7}, [0.35, 0.25, 0.2, 0.0, 0.0]),
    "min-p": ({"min_p": 0.3}, [0.35, 0.25, 0.2, 0.12, 0.0]),
    "top-p-of-top-k": ({"top_k": 3, "top_p": 0.7}, [0.35, 0.25, 0.0, 0.0, 0.0]),
    "all": ({"top_k": 4, "top_p": 0.95, "min_p": 0.6}, [0.35, 0.25, 0.0, 0.0, 0.0]),
    "none": ({"top_k": 0, "top_p": 1.0, "min_p": 0.0}, TARGET.tolist()),
}


def filters(n: int, **limits: float) -> dict[str, torch.Tensor]:
    types = {"top_k": torch.int32, "top_p": torch.float32, "min_p": torch.float32}
    return {name: torch.full((n,), value, dtype=types[name]) for name, value in limits.items()}


def step(n: int, *, coupled: bool = False, has_drafts: bool = True, **options: Any) -> Verdict:
    """One step of one draft, or none, for each of `n` seeds."""
    seeds, k = torch.arange(n), int(has_drafts)
    purpose = Purpose.COUPLED if coupled else Purpose.DRAFT
    drafts = (DRAFT.log() + gumbel_noise(seeds, torch.ones_like(seeds), 5, purpose=purpose)).argmax(-1)
    return verify_chain(
        TARGET.log().expand(n * (k + 1), 5),
        drafts[: n * k],
        DRAFT.log().expand(n * k, 5),
        torch.arange(n + 1, dtype=torch.int32) * k,
        torch.ones(n),
        seeds,
        torch.ones_like(seeds),
        torch.full((n,), coupled),
        **options,
    )


def p_value(verdict: Verdict, law: list[float]) -> float:
    """Chi-square of the first token; 0 if a token appears that the law excludes."""
    counts, expected = torch.bincount(verdict.token_ids[:, 0], minlength=5), torch.tensor(law, dtype=torch.float64)
    if bool((counts[expected == 0] > 0).any()):
        return 0.0
    kept = expected > 0
    fair = expected[kept] / expected[kept].sum() * len(verdict.token_ids)
    return float(stats.chisquare(counts[kept].numpy(), fair.numpy()).pvalue)


@pytest.mark.parametrize("mode", ["unseeded", "seeded", "plain", "block"])
@pytest.mark.parametrize("name", FILTERS)
def test_what_is_emitted_has_the_filtered_targets_law(name: str, mode: str) -> None:
    limits, law = FILTERS[name]
    rule = "block" if mode == "block" else "token"
    verdict = step(500, coupled=mode == "seeded", has_drafts=mode != "plain", rule=rule, **filters(500, **limits))
    assert p_value(verdict, law) > FAIR


def test_the_same_check_tells_the_filtered_from_the_unfiltered_law() -> None:
    assert p_value(step(800), FILTERS["none"][1]) > FAIR
    assert p_value(step(800, **filters(800, top_k=4)), FILTERS["none"][1]) < DAMNING


def test_the_overlap_is_that_of_the_filtered_target() -> None:
    verdict = step(1, **filters(1, top_k=3))
    filtered = torch.tensor([0.35, 0.25, 0.2, 0.0, 0.0]) / 0.8
    assert verdict.overlap.tolist() == pytest.approx([float(torch.minimum(filtered, DRAFT).sum())])


def test_a_greedy_row_does_not_notice_filters() -> None:
    tied = torch.tensor([[1.0, 4.0, 4.0], [2.0, 0.0, 3.0]])
    verdict = verify_chain(
        tied, torch.tensor([1]), None, torch.tensor([0, 1], dtype=torch.int32), torch.zeros(1), torch.zeros(1).long(),
        torch.ones(1).long(), torch.tensor([False]), **filters(1, top_k=1, top_p=0.1, min_p=1.0),
    )  # fmt: skip
    assert verdict.token_ids.tolist() == [[1, 2]]


def test_filters_of_one_sequence_leave_the_others_alone() -> None:
    limits = filters(40, top_k=0, top_p=1.0, min_p=0.0)
    limits["top_k"][::2] = 2
    limits["min_p"][::4] = 0.9
    mixed, plain = step(40, **limits), step(40)
    assert torch.equal(mixed.token_ids[1::2], plain.token_ids[1::2])
    assert not torch.equal(mixed.token_ids[::2], plain.token_ids[::2])


def test_a_filter_applies_after_the_temperature() -> None:
    logits = torch.tensor([[0.0, 0.2, 3.0], [0.0, 0.0, 0.0]])
    for temperature, kept in ((1.0, {2}), (50.0, {0, 1, 2})):
        emitted = {
            int(verify_chain(
                logits, torch.tensor([0]), None, torch.tensor([0, 1], dtype=torch.int32), torch.tensor([temperature]),
                torch.tensor([seed]), torch.tensor([1]), torch.tensor([False]), **filters(1, top_p=0.8),
            ).token_ids[0, 0])
            for seed in range(60)
        }  # fmt: skip
        assert emitted == kept
