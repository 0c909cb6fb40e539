"""Both rules of unseeded chains against the target's law, exactly: every draft, every verdict and every last token of
the definition are enumerated, with its random numbers integrated out. Nothing here knows how a rule decides.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from kernels.verify import Rule, Verdict, naive, verify_chain
from kernels.verify.verdict import RULES

EXACT = 1e-6
SIZES = ((2, 1), (2, 2), (2, 3), (2, 4), (3, 1), (3, 2), (3, 3))
"""(tokens of the vocabulary, K)."""
Text = tuple[int, ...]


@dataclass(frozen=True)
class Laws:
    """Next-token laws [contexts, vocab] f64 of target and drafter after every text of up to K tokens."""

    vocab: int
    k: int
    target: torch.Tensor
    draft: torch.Tensor | None

    @classmethod
    def drawn(cls, vocab: int, k: int, *, is_one_hot: bool = False, seed: int = 11, spread: float = 1.5) -> Laws:
        """draft: None for a drafter that always says token 1, without a distribution."""
        generator = torch.Generator().manual_seed(seed)
        shape = (sum(vocab**i for i in range(k + 1)), vocab)
        target, draft = (
            torch.softmax(spread * torch.randn(shape, generator=generator, dtype=torch.float64), -1) for _ in range(2)
        )
        return cls(vocab, k, target, None if is_one_hot else draft)

    def row(self, text: Text) -> int:
        return sum(self.vocab**i for i in range(len(text))) + sum(
            token * self.vocab**i for i, token in enumerate(reversed(text))
        )

    @property
    def blocks(self) -> list[Text]:
        """Every chain that can be drafted."""
        return [(1,) * self.k] if self.draft is None else list(itertools.product(range(self.vocab), repeat=self.k))

    def chance(self, block: Text) -> float:
        """That this one is drafted."""
        if self.draft is None:
            return 1.0
        return float(torch.stack([self.draft[self.row(block[:j]), t] for j, t in enumerate(block)]).prod())

    def continuation(self, text: Text) -> dict[Text, float]:
        """The target's law of texts of K + 1 tokens that begin with `text`, given that."""
        law = {text: 1.0}
        while len(next(iter(law))) <= self.k:
            law = {
                (*known, token): so_far * float(self.target[self.row(known), token])
                for known, so_far in law.items()
                for token in range(self.vocab)
            }
        return law


class Enumerated:
    """What becomes of every block of `laws`: chances [blocks, K + 1] f64 that so many drafts are kept; the law of the
    token behind them [blocks, K + 1, vocab]; overlap [blocks, K] f32, NaN where no verdict examines the position.
    """

    def __init__(self, laws: Laws, rule: Rule, patch: pytest.MonkeyPatch) -> None:
        self.laws, self._rule, self._patch = laws, rule, patch
        blocks, k = laws.blocks, laws.k
        lanes = torch.arange(len(blocks) * k)
        at = lanes % k
        low, high = torch.zeros(len(lanes), dtype=torch.float64), torch.ones(len(lanes), dtype=torch.float64)
        for _ in range(26):
            tried = (low + high) / 2
            # Each coin is looked at with all others as they must fall for it to matter.
            coins = (torch.arange(k)[None] > at[:, None]).double()
            coins[lanes, at] = tried
            passes = self._verify(coins)[0].num_accepted > at
            low, high = torch.where(passes, tried, low), torch.where(passes, high, tried)
        coin = torch.cat([torch.ones(len(blocks), 1), ((low + high) / 2).reshape(len(blocks), k)], 1).double()
        self.chances = torch.ones(len(blocks), k + 1, dtype=torch.float64)
        for kept, j in itertools.product(range(k + 1), range(1, k + 1)):
            # By token the first failure decides, by block the last success.
            counts = j <= kept + 1 if rule == "token" else j >= kept
            self.chances[:, kept] *= (coin[:, j] if j <= kept else 1.0 - coin[:, j]) if counts else 1.0
        coins = (torch.arange(k)[None, None] >= torch.arange(k + 1)[None, :, None]).double()
        verdict, scores = self._verify(coins.expand(len(blocks), k + 1, k).reshape(-1, k))
        kept = verdict.num_accepted.reshape(len(blocks), k + 1)
        self.is_possible = kept == torch.arange(k + 1)
        self.last = torch.softmax(scores.double(), -1).reshape(len(blocks), k + 1, laws.vocab)
        overlap = verdict.overlap.reshape(len(blocks), k + 1, k)
        assert torch.equal(overlap.isnan(), torch.arange(k) > kept[:, :, None])
        self.overlap = overlap[:, -1]
        self.drafted = torch.tensor([laws.chance(block) for block in blocks], dtype=torch.float64)

    def _verify(self, coins: torch.Tensor) -> tuple[Verdict, torch.Tensor]:
        """Verdicts of every block with each row of coins that is its own [blocks * n, K] f64, and the log-weights
        [blocks * n, vocab] of the token behind what was kept.
        """
        laws, n = self.laws, len(coins) // len(self.laws.blocks)
        blocks = [block for block in laws.blocks for _ in range(n)]
        rows = torch.tensor([[laws.row(block[:j]) for j in range(laws.k + 1)] for block in blocks])
        seen: list[torch.Tensor] = []

        def note(scores: torch.Tensor) -> int:
            seen.append(scores)
            return 0

        with self._patch.context() as patch:
            patch.setattr(naive, "_acceptance_uniforms", lambda _: coins.reshape(-1))
            patch.setattr(naive._Chain, "noise", lambda *_: torch.zeros(laws.vocab))
            patch.setattr(naive, "_argmax", note)
            verdict = verify_chain(
                laws.target[rows].log().float().reshape(-1, laws.vocab),
                torch.tensor(blocks).reshape(-1),
                None if laws.draft is None else laws.draft[rows[:, :-1]].log().float().reshape(-1, laws.vocab),
                torch.arange(len(blocks) + 1, dtype=torch.int32) * laws.k,
                torch.ones(len(blocks)),
                torch.arange(len(blocks)),
                torch.ones(len(blocks), dtype=torch.int64),
                torch.zeros(len(blocks), dtype=torch.bool),
                rule=self._rule,
                backend="naive",
            )
        return verdict, torch.stack(seen)

    def distance_from_target(self) -> float:
        """Total variation between K + 1 tokens as this step begins them and as the target alone would write them."""
        law = dict.fromkeys(itertools.product(range(self.laws.vocab), repeat=self.laws.k + 1), 0.0)
        for b, block in enumerate(self.laws.blocks):
            for kept in range(self.laws.k + 1):
                chance = float(self.drafted[b] * self.chances[b, kept])
                if not self.is_possible[b, kept]:
                    assert chance < EXACT
                    continue
                for token in range(self.laws.vocab):
                    weight = chance * float(self.last[b, kept, token])
                    for text, rest in self.laws.continuation((*block[:kept], token)).items():
                        law[text] += weight * rest
        return sum(abs(law[text] - p) for text, p in self.laws.continuation(()).items()) / 2

    def survival(self) -> torch.Tensor:
        """[K + 1]: the chance that the first j drafts are kept."""
        return (self.drafted @ self.chances).flip(0).cumsum(0).flip(0)

    def mean_overlap(self) -> torch.Tensor:
        """[K]: of the steps that examine a position, times the chance that one does."""
        reach = self.chances.flip(1).cumsum(1).flip(1)[:, :-1]
        return self.drafted @ (reach * self.overlap.double().nan_to_num())


