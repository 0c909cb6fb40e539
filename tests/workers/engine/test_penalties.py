"""Which tokens count for a penalty at each row of a block, against counting them anew."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.sample import LogitBias, count_tokens
from kernels.sample.adjustments import penalties_of
from kernels.sample.draws import Draws
from kernels.sample.naive import adjusted_row
from kernels.verify import Purpose
from workers.detokenizer import Detokenizer
from workers.penalties import NOT_SEEN, TokenTally
from workers.sampling import adjust, adjust_sequence, restrict_batch
from workers.sequence import EngineRequest, SamplingParams, Sequence

VOCAB = 12
TOKENS = st.lists(st.integers(0, VOCAB - 1), max_size=12)
STRENGTHS = {"repetition_penalty": 1.7, "presence_penalty": 0.6, "frequency_penalty": -0.9}


def tallied(prompt, output, repetition_penalty=2.0):
    tally = TokenTally(prompt, repetition_penalty)
    tally.catch_up(prompt + output)
    return tally


@settings(max_examples=60, deadline=None)
@given(TOKENS, TOKENS, TOKENS)
def test_each_row_counts_the_output_and_the_drafts_before_it(prompt, output, drafts) -> None:
    token_ids, occurrences = tallied(prompt, output).along(drafts)
    assert len(set(token_ids.tolist())) == len(token_ids)
    for j, row in enumerate(occurrences.tolist()):
        seen = dict.fromkeys(prompt, 0) | Counter(output + drafts[:j])
        assert {t: n for t, n in zip(token_ids.tolist(), row, strict=True) if n != NOT_SEEN} == seen


@settings(max_examples=30, deadline=None)
@given(TOKENS, TOKENS, st.lists(st.integers(0, 12), max_size=4))
def test_counting_as_the_text_grows_is_counting_at_its_end(prompt, output, cuts) -> None:
    tally = TokenTally(prompt, 2.0)
    for cut in sorted(min(cut, len(output)) for cut in cuts):
        tally.catch_up(prompt + output[:cut])
        tally.along([1, 2, 1])  # what was only drafted leaves nothing behind
    tally.catch_up(prompt + output)
    found, expected = (dict(zip(*(part.tolist() for part in (ids, n[0])), strict=True)) for ids, n in (
        tally.along([]), tallied(prompt, output).along([]),
    ))  # fmt: skip
    assert found == expected


def test_a_thousand_new_tokens_find_room() -> None:
    output = [i % 700 for i in range(1000)]
    token_ids, occurrences = tallied([], output).along([])
    assert dict(zip(token_ids.tolist(), occurrences[0].tolist(), strict=True)) == Counter(output)


def test_without_a_repetition_penalty_the_prompt_need_not_be_kept() -> None:
    assert tallied([1, 2, 3], [3, 4], repetition_penalty=1.0).along([])[0].tolist() == [3, 4]


@settings(max_examples=60, deadline=None)
@given(TOKENS, TOKENS, TOKENS, st.sets(st.sampled_from(sorted(STRENGTHS))), st.integers(0, 9))
def test_a_row_of_a_block_is_bit_for_bit_the_row_of_plain_decoding(prompt, output, drafts, chosen, seed) -> None:
    """The better the drafter, the weaker the penalty: one token a step reached it (sglang 33643)."""
    sampling = SamplingParams(50, logit_bias=((2, 1.5), (7, -4.0)), **{name: STRENGTHS[name] for name in chosen})
    logits = torch.randn(len(drafts) + 1, VOCAB, generator=torch.Generator().manual_seed(seed)).bfloat16()
    block = adjust(logits, sampling, tallied(prompt, output), drafts, len(output), [2])
    for j in range(len(drafts) + 1):
        grown = tallied(prompt, output + drafts[:j])
        plain = adjust(logits[j : j + 1], sampling, grown, [], len(output) + j, [2])
        assert torch.equal(block[j : j + 1], plain)


@settings(max_examples=30, deadline=None)
@given(TOKENS, TOKENS, st.integers(0, 9))
def test_a_row_is_the_one_that_the_sampling_kernel_makes(prompt, output, seed) -> None:
    logits = torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(seed)) * 3
    ours = adjust(logits, SamplingParams(9, logit_bias=((2, 1.5),), **STRENGTHS), tallied(prompt, output), [], 0, [])
    one = torch.ones(1)
    penalties = penalties_of(*(torch.tensor([v]) for v in STRENGTHS.values()), count_tokens([prompt], [output]), one)
    bias = LogitBias(torch.tensor([2]), torch.tensor([1.5]), torch.tensor([0, 1], dtype=torch.int32))
    zero = torch.zeros(1, dtype=torch.int64)
    draws = Draws(logits, one, zero, zero, torch.tensor([False]), Purpose.RESAMPLE, None, penalties, bias)
    assert torch.equal(ours[0], adjusted_row(draws, 0))


@pytest.fixture
def make_sequence(tokenizer):
    def make(prompt, output, **sampling):
        request = EngineRequest("r", tuple(prompt), SamplingParams(20, **sampling), "default")
        return Sequence(request, [*prompt, *output], 0, Detokenizer(tokenizer))

    return make


def test_row_18_four_accepted_drafts_count_as_one(make_sequence) -> None:
    """SGLang fed its penalties the last token of a step alone (33643)."""
    sequence = make_sequence([1], [4], frequency_penalty=1.0)
    logits = torch.zeros(5, VOCAB)
    first = restrict_batch(logits, [sequence], [range(5)], [5, 5, 5, 5], [])
    assert first[:, 5].tolist() == [0.0, -1.0, -2.0, -3.0, -4.0]
    sequence.token_ids += [5, 5, 5, 5]
    assert restrict_batch(logits[:1], [sequence], [range(1)], [], [])[0, 5] == -4.0


def test_row_16_17_min_p_biases_and_penalties_reach_the_bonus_token_alone(make_sequence) -> None:
    """min_p and logit_bias reached the bonus token alone (vllm 42744), penalties none (vllm 18902)."""
    sequence = make_sequence([1], [4], presence_penalty=2.0, logit_bias=((3, -100.0),), min_p=0.5)
    allowed = restrict_batch(torch.zeros(4, VOCAB), [sequence], [range(4)], [6, 7, 8], [])
    assert [sorted(set(range(VOCAB)) - set(row.isfinite().nonzero().flatten().tolist())) for row in allowed] == [
        [3, 4], [3, 4, 6], [3, 4, 6, 7], [3, 4, 6, 7, 8]
    ]  # fmt: skip


def test_sequences_of_a_batch_have_their_own_drafts(make_sequence) -> None:
    batch = [
        make_sequence([1], [], frequency_penalty=1.0),
        make_sequence([1], []),
        make_sequence([1], [9], frequency_penalty=2.0),
    ]
    out = restrict_batch(torch.zeros(7, VOCAB), batch, [range(3), range(3, 5), range(5, 7)], [5, 5, 6, 7], [])
    assert out.sum(-1).tolist() == [0.0, -1.0, -2.0, 0.0, 0.0, -2.0, -4.0]


def test_stop_tokens_are_masked_until_min_tokens_too(make_sequence) -> None:
    sequence = make_sequence([1], [4], min_tokens=3, stop_token_ids=(7,))
    out = restrict_batch(torch.zeros(4, VOCAB), [sequence], [range(4)], [5, 5, 5], [2])
    assert [(~row.isfinite()).nonzero().flatten().tolist() for row in out] == [[2, 7], [2, 7], [], []]


def test_a_grammar_masks_what_penalties_and_bias_have_made(make_sequence) -> None:
    class OnlyEven:
        """Allows even tokens after an even number of drafts, and odd ones else."""

        def masks(self, drafts, rows):
            return [bytes([0b10101010 if j % 2 else 0b01010101] * 8) for j in range(len(drafts) + 1)][-rows:]

    sequence = make_sequence([1], [4], logit_bias=((3, 50.0), (4, 9.0)), temperature=0.0)
    sequence.grammar = OnlyEven()
    out = restrict_batch(torch.zeros(2, VOCAB), [sequence], [range(2)], [4], [2])
    assert out.argmax(-1).tolist() == [4, 3]
    # A drafter asks for one row at a time.
    assert torch.equal(adjust_sequence(torch.zeros(1, VOCAB), sequence, [4], ()), out[1:])


def test_a_row_without_a_wish_is_the_targets_own(make_sequence) -> None:
    logits = torch.zeros(3, VOCAB)
    plain = make_sequence([1], [4], temperature=0.0, top_p=0.5, min_p=0.5, logprobs=5, prompt_logprobs=1, stop=("x",))
    assert restrict_batch(logits, [plain], [range(3)], [5, 5], [2]) is logits
    assert plain.tally is None


def test_the_bias_is_added_to_what_the_penalty_leaves() -> None:
    """In the other order a repetition penalty would multiply the bias."""
    logits = torch.tensor([[1.0, 2.0]])
    out = adjust(logits, SamplingParams(4, repetition_penalty=2.0, logit_bias=((1, 5.0),)), tallied([1], []), [], 0, [])
    assert out.tolist() == [[1.0, 6.0]]


def test_greedy_rows_are_penalised() -> None:
    out = adjust(torch.tensor([[1.0, 1.5]]), SamplingParams(4, 0.0, presence_penalty=1.0), tallied([], [1]), [], 1, [])
    assert out.argmax().item() == 0


def test_rows_that_were_handed_out_do_not_change_as_the_text_grows() -> None:
    tally = tallied([1], [2])
    before = tally.along([3])[1]
    tally.catch_up([1, 2, 3, 3])
    assert before.tolist() == [[0, 1, NOT_SEEN], [0, 1, 1]]
    assert tally.along([])[1].tolist() == [[0, 1, 2]]
