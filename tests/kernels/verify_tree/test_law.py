"""The emitted law of recursive rejection: enumerated from the rule's own functions, and counted from the operation."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from scipy import stats

from kernels.verify import Purpose, gumbel_noise
from kernels.verify_tree import naive, rejection, verify_tree

VOCAB = 4
LENGTH = 2
# Next-token laws given the token before: far enough apart that a wrong rule shows, no outcome too rare to count.
TARGET = torch.tensor(
    [[0.1, 0.35, 0.3, 0.25], [0.3, 0.1, 0.25, 0.35], [0.25, 0.3, 0.1, 0.35], [0.35, 0.25, 0.3, 0.1]]
).log()
DRAFT = torch.tensor(
    [[0.7, 0.1, 0.05, 0.15], [0.1, 0.7, 0.15, 0.05], [0.15, 0.1, 0.7, 0.05], [0.05, 0.1, 0.15, 0.7]]
).log()
PROMPT = 0
FAIR, DAMNING = 1e-3, 1e-7
# Parents: three children of the root, two of its first and one of its second.
TREE = (-1, -1, -1, 0, 0, 1)
draw_law = rejection.draft_probs_of
"""What children are truly drawn from, also where a test breaks the verification."""


def emitted_law(target: torch.Tensor, draft: torch.Tensor | None, num_children: int) -> torch.Tensor:
    """Law of one token by enumeration over all draws of children and all outcomes of their tests.

    Without draft logits the children are the first tokens of the vocabulary.
    """
    law = torch.zeros_like(target)

    def descend(residual: torch.Tensor, tried: list[int], weight: float) -> None:
        if len(tried) == num_children:
            left = residual if bool((residual > 0).any()) else target
            law.add_(left / left.sum() * weight)
            return
        drawn = rejection.one_hot(target, len(tried)) if draft is None else draw_law(draft, tried)
        for token in range(len(target)):
            if drawn[token] == 0:
                continue
            believed = drawn if draft is None else rejection.draft_probs_of(draft, tried)
            stands = min(1.0, rejection.acceptance(residual, believed, token))
            law[token] += weight * float(drawn[token]) * stands
            if stands < 1.0:
                rest = rejection.residual_after(residual, believed)
                descend(rest, [*tried, token], weight * float(drawn[token]) * (1 - stands))

    descend(target, [], 1.0)
    return law


def total_variation(num_children: int, *, drafted: str = "all", rows: tuple[int, int] = (0, 0)) -> float:
    target = TARGET[rows[0]].double().softmax(-1)
    draft = DRAFT[rows[1]].double()
    if drafted == "half":  # a drafter whose vocabulary is used up before its children are
        draft = draft.index_fill(0, torch.tensor([0, 2]), -torch.inf)
    law = emitted_law(target, None if drafted == "none" else draft, num_children)
    return float((law - target).abs().sum() / 2)


@pytest.mark.parametrize("drafted", ["all", "half", "none"])
@pytest.mark.parametrize("num_children", [0, 1, 2, 3, 4])
def test_the_rule_emits_the_targets_law_exactly(num_children: int, drafted: str) -> None:
    for rows in itertools.product(range(VOCAB), repeat=2):
        assert total_variation(num_children, drafted=drafted, rows=rows) < 1e-6


def with_replacement(scores: torch.Tensor, _tried: list[int]) -> torch.Tensor:
    return torch.softmax(scores, -1)


def without_renormalising(scores: torch.Tensor, tried: list[int]) -> torch.Tensor:
    return torch.softmax(scores, -1).index_fill(0, torch.tensor(tried, dtype=torch.int64), 0.0)


def break_rule(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "every child against the original laws":
        monkeypatch.setattr(rejection, "draft_probs_of", with_replacement)
        monkeypatch.setattr(rejection, "residual_after", lambda residual, _draft_probs: residual)
    elif name == "draft probabilities of tried tokens stay":
        monkeypatch.setattr(rejection, "draft_probs_of", with_replacement)
    elif name == "draft probabilities are not normalised again":
        monkeypatch.setattr(rejection, "draft_probs_of", without_renormalising)
    elif name == "the residual is taken as if drawn with replacement":
        first: list[torch.Tensor] = []
        after = rejection.residual_after

        def remember(scores: torch.Tensor, tried: list[int]) -> torch.Tensor:
            first[:] = [torch.softmax(scores, -1)]
            return draw_law(scores, tried)

        monkeypatch.setattr(rejection, "draft_probs_of", remember)
        monkeypatch.setattr(rejection, "residual_after", lambda residual, _draft_probs: after(residual, first[0]))
    elif name == "the residual is the target's law":
        monkeypatch.setattr(rejection, "residual_after", lambda residual, _draft_probs: residual)
    else:
        raise AssertionError(name)


MUTATIONS = (
    "every child against the original laws",
    "draft probabilities of tried tokens stay",
    "draft probabilities are not normalised again",
    "the residual is taken as if drawn with replacement",
    "the residual is the target's law",
)


@pytest.mark.parametrize("name", MUTATIONS)
def test_the_enumeration_sees_a_broken_rule(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    break_rule(name, monkeypatch)
    assert total_variation(3, rows=(0, 0)) > 0.02


def decode(
    n: int, *, drafted: str, coupled: bool = False, parents: tuple[int, ...] = TREE, tokens: int = LENGTH
) -> torch.Tensor:
    """Emit `tokens` tokens for each of `n` seeds by draft-verify steps with trees of `parents`; [n, tokens].

    drafted: "sampled" from DRAFT without replacement, or "likely", DRAFT's most likely tokens without draft logits.
    """
    text = torch.full((n, tokens + len(parents) + 2), PROMPT)
    length = torch.ones(n, dtype=torch.int64)
    while bool((length <= tokens).any()):
        unfinished = (length <= tokens).nonzero()[:, 0]
        drafts: list[torch.Tensor] = []
        contexts = [text[unfinished, length[unfinished] - 1]]
        for node, parent in enumerate(parents):
            rank, depth = parents[:node].count(parent), 0 if parent < 0 else 1
            scores = DRAFT[contexts[parent + 1]]
            if drafted == "sampled":
                purpose = Purpose.COUPLED if coupled else Purpose.DRAFT
                scores = scores + gumbel_noise(unfinished, length[unfinished] + depth, VOCAB, purpose=purpose)
            drafts.append(scores.argsort(-1, descending=True)[:, rank])
            contexts.append(drafts[-1])
        before = torch.stack(contexts, 1).reshape(-1)
        batch = len(unfinished)
        verdict = verify_tree(
            TARGET[before],
            torch.stack(drafts, 1).reshape(-1),
            torch.tensor(parents, dtype=torch.int32).repeat(batch),
            DRAFT[before] if drafted == "sampled" else None,
            torch.arange(batch + 1, dtype=torch.int32) * len(parents),
            torch.ones(batch),
            unfinished,
            length[unfinished],
            torch.full((batch,), coupled),
        )
        for i, emitted in zip(unfinished.tolist(), verdict.token_ids.tolist(), strict=True):
            kept = [t for t in emitted if t >= 0]
            text[i, length[i] : length[i] + len(kept)] = torch.tensor(kept)
            length[i] += len(kept)
    return text[:, 1 : tokens + 1]


def p_value(texts: torch.Tensor) -> float:
    """Chi-square against the target's own law of whole texts."""
    law = TARGET[PROMPT].exp().double()
    if texts.shape[1] == 2:
        law = (law[:, None] * TARGET.exp()).reshape(-1)
    weights = VOCAB ** torch.arange(texts.shape[1]).flip(0)
    counts = torch.bincount((texts * weights).sum(1), minlength=len(law))
    return float(stats.chisquare(counts.numpy(), (law / law.sum() * len(texts)).numpy()).pvalue)


