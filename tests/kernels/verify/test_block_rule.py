"""Block verification: the target's law again, and at least as many tokens as the token rule keeps."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from scipy import stats

from kernels.verify import Purpose, Verdict, gumbel_noise, naive, verify_chain
from kernels.verify.naive import _joint_scale, _residual

VOCAB = 3
FAIR, DAMNING = 1e-3, 1e-9
GENERATOR = torch.Generator().manual_seed(11)
# Next-token laws after no token, after each token, and after each pair of tokens: a tree of contexts, not a chain.
TARGET = torch.softmax(1.5 * torch.randn(1 + VOCAB + VOCAB**2, VOCAB, generator=GENERATOR, dtype=torch.float64), -1)
DRAFT = torch.softmax(1.5 * torch.randn(1 + VOCAB + VOCAB**2, VOCAB, generator=GENERATOR, dtype=torch.float64), -1)


def context(*tokens: int) -> int:
    return sum(VOCAB**i for i in range(len(tokens))) + sum(t * VOCAB**i for i, t in enumerate(reversed(tokens)))


def continuation(tokens: tuple[int, ...], length: int) -> dict[tuple[int, ...], float]:
    """The target's own law of texts of `length` that begin with `tokens`, given those."""
    if len(tokens) == length:
        return {tokens: 1.0}
    law: dict[tuple[int, ...], float] = {}
    for token, prob in enumerate(TARGET[context(*tokens)].tolist()):
        for text, rest in continuation((*tokens, token), length).items():
            law[text] = prob * rest
    return law


def emitted_law(is_one_hot: bool) -> dict[tuple[int, ...], float]:
    """The law of three tokens after one block of two drafts, by enumeration of drafts, prefixes and residuals."""
    law = dict.fromkeys(itertools.product(range(VOCAB), repeat=3), 0.0)
    blocks = [(1, 2)] if is_one_hot else list(itertools.product(range(VOCAB), repeat=2))
    for block in blocks:
        contexts = [context(*block[:j]) for j in range(3)]
        draft_rows = [None if is_one_hot else DRAFT[c] for c in contexts]
        probability = 1.0 if is_one_hot else float(DRAFT[contexts[0], block[0]] * DRAFT[contexts[1], block[1]])
        scales, chances = [1.0], [1.0]
        for i, draft in enumerate(block, start=1):
            draft_prob = 1.0 if is_one_hot else float(DRAFT[contexts[i - 1], draft])
            scales.append(_joint_scale(scales[-1], float(TARGET[contexts[i - 1], draft]), draft_prob))
            if i < 2:
                mass = float(_residual(TARGET[contexts[i]], draft_rows[i], block[i], scales[i]).sum())
                chances.append(mass / (mass + 1.0 - scales[i]))
            else:
                chances.append(scales[i])
        for kept in range(3):
            weight = probability * chances[kept]
            for later in chances[kept + 1 :]:
                weight *= 1.0 - later
            if weight == 0.0:  # a prefix that cannot be the longest has nothing to resample either
                continue
            last = TARGET[contexts[kept]]
            if kept < 2:
                last = _residual(last, draft_rows[kept], block[kept], scales[kept])
                last = last / last.sum()
            for token, prob in enumerate(last.tolist()):
                for text, rest in continuation((*block[:kept], token), 3).items():
                    law[text] += weight * prob * rest
    return law


@pytest.mark.parametrize("is_one_hot", [False, True])
def test_the_rule_has_exactly_the_targets_law(is_one_hot: bool) -> None:
    assert emitted_law(is_one_hot) == pytest.approx(continuation((), 3), abs=1e-14)


def verify_blocks(n: int, **options: Any) -> tuple[torch.Tensor, Verdict]:
    """One block of two sampled drafts for each of `n` seeds."""
    seeds = torch.arange(n)
    first = (DRAFT[0].log().float() + gumbel_noise(seeds, seeds * 0 + 1, VOCAB, purpose=Purpose.DRAFT)).argmax(-1)
    after = 1 + first
    second = (DRAFT[after].log().float() + gumbel_noise(seeds, seeds * 0 + 2, VOCAB, purpose=Purpose.DRAFT)).argmax(-1)
    rows = torch.stack([first * 0, after, 1 + VOCAB + first * VOCAB + second], 1)
    verdict = verify_chain(
        TARGET[rows].log().float().reshape(-1, VOCAB),
        torch.stack([first, second], 1).reshape(-1),
        DRAFT[rows[:, :2]].log().float().reshape(-1, VOCAB),
        torch.arange(n + 1, dtype=torch.int32) * 2,
        torch.ones(n),
        seeds,
        torch.ones(n, dtype=torch.int64),
        torch.zeros(n, dtype=torch.bool),
        **options,
    )
    return torch.stack([first, second], 1), verdict


