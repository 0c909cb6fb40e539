"""The definition of sampling: exact laws on a small vocabulary, penalties by hand, and verification's own token."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from scipy import stats

from kernels.sample import LogitBias, Purpose, Sampled, count_tokens, sample
from kernels.verify import gumbel_noise, verify_chain

PROBS = torch.tensor([0.35, 0.25, 0.2, 0.12, 0.08])
FAIR, DAMNING = 1e-3, 1e-9
Types = {"top_k": torch.int32}
LAWS: dict[str, tuple[dict[str, float], list[float]]] = {
    "plain": ({}, PROBS.tolist()),
    "top-k": ({"top_k": 3}, [0.35, 0.25, 0.2, 0.0, 0.0]),
    "top-p": ({"top_p": 0.7}, [0.35, 0.25, 0.2, 0.0, 0.0]),
    "min-p": ({"min_p": 0.3}, [0.35, 0.25, 0.2, 0.12, 0.0]),
    "top-p-of-top-k": ({"top_k": 3, "top_p": 0.7}, [0.35, 0.25, 0.0, 0.0, 0.0]),
    "off": ({"top_k": 0, "top_p": 1.0, "min_p": 0.0}, PROBS.tolist()),
    # Token 0 was in the prompt, 1 once and 2 twice in the output; each presence is log 2, each occurrence log 1.5.
    "presence": ({"presence_penalty": 0.6931472}, [0.35, 0.125, 0.1, 0.12, 0.08]),
    "frequency": ({"frequency_penalty": 0.4054651}, [0.35, 0.25 / 1.5, 0.2 / 2.25, 0.12, 0.08]),
    # Logits are negative, so a repetition penalty of 2 squares the probabilities of prompt and output alike.
    "repetition": ({"repetition_penalty": 2.0}, [0.35**2, 0.25**2, 0.2**2, 0.12, 0.08]),
    "top-k-of-penalised": ({"repetition_penalty": 2.0, "top_k": 2}, [0.35**2, 0.0, 0.0, 0.12, 0.0]),
}


def draw(n: int, *, backend: str = "naive", coupled: bool = False, **limits: float) -> Sampled:
    """One token for each of `n` seeds."""
    options: dict[str, Any] = {
        name: torch.full((n,), value, dtype=Types.get(name, torch.float32)) for name, value in limits.items()
    }
    if any(name.endswith("_penalty") for name in limits):
        options["token_counts"] = count_tokens([[0]] * n, [[1, 2, 2]] * n)
    return sample(
        PROBS.log().expand(n, 5),
        torch.ones(n),
        torch.arange(n),
        torch.ones(n, dtype=torch.int64),
        coupled=torch.full((n,), coupled),
        backend=backend,  # type: ignore[arg-type]
        **options,
    )


def p_value(sampled: Sampled, law: list[float]) -> float:
    """Chi-square against the law up to its norm; 0 if a token appears that it excludes."""
    expected = torch.tensor(law, dtype=torch.float64)
    counts = torch.bincount(sampled.token_ids, minlength=len(law))
    if bool((counts[expected == 0] > 0).any()):
        return 0.0
    kept = expected > 0
    fair = expected[kept] / expected[kept].sum() * int(counts.sum())
    return float(stats.chisquare(counts[kept].numpy(), fair.numpy()).pvalue)


@pytest.mark.parametrize("name", LAWS)
def test_tokens_have_the_law_of_the_penalised_and_filtered_row(name: str) -> None:
    limits, law = LAWS[name]
    assert p_value(draw(1500, **limits), law) > FAIR


def test_the_same_check_tells_the_laws_apart() -> None:
    plain = draw(1500)
    rejected = [name for name, (_, law) in LAWS.items() if p_value(plain, law) < DAMNING]
    assert rejected == [name for name in LAWS if name not in ("plain", "off")]


def test_the_total_variation_is_that_of_sampling_noise() -> None:
    n = 3000
    noise = float((PROBS * (1 - PROBS) / n).sqrt().sum() * (2 / torch.pi) ** 0.5 / 2)
    measured = float((torch.bincount(draw(n).token_ids, minlength=5) / n - PROBS).abs().sum() / 2)
    assert measured < 2 * noise


def test_seeded_tokens_have_the_law_over_seeds() -> None:
    limits, law = LAWS["top-p"]
    assert p_value(draw(1500, coupled=True, **limits), law) > FAIR


@pytest.mark.parametrize("name", ["plain", "top-k", "top-p-of-top-k", "repetition"])
def test_the_log_probability_is_that_of_the_law(name: str) -> None:
    limits, law = LAWS[name]
    sampled = draw(50, **limits)
    expected = (torch.tensor(law) / sum(law)).log()[sampled.token_ids]
    torch.testing.assert_close(sampled.logprobs, expected, rtol=0, atol=1e-5)


def mixed_rows(vocab: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(9)
    logits = torch.randn(60, vocab, generator=generator) * 2
    temperature = torch.tensor([0.0, 0.7, 1.4]).repeat(20)
    return logits, temperature, torch.arange(60) - 30, torch.arange(60) * 17, (torch.arange(60) // 3) % 2 == 0


@pytest.mark.parametrize("is_filtered", [False, True])
def test_a_row_takes_the_very_token_that_verification_without_drafts_takes(is_filtered: bool) -> None:
    logits, temperature, seeds, positions, coupled = mixed_rows(200)
    limits = {}
    if is_filtered:
        limits = {
            "top_k": (torch.arange(60, dtype=torch.int32) % 4) * 5,
            "top_p": torch.tensor([1.0, 0.8, 0.95, 0.6, 1.0]).repeat(12),
            "min_p": torch.tensor([0.0, 0.1]).repeat(30),
        }
    verdict = verify_chain(
        logits, torch.zeros(0, dtype=torch.int64), None, torch.zeros(61, dtype=torch.int32), temperature, seeds,
        positions, coupled, **limits,
    )  # fmt: skip
    sampled = sample(logits, temperature, seeds, positions, coupled=coupled, **limits)
    assert sampled.token_ids.tolist() == verdict.token_ids[:, 0].tolist()


def test_a_drafter_samples_from_its_own_stream() -> None:
    logits, _, seeds, positions, _ = mixed_rows(200)
    ones = torch.ones(60)
    drafted = sample(logits, ones, seeds, positions, purpose=Purpose.DRAFT).token_ids
    noise = gumbel_noise(seeds, positions, 200, purpose=Purpose.DRAFT)
    assert drafted.tolist() == (logits + noise).argmax(1).tolist()
    assert drafted.tolist() != sample(logits, ones, seeds, positions).token_ids.tolist()


def test_a_seeded_drafter_shares_the_targets_noise() -> None:
    logits, _, seeds, positions, _ = mixed_rows(200)
    ones, yes = torch.ones(60), torch.ones(60, dtype=torch.bool)
    drafted = sample(logits, ones, seeds, positions, coupled=yes, purpose=Purpose.DRAFT).token_ids
    assert drafted.tolist() == (logits + gumbel_noise(seeds, positions, 200)).argmax(1).tolist()


def greedy(logits: list[float], **options: Any) -> Sampled:
    nothing = torch.zeros(1, dtype=torch.int64)
    return sample(torch.tensor([logits]), torch.zeros(1), nothing, nothing, **options)


def test_a_greedy_row_takes_the_lowest_of_the_best_and_its_log_probability_at_temperature_1() -> None:
    sampled = greedy([1.0, 3.0, 3.0, -torch.inf])
    assert sampled.token_ids.tolist() == [1]
    expected = torch.log_softmax(torch.tensor([1.0, 3.0, 3.0]), 0)[1]
    assert sampled.logprobs.tolist() == pytest.approx([float(expected)])


def penalised(logits: list[float], prompt: list[int], output: list[int], **penalties: float) -> list[float]:
    """What each logit becomes, read off log-probabilities: a bias that leaves two tokens at a time shows their gap."""
    from kernels.sample.adjustments import penalties_of
    from kernels.sample.draws import Draws
    from kernels.sample.naive import adjusted_row

    ones, nothing = torch.ones(1), torch.zeros(1, dtype=torch.int64)
    given = {name: torch.tensor([value]) for name, value in penalties.items()}
    every = penalties_of(
        given.get("repetition"), given.get("presence"), given.get("frequency"), count_tokens([prompt], [output]), ones
    )
    draws = Draws(
        torch.tensor([logits]), ones, nothing, nothing, nothing.bool(), Purpose.RESAMPLE, None, every, None
    )  # fmt: skip
    return adjusted_row(draws, 0).tolist()


def test_a_repetition_penalty_divides_positive_logits_and_multiplies_negative_ones() -> None:
    assert penalised([2.0, -2.0, 3.0, -3.0], [0, 1], [0], repetition=2.0) == [1.0, -4.0, 3.0, -3.0]


def test_presence_and_frequency_count_the_output_and_not_the_prompt() -> None:
    assert penalised([1.0, 1.0, 1.0], [0, 0], [1, 1, 2], presence=0.5, frequency=0.25) == [1.0, 0.0, 0.25]


def test_repetition_comes_before_presence() -> None:
    assert penalised([4.0, 0.0], [], [0], repetition=2.0, presence=1.0) == [1.0, 0.0]


def test_a_bias_comes_last_and_may_ban() -> None:
    counts, one = count_tokens([[0, 1]], [[]]), torch.tensor([4.0])
    bias = LogitBias(torch.tensor([1, 2]), torch.tensor([2.0, -torch.inf]), torch.tensor([0, 2], dtype=torch.int32))
    # 8 / 4 against 2 / 4 + 2, and a banned 9.
    sampled = greedy([8.0, 2.0, 9.0], repetition_penalty=one, token_counts=counts, logit_bias=bias)
    assert sampled.token_ids.tolist() == [1]
    assert sampled.logprobs.tolist() == pytest.approx([float(torch.log_softmax(torch.tensor([2.0, 2.5]), 0)[1])])


def test_a_row_gives_the_same_whatever_its_batch_mates_are() -> None:
    logits, temperature, seeds, positions, coupled = mixed_rows(50)
    counts = count_tokens([[b % 50] for b in range(60)], [[1, 2, b % 7] for b in range(60)])
    repetition, top_p = torch.tensor([1.0, 1.5]).repeat(30), torch.tensor([1.0, 0.9, 0.5]).repeat(20)
    together = sample(
        logits, temperature, seeds, positions, coupled=coupled, repetition_penalty=repetition, token_counts=counts,
        top_p=top_p,
    )  # fmt: skip
    for b in range(60):
        own = slice(b, b + 1)
        alone = sample(
            logits[own], temperature[own], seeds[own], positions[own], coupled=coupled[own],
            repetition_penalty=repetition[own], token_counts=count_tokens([[b % 50]], [[1, 2, b % 7]]),
            top_p=top_p[own],
        )  # fmt: skip
        assert alone.token_ids[0] == together.token_ids[b]
        assert alone.logprobs[0] == together.logprobs[b]


def test_the_logits_are_not_changed() -> None:
    logits = torch.randn(2, 9)
    before, twos = logits.clone(), torch.full((2,), 2.0)
    nothing = torch.zeros(2, dtype=torch.int64)
    sample(logits, twos, nothing, nothing, repetition_penalty=twos, token_counts=count_tokens([[1]] * 2, [[2]] * 2))
    assert torch.equal(logits, before)


def test_an_empty_batch_gives_no_tokens() -> None:
    nothing = torch.zeros(0, dtype=torch.int64)
    assert sample(torch.zeros(0, 5), torch.zeros(0), nothing, nothing).token_ids.shape == (0,)


def test_tokens_are_counted_once_a_sequence() -> None:
    counts = count_tokens([[5, 5, 7], []], [[7, 7, 9], [3]])
    assert counts.cu.tolist() == [0, 3, 4]
    assert counts.token_ids.tolist() == [5, 7, 9, 3]
    assert counts.output_counts.tolist() == [0, 2, 1, 1]
