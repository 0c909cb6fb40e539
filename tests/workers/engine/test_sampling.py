"""What top-k, top-p and min_tokens leave of a row, against the plainest way to say it."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import workers.sampling
from workers.detokenizer import Detokenizer
from workers.sampling import restrict, restrict_batch
from workers.sequence import EngineRequest, SamplingParams, Sequence

# A few values only, so that ties are common.
ROWS = st.lists(st.sampled_from([-2.0, -1.0, 0.0, 0.5, 1.0, 3.0]), min_size=2, max_size=12)


def kept(row):
    return [i for i, value in enumerate(row.tolist()) if value > -math.inf]


def sorted_kept(logits, sampling):
    """Values that stay, falling: the k largest, then those before which less than top_p of the mass lies."""
    values = sorted(logits, reverse=True)[: sampling.top_k or None]
    weights = [math.exp(v / sampling.temperature) for v in values]
    mass, out = 0.0, []
    for value, weight in zip(values, weights, strict=True):
        if sampling.top_p < 1 and mass >= sampling.top_p - 1e-6:
            break
        out.append(value)
        mass += weight / sum(weights)
    return out


@settings(max_examples=200, deadline=None)
@given(
    ROWS, st.integers(0, 14), st.sampled_from([0.05, 0.3, 0.613, 0.871, 0.97, 1.0]), st.sampled_from([0.5, 1.0, 1.7])
)
def test_a_row_keeps_what_the_definition_says(logits, top_k, top_p, temperature) -> None:
    sampling = SamplingParams(4, temperature=temperature, top_k=top_k, top_p=top_p)
    row = restrict(torch.tensor([logits]), sampling)[0]
    # With ties any of the equal tokens may stay, so values are compared and not tokens.
    assert sorted((logits[i] for i in kept(row)), reverse=True) == sorted_kept(logits, sampling)


@settings(deadline=None)
@given(ROWS, st.integers(0, 5), st.sampled_from([0.3, 0.8]))
def test_what_stays_keeps_its_logit(logits, top_k, top_p) -> None:
    row = restrict(torch.tensor([logits]), SamplingParams(4, top_k=top_k, top_p=top_p))[0]
    assert [row[i].item() for i in kept(row)] == [logits[i] for i in kept(row)]


@pytest.mark.parametrize("scale", [0.5, 3.0])
def test_a_first_look_at_the_largest_changes_nothing(monkeypatch, scale) -> None:
    """Some of these nuclei end among the first 40 tokens, and some do not."""
    logits = torch.randn(6, 400, generator=torch.Generator().manual_seed(0)) * scale
    logits[0] *= 10
    sampling = SamplingParams(4, top_p=0.8)
    whole = restrict(logits, sampling)
    monkeypatch.setattr(workers.sampling, "FIRST_LOOK", 40)
    assert torch.equal(restrict(logits, sampling), whole)


def test_a_row_does_not_depend_on_the_rows_beside_it() -> None:
    logits = torch.randn(6, 3000, generator=torch.Generator().manual_seed(0)) * 2
    sampling = SamplingParams(4, top_p=0.95)
    together = restrict(logits, sampling)
    assert all(torch.equal(restrict(logits[i : i + 1], sampling)[0], together[i]) for i in range(6))


@pytest.mark.parametrize("top_k", [0, 3])
@pytest.mark.parametrize("top_p", [1e-300, 1e-46, 1e-7])
def test_the_likeliest_token_stays_however_small_top_p_is(top_p, top_k) -> None:
    """In float32 the smallest of them is 0, and a row without any token would be token 0 for ever."""
    row = restrict(torch.tensor([[0.0, 1.0, 3.0, 2.0]]), SamplingParams(4, top_p=top_p, top_k=top_k))[0]
    assert kept(row) == [2]


def test_greedy_rows_are_left_alone() -> None:
    logits = torch.randn(2, 5)
    assert restrict(logits, SamplingParams(4, temperature=0.0, top_k=1, top_p=0.1)) is logits


@pytest.fixture
def make_sequence(tokenizer):
    """A sequence with `emitted` completion tokens."""

    def make(emitted, **sampling):
        request = EngineRequest("r", (3, 4), SamplingParams(20, **sampling), "default")
        return Sequence(request, [3, 4] + [5] * emitted, 0, Detokenizer(tokenizer))

    return make


def test_eos_is_masked_at_every_position_before_min_tokens(make_sequence) -> None:
    """SGLang counts steps instead of tokens, so that EOS stays masked too long when drafts are accepted."""
    logits = torch.ones(5, 8)
    out = restrict_batch(logits, [make_sequence(2, min_tokens=4)], [range(5)], [5] * 4, [2, 6])
    # The rows decide completion tokens number 3 to 7; the fifth is the first that may be EOS.
    assert [kept(row) for row in out] == [[0, 1, 3, 4, 5, 7]] * 2 + [list(range(8))] * 3


@pytest.mark.parametrize("limits", [{"top_k": 1}, {"top_p": 0.1}], ids=["top_k", "top_p"])
def test_where_eos_is_masked_the_next_best_token_stays(make_sequence, limits) -> None:
    """Masked after top-k instead, the row would have nothing left."""
    logits = torch.tensor([[0.0, 1.0, 9.0, 3.0]])
    out = restrict_batch(logits, [make_sequence(0, min_tokens=1, **limits)], [range(1)], [], [2])
    assert kept(out[0]) == [3]


def test_min_tokens_reached_masks_nothing(make_sequence) -> None:
    logits = torch.ones(2, 8)
    assert restrict_batch(logits, [make_sequence(4, min_tokens=4)], [range(2)], [5], [2]) is logits


def test_each_sequence_has_its_own_limits(make_sequence) -> None:
    logits = torch.arange(8.0).repeat(6, 1)
    batch = [make_sequence(0, temperature=0.0), make_sequence(0, top_k=2), make_sequence(0, min_tokens=1)]
    out = restrict_batch(logits, batch, [range(2), range(2, 4), range(4, 6)], [5] * 3, [7])
    sizes = [len(kept(row)) for row in out]
    assert sizes == [8, 8, 2, 2, 7, 8]


def test_the_targets_logits_are_not_written_to(make_sequence) -> None:
    logits = torch.ones(3, 8)
    restrict_batch(
        logits, [make_sequence(0, min_tokens=9), make_sequence(0, top_k=1)], [range(2), range(2, 3)], [5], [2]
    )
    assert torch.equal(logits, torch.ones(3, 8))


def test_bf16_logits_are_limited_like_those_of_fp32() -> None:
    logits = torch.randn(4, 50, generator=torch.Generator().manual_seed(1)).bfloat16()
    sampling = SamplingParams(4, top_k=9, top_p=0.7)
    assert torch.equal(restrict(logits, sampling), restrict(logits.float(), sampling))
