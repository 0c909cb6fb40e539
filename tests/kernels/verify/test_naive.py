"""The definition of chain verification: exact laws on a tiny Markov model, and the corners of the contract."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from scipy import stats

from kernels.verify import Purpose, Verdict, gumbel_noise, naive, verify_chain

VOCAB = 4
LENGTH = 3
# Next-token laws given the token before: far enough apart that a wrong rule shows, no outcome too rare to count.
TARGET = torch.tensor(
    [[0.45, 0.25, 0.2, 0.1], [0.15, 0.4, 0.15, 0.3], [0.3, 0.1, 0.4, 0.2], [0.2, 0.35, 0.1, 0.35]]
).log()
DRAFT = torch.tensor([[0.15, 0.35, 0.1, 0.4], [0.4, 0.1, 0.4, 0.1], [0.1, 0.4, 0.1, 0.4], [0.4, 0.15, 0.3, 0.15]]).log()
PROMPT = 0
FAIR, DAMNING = 1e-3, 1e-9


def decode(n: int, k: int, *, drafted: str, coupled: bool = False, **options: Any) -> torch.Tensor:
    """Emit LENGTH tokens for each of `n` seeds by draft-verify steps of `k`; [n, LENGTH].

    drafted: "sampled" from DRAFT, or "ngram", the most likely token of DRAFT without draft logits; "one-hot", the same
    with logits that say so. options: rule, backend.
    """
    text = torch.full((n, LENGTH + k + 2), PROMPT)
    length = torch.ones(n, dtype=torch.int64)
    while bool((length <= LENGTH).any()):
        unfinished = (length <= LENGTH).nonzero()[:, 0]
        draft_ids, contexts = [], [text[unfinished, length[unfinished] - 1]]
        for j in range(k):
            logits = DRAFT[contexts[-1]]
            if drafted == "sampled":
                purpose = Purpose.COUPLED if coupled else Purpose.DRAFT
                logits = logits + gumbel_noise(unfinished, length[unfinished] + j, VOCAB, purpose=purpose)
            draft_ids.append(logits.argmax(-1))
            contexts.append(draft_ids[-1])
        before = torch.stack(contexts, 1)
        draft_logits = DRAFT[before[:, :k]].reshape(-1, VOCAB)
        if drafted == "one-hot":
            is_drafted = torch.nn.functional.one_hot(draft_logits.argmax(-1), VOCAB) > 0
            draft_logits = torch.zeros_like(draft_logits).masked_fill(~is_drafted, -torch.inf)
        verdict = verify_chain(
            TARGET[before].reshape(-1, VOCAB),
            torch.stack(draft_ids, 1).reshape(-1) if k else torch.zeros(0, dtype=torch.int64),
            None if drafted == "ngram" else draft_logits,
            torch.arange(len(unfinished) + 1, dtype=torch.int32) * k,
            torch.ones(len(unfinished)),
            unfinished,
            length[unfinished],
            torch.full((len(unfinished),), coupled),
            **options,
        )
        for i, tokens in zip(unfinished.tolist(), verdict.token_ids.tolist(), strict=True):
            emitted = [t for t in tokens if t >= 0]
            text[i, length[i] : length[i] + len(emitted)] = torch.tensor(emitted)
            length[i] += len(emitted)
    return text[:, 1 : LENGTH + 1]


def target_law() -> torch.Tensor:
    """The probability of each of the VOCAB ** LENGTH texts, by enumeration."""
    law = []
    for text in itertools.product(range(VOCAB), repeat=LENGTH):
        law.append(sum(float(TARGET[a, b]) for a, b in itertools.pairwise((PROMPT, *text))))
    return torch.tensor(law, dtype=torch.float64).exp()


def count_texts(texts: torch.Tensor) -> torch.Tensor:
    weights = torch.tensor([VOCAB ** (LENGTH - 1 - i) for i in range(LENGTH)])
    return torch.bincount((texts * weights).sum(1), minlength=VOCAB**LENGTH)


def p_value(texts: torch.Tensor) -> float:
    """Chi-square against the target's own law of whole texts."""
    law = target_law()
    expected = law / law.sum() * len(texts)
    return float(stats.chisquare(count_texts(texts).numpy(), expected.numpy()).pvalue)