@pytest.fixture
def enumerate_rule(monkeypatch: pytest.MonkeyPatch) -> Any:
    return lambda laws, rule: Enumerated(laws, rule, monkeypatch)


@pytest.mark.parametrize("is_one_hot", [False, True], ids=["sampled", "one-hot"])
@pytest.mark.parametrize(("vocab", "k"), SIZES)
@pytest.mark.parametrize("rule", RULES)
def test_what_a_step_begins_has_the_targets_law(
    enumerate_rule: Any, rule: Rule, vocab: int, k: int, is_one_hot: bool
) -> None:
    laws = Laws.drawn(vocab, k, is_one_hot=is_one_hot)
    assert enumerate_rule(laws, rule).distance_from_target() < EXACT


@pytest.mark.parametrize("seed", range(6))
def test_by_block_no_position_is_kept_less_often(enumerate_rule: Any, seed: int) -> None:
    laws = Laws.drawn(2, 4, seed=seed)
    by_token, by_block = (enumerate_rule(laws, rule).survival() for rule in RULES)
    assert (by_block - by_token).min() > -EXACT
    assert by_block.sum() > by_token.sum() + 1e-3


def test_for_a_drafter_without_a_distribution_as_much_is_kept_by_block(enumerate_rule: Any) -> None:
    laws = Laws.drawn(3, 3, is_one_hot=True)
    by_token, by_block = (enumerate_rule(laws, rule).survival() for rule in RULES)
    torch.testing.assert_close(by_block, by_token, rtol=0.0, atol=EXACT)


@pytest.mark.parametrize("rule", RULES)
def test_how_often_a_position_is_kept_does_not_depend_on_how_many_follow(enumerate_rule: Any, rule: Rule) -> None:
    """What makes a chain of K a right-censored observation of a longer one."""
    longest = Laws.drawn(2, 4)
    survival = enumerate_rule(longest, rule).survival()
    for k in (1, 2, 3):
        shorter = enumerate_rule(Laws(2, k, longest.target, longest.draft), rule).survival()
        torch.testing.assert_close(shorter, survival[: k + 1], rtol=0.0, atol=EXACT)


@pytest.mark.parametrize("is_one_hot", [False, True], ids=["sampled", "one-hot"])
@pytest.mark.parametrize("rule", RULES)
def test_the_mean_overlap_of_a_position_is_how_often_it_is_kept(
    enumerate_rule: Any, rule: Rule, is_one_hot: bool
) -> None:
    outcome = enumerate_rule(Laws.drawn(2, 4, is_one_hot=is_one_hot), rule)
    torch.testing.assert_close(outcome.mean_overlap(), outcome.survival()[1:], rtol=0.0, atol=EXACT)