def pairs_p_value(verdict: Verdict) -> float:
    """Chi-square of the first two tokens, the second drawn from the target where the step gave only one."""
    n = len(verdict.token_ids)
    first, second = verdict.token_ids[:, 0], verdict.token_ids[:, 1]
    seeds = torch.arange(n) + 10 * n
    own = (TARGET[1 + first].log().float() + gumbel_noise(seeds, seeds * 0, VOCAB)).argmax(-1)
    second = torch.where(second < 0, own, second)
    law = (TARGET[0, :, None] * TARGET[1 : 1 + VOCAB]).reshape(-1)
    counts = torch.bincount(first * VOCAB + second, minlength=VOCAB**2)
    return float(stats.chisquare(counts.numpy(), (law / law.sum() * n).numpy()).pvalue)


def test_what_the_block_rule_emits_has_the_targets_law() -> None:
    assert pairs_p_value(verify_blocks(5000, rule="block")[1]) > FAIR


def test_a_rule_that_never_lowers_the_joint_scale_fails_the_same_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(naive, "_joint_scale", lambda *_: 1.0)
    assert pairs_p_value(verify_blocks(2000, rule="block")[1]) < DAMNING


def test_a_residual_without_the_joint_scale_fails_the_same_check(monkeypatch: pytest.MonkeyPatch) -> None:
    recovered = naive._recovered
    monkeypatch.setattr(naive, "_recovered", lambda chain, j, scale: recovered(chain, j, 1.0))
    assert pairs_p_value(verify_blocks(5000, rule="block")[1]) < FAIR


def test_the_block_rule_keeps_more_draft_tokens() -> None:
    kept = {rule: verify_blocks(2000, rule=rule)[1].num_accepted.float().mean() for rule in ("token", "block")}
    assert kept["block"] > kept["token"] + 0.02


def test_for_one_draft_token_the_rules_are_one() -> None:
    generator = torch.Generator().manual_seed(5)
    n = 300
    target, draft = torch.randn(2 * n, 8, generator=generator), torch.randn(n, 8, generator=generator)
    seeds = torch.arange(n)
    drafts = (draft + gumbel_noise(seeds, seeds * 0 + 4, 8, purpose=Purpose.DRAFT)).argmax(-1)
    arguments = (
        target, drafts, draft, torch.arange(n + 1, dtype=torch.int32), torch.ones(n), seeds, seeds * 0 + 4,
        torch.zeros(n, dtype=torch.bool),
    )  # fmt: skip
    by_token, by_block = (verify_chain(*arguments, rule=rule) for rule in ("token", "block"))
    assert torch.equal(by_block.token_ids, by_token.token_ids)
    assert torch.equal(by_block.overlap, by_token.overlap)


def test_accepted_tokens_are_the_drafts_and_the_overlap_ends_at_the_first_rejection() -> None:
    drafts, verdict = verify_blocks(300, rule="block")
    overlap = verdict.overlap.reshape(-1, 2)
    assert set(verdict.num_accepted.tolist()) == {0, 1, 2}
    for b, kept in enumerate(verdict.num_accepted.tolist()):
        assert verdict.token_ids[b, :kept].tolist() == drafts[b, :kept].tolist()
        assert overlap[b].isnan().tolist() == [False, kept == 0]


def test_a_token_that_the_target_masks_ends_the_block() -> None:
    target = torch.tensor([[0.0, 1.0, 0.5], [-torch.inf, 0.0, 0.5], [1.0, 0.0, 0.0]])
    draft = torch.tensor([[0.0, 1.0, 0.5], [9.0, 0.0, -torch.inf]])
    for seed in range(100):
        verdict = verify_chain(
            target, torch.tensor([1, 0]), draft, torch.tensor([0, 2], dtype=torch.int32), torch.ones(1),
            torch.tensor([seed]), torch.tensor([1]), torch.tensor([False]), rule="block",
        )  # fmt: skip
        assert verdict.num_accepted.tolist() == [1]
        assert verdict.token_ids[0, 1] in (1, 2)


def test_nothing_passes_behind_a_masked_token_even_what_the_drafter_could_not_have_drawn() -> None:
    target = torch.tensor([[-torch.inf, 1.0, 0.5], [0.0, 3.0, 0.5], [1.0, 0.0, 0.0]])
    draft = torch.tensor([[9.0, 1.0, 0.5], [0.0, -torch.inf, 0.0]])
    for seed in range(50):
        verdict = verify_chain(
            target, torch.tensor([0, 1]), draft, torch.tensor([0, 2], dtype=torch.int32), torch.ones(1),
            torch.tensor([seed]), torch.tensor([1]), torch.tensor([False]), rule="block",
        )  # fmt: skip
        assert verdict.num_accepted.tolist() == [0]


def test_seeded_and_greedy_rows_do_not_notice_the_rule() -> None:
    generator = torch.Generator().manual_seed(6)
    target, draft = torch.randn(8, 20, generator=generator), torch.randn(6, 20, generator=generator)
    arguments = (
        target, draft.argmax(-1), draft, torch.tensor([0, 3, 6], dtype=torch.int32), torch.tensor([0.0, 1.0]),
        torch.tensor([1, 2]), torch.tensor([3, 4]), torch.tensor([False, True]),
    )  # fmt: skip
    by_token, by_block = (verify_chain(*arguments, rule=rule) for rule in ("token", "block"))
    assert torch.equal(by_block.token_ids, by_token.token_ids)