def one(target: torch.Tensor, draft_ids: list[int], draft: torch.Tensor | None = None, **rule: object) -> Verdict:
    """Verify a single sequence."""
    return verify_chain(
        target,
        torch.tensor(draft_ids, dtype=torch.int64),
        draft,
        torch.tensor([0, len(draft_ids)], dtype=torch.int32),
        torch.tensor([float(rule.get("temperature", 1.0))]),  # type: ignore[arg-type]
        torch.tensor([rule.get("seed", 0)]),
        torch.tensor([rule.get("position", 1)]),
        torch.tensor([bool(rule.get("coupled", False))]),
    )


@pytest.mark.parametrize("drafted", ["sampled", "ngram", "one-hot"])
@pytest.mark.parametrize("k", [0, 1, 2, 3])
def test_rejection_sampling_emits_the_targets_law(k: int, drafted: str) -> None:
    texts = decode(1000, k, drafted=drafted)
    assert p_value(texts) > FAIR


def test_the_total_variation_from_the_targets_law_is_that_of_sampling_noise() -> None:
    n = 3000
    law = target_law()
    noise = float((law * (1 - law) / n).sqrt().sum() * (2 / torch.pi) ** 0.5 / 2)
    measured = float((count_texts(decode(n, 2, drafted="sampled")) / n - law).abs().sum() / 2)
    assert measured < 1.25 * noise


def test_seeded_texts_have_the_targets_law_over_seeds() -> None:
    assert p_value(decode(1000, 2, drafted="sampled", coupled=True)) > FAIR


def test_always_accepting_fails_the_same_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(naive, "_accepts", lambda *_: True)
    assert p_value(decode(1000, 2, drafted="sampled")) < DAMNING