@pytest.mark.parametrize("drafted", ["sampled", "likely"])
def test_trees_emit_the_targets_law(drafted: str) -> None:
    assert p_value(decode(2000, drafted=drafted)) > FAIR


def test_seeded_trees_have_the_targets_law_over_seeds() -> None:
    assert p_value(decode(1500, drafted="sampled", coupled=True)) > FAIR


@pytest.mark.parametrize("name", MUTATIONS)
def test_counting_sees_a_broken_rule(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    break_rule(name, monkeypatch)
    assert p_value(decode(2000, drafted="sampled", parents=(-1, -1, -1), tokens=1)) < DAMNING


def test_counting_sees_siblings_that_share_a_uniform(monkeypatch: pytest.MonkeyPatch) -> None:
    own: Callable[..., torch.Tensor] = naive.uniforms
    monkeypatch.setattr(naive, "uniforms", lambda *arguments: own(*arguments)[:, :1].expand(-1, arguments[2]))
    assert p_value(decode(3000, drafted="sampled", parents=(-1, -1, -1), tokens=1)) < DAMNING


def test_the_overlap_is_the_probability_that_a_sibling_stands() -> None:
    n, children = 2500, 3
    seeds = torch.arange(n)
    noise = gumbel_noise(seeds, torch.ones_like(seeds), VOCAB, purpose=Purpose.DRAFT)
    drafts = (DRAFT[PROMPT] + noise).argsort(-1, descending=True)[:, :children]
    verdict = verify_tree(
        TARGET[PROMPT].expand(n * (children + 1), VOCAB),
        drafts.reshape(-1),
        torch.full((n * children,), -1, dtype=torch.int32),
        DRAFT[PROMPT].expand(n * (children + 1), VOCAB),
        torch.arange(n + 1, dtype=torch.int32) * children,
        torch.ones(n),
        seeds,
        torch.ones_like(seeds),
        torch.zeros(n, dtype=torch.bool),
    )
    overlap = verdict.overlap.reshape(n, children)
    for rank in range(children):
        at_risk = verdict.num_examined[:, 0] > rank
        assert overlap[at_risk, rank].isfinite().all()
        assert overlap[~at_risk, rank].isnan().all()
        stood = (verdict.accepted_rank[at_risk, 0] == rank).sum()
        mean, count = float(overlap[at_risk, rank].mean()), int(at_risk.sum())
        assert stats.binomtest(int(stood), count, mean).pvalue > FAIR