@pytest.mark.parametrize("drafted", ["sampled", "ngram"])
def test_resampling_without_subtracting_the_draft_fails_the_same_check(
    drafted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(naive, "_residual", lambda target_probs, *_: target_probs)
    assert p_value(decode(1000, 2, drafted=drafted)) < DAMNING


def first_token_p_value(draft_purpose: Purpose) -> float:
    """Chi-square of one step's first token, for a residual that the draft's own noise would skew."""
    target, draft, n = torch.tensor([0.1, 0.45, 0.45]), torch.tensor([0.6, 0.38, 0.02]), 6000
    seeds = torch.arange(n)
    drafts = (draft.log() + gumbel_noise(seeds, torch.ones_like(seeds), 3, purpose=draft_purpose)).argmax(-1)
    verdict = verify_chain(
        target.log().expand(2 * n, 3),
        drafts,
        draft.log().expand(n, 3),
        torch.arange(n + 1, dtype=torch.int32),
        torch.ones(n),
        seeds,
        torch.ones_like(seeds),
        torch.zeros(n, dtype=torch.bool),
    )
    counts = torch.bincount(verdict.token_ids[:, 0], minlength=3)
    return float(stats.chisquare(counts.numpy(), (target.double() / target.double().sum() * n).numpy()).pvalue)


def test_row_14_drafts_that_share_the_noise_of_the_resampling_bias_the_text() -> None:
    assert first_token_p_value(Purpose.DRAFT) > FAIR
    assert first_token_p_value(Purpose.RESAMPLE) < DAMNING


@pytest.mark.parametrize("drafted", ["sampled", "ngram"])
@pytest.mark.parametrize("k", [1, 2, 3])
def test_a_seeded_text_is_the_same_for_every_k_and_drafter(k: int, drafted: str) -> None:
    alone = decode(200, 0, drafted="ngram", coupled=True)
    assert torch.equal(decode(200, k, drafted=drafted, coupled=True), alone)


def test_a_drafter_under_the_shared_noise_is_accepted_more_often_than_one_with_its_own() -> None:
    accepted = {}
    for purpose in (Purpose.COUPLED, Purpose.DRAFT):
        seeds = torch.arange(400)
        drafts = (DRAFT[PROMPT] + gumbel_noise(seeds, torch.ones_like(seeds), VOCAB, purpose=purpose)).argmax(-1)
        accepted[purpose] = sum(
            int(one(TARGET[[PROMPT, d]], [d], seed=seed, coupled=True).num_accepted)
            for seed, d in enumerate(drafts.tolist())
        )
    assert accepted[Purpose.COUPLED] > accepted[Purpose.DRAFT] + 50


def test_greedy_accepts_the_argmax_and_then_adds_its_own() -> None:
    target = torch.tensor([[0.0, 2.0, 1.0], [3.0, 0.0, 1.0], [0.0, 1.0, 5.0]])
    verdict = one(target, [1, 0], temperature=0.0)
    assert verdict.token_ids.tolist() == [[1, 0, 2]]
    assert verdict.num_accepted.tolist() == [2]


def test_greedy_replaces_the_first_mismatch_and_examines_no_further() -> None:
    target = torch.tensor([[0.0, 2.0, 1.0], [3.0, 0.0, 1.0], [0.0, 1.0, 5.0]])
    verdict = one(target, [2, 0], temperature=0.0)
    assert verdict.token_ids.tolist() == [[1, -1, -1]]
    assert verdict.overlap[0] == 0.0
    assert verdict.overlap[1].isnan()


def test_greedy_breaks_ties_by_the_lowest_token() -> None:
    tied = torch.tensor([[1.0, 4.0, 4.0, 4.0], [2.0, 2.0, 2.0, 2.0]])
    assert one(tied, [2], temperature=0.0).token_ids.tolist() == [[1, -1]]
    assert one(tied, [1], temperature=0.0).token_ids.tolist() == [[1, 0]]


@pytest.mark.parametrize("drafted", ["logits", "ngram"])
@pytest.mark.parametrize("coupled", [False, True])
def test_a_token_masked_by_the_target_is_never_accepted(drafted: str, coupled: bool) -> None:
    target = torch.tensor([[float("-inf"), 0.0, 0.5], [0.0, 0.0, 0.0]])
    draft = torch.tensor([[9.0, -9.0, -9.0]]) if drafted == "logits" else None
    for seed in range(100):
        verdict = one(target, [0], draft, seed=seed, coupled=coupled)
        assert verdict.num_accepted.tolist() == [0]
        assert verdict.token_ids[0, 0] in (1, 2)


def test_a_token_masked_by_both_models_is_rejected_without_a_nan() -> None:
    masked = torch.tensor([[float("-inf"), 0.0, 0.5]])
    verdict = one(torch.cat([masked, masked]), [0], masked)
    assert verdict.num_accepted.tolist() == [0]
    assert verdict.overlap.tolist() == pytest.approx([1.0])


def test_a_target_that_allows_one_token_emits_it_always() -> None:
    only = torch.full((2, 5), float("-inf"))
    only[:, 3] = -7.0
    for draft in (3, 1):
        assert one(only, [draft]).token_ids[0, 0] == 3


def test_an_empty_residual_falls_back_to_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    # Rounding makes this case; forcing the rejection makes it every time.
    monkeypatch.setattr(naive, "_accepts", lambda *_: False)
    same = torch.tensor([[0.0, float("-inf"), 1.0]])
    emitted = {int(one(torch.cat([same, same]), [0], same, seed=seed).token_ids[0, 0]) for seed in range(60)}
    assert emitted == {0, 2}


def test_equal_distributions_accept_every_token() -> None:
    logits = torch.randn(4, 50, generator=torch.Generator().manual_seed(1))
    for seed in range(50):
        assert one(logits, [7, 8, 9], logits[:3], seed=seed).num_accepted.tolist() == [3]


def test_the_overlap_is_the_probability_of_acceptance() -> None:
    seeds, n = torch.arange(2000), 2000
    drafts = (DRAFT[PROMPT] + gumbel_noise(seeds, torch.ones_like(seeds), VOCAB, purpose=Purpose.DRAFT)).argmax(-1)
    verdict = verify_chain(
        TARGET[torch.stack([torch.full_like(drafts, PROMPT), drafts], 1)].reshape(-1, VOCAB),
        drafts,
        DRAFT[PROMPT].expand(n, VOCAB),
        torch.arange(n + 1, dtype=torch.int32),
        torch.ones(n),
        seeds,
        torch.ones_like(seeds),
        torch.zeros(n, dtype=torch.bool),
    )
    beta = float(torch.minimum(TARGET[PROMPT].exp(), DRAFT[PROMPT].exp()).sum())
    assert verdict.overlap.tolist() == pytest.approx([beta] * n, abs=1e-6)
    assert stats.binomtest(int(verdict.num_accepted.sum()), n, beta).pvalue > FAIR


def test_the_temperature_applies_to_both_models() -> None:
    target, draft = torch.tensor([[1.0, 3.0], [0.0, 0.0]]), torch.tensor([[2.0, -2.0]])
    overlap = one(target, [0], draft, temperature=0.5).overlap
    expected = torch.minimum(torch.softmax(target[0] / 0.5, 0), torch.softmax(draft[0] / 0.5, 0)).sum()
    assert overlap.tolist() == pytest.approx([float(expected)])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_logits_are_read_as_their_float32_values(dtype: torch.dtype) -> None:
    logits = torch.randn(4, 300, generator=torch.Generator().manual_seed(2)).to(dtype)
    half, full = one(logits, [5, 6, 7], logits[1:]), one(logits.float(), [5, 6, 7], logits[1:].float())
    assert torch.equal(half.token_ids, full.token_ids)
    assert torch.equal(half.overlap.nan_to_num(-1), full.overlap.nan_to_num(-1))


def test_a_row_gives_the_same_whatever_its_batch_mates_are() -> None:
    generator = torch.Generator().manual_seed(3)
    ks, vocab = [3, 0, 8, 1, 2, 0], 50
    rows = sum(ks) + len(ks)
    target, draft = torch.randn(rows, vocab, generator=generator), torch.randn(sum(ks), vocab, generator=generator)
    drafts = torch.randint(vocab, (sum(ks),), generator=generator)
    cu = torch.tensor([0, *itertools.accumulate(ks)], dtype=torch.int32)
    temperature = torch.tensor([0.0, 0.7, 1.0, 1.3, 1.0, 0.0])
    coupled = torch.tensor([False, True, False, True, False, False])
    seeds, positions = torch.arange(6) - 3, torch.arange(6) * 11
    together = verify_chain(target, drafts, draft, cu, temperature, seeds, positions, coupled)
    for b, k in enumerate(ks):
        start, end = int(cu[b]), int(cu[b + 1])
        alone = verify_chain(
            target[start + b : end + b + 1], drafts[start:end], draft[start:end],
            torch.tensor([0, k], dtype=torch.int32), temperature[b : b + 1], seeds[b : b + 1],
            positions[b : b + 1], coupled[b : b + 1],
        )  # fmt: skip
        assert torch.equal(together.token_ids[b, : k + 1], alone.token_ids[0])
        assert together.num_accepted[b] == alone.num_accepted[0]
        assert torch.equal(together.overlap[start:end].nan_to_num(-1), alone.overlap.nan_to_num(-1))


def test_an_empty_proposal_is_one_sample_of_the_target() -> None:
    row = TARGET[[PROMPT]]
    verdict = one(row, [], seed=11, position=5)
    own = row[0] + gumbel_noise(torch.tensor([11]), torch.tensor([5]), VOCAB, purpose=Purpose.RESAMPLE)[0]
    assert verdict.token_ids.tolist() == [[int(own.argmax())]]
    assert verdict.num_accepted.tolist() == [0]
    assert verdict.overlap.shape == (0,)


def test_an_empty_batch_gives_an_empty_verdict() -> None:
    nothing = torch.zeros(0, dtype=torch.int64)
    verdict = verify_chain(
        torch.zeros(0, 5), nothing, None, torch.zeros(1, dtype=torch.int32), torch.zeros(0), nothing, nothing,
        torch.zeros(0, dtype=torch.bool),
    )  # fmt: skip
    assert verdict.token_ids.shape == (0, 1)
