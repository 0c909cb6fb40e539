"""A draft model's cache has no holes and no rejected tokens, and its vocabulary is the target's."""

from __future__ import annotations

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from workers.detokenizer import Detokenizer
from workers.proposers.draft_model import DraftModelProposer, VocabularyMismatch, check_vocabulary
from workers.sequence import EngineRequest, SamplingParams, Sequence

VOCAB = 48


@pytest.fixture
def make_sequence(tokenizer):
    def make(token_ids, name="r", **sampling):
        sampling.setdefault("temperature", 0.0)
        request = EngineRequest(name, tuple(token_ids), SamplingParams(50, **sampling), "default")
        return Sequence(request, list(token_ids), 7, Detokenizer(tokenizer))

    return make


@pytest.fixture
def proposer(make_runner):
    return DraftModelProposer(make_runner(), VOCAB)


def greedy(own_logits, token_ids, k):
    """The draft model's own greedy continuation, computed from nothing each time."""
    token_ids = list(token_ids)
    for _ in range(k):
        token_ids.append(int(own_logits([token_ids])[0, -1].argmax()))
    return token_ids[-k:]


def test_it_proposes_its_own_greedy_text(proposer, make_sequence, own_logits) -> None:
    prompt = list(range(3, 20))
    assert proposer.propose([make_sequence(prompt)], [5]).tokens(0) == greedy(own_logits, prompt, 5)


def test_a_rejected_draft_is_forgotten(proposer, make_sequence, own_logits) -> None:
    sequence = make_sequence(list(range(3, 20)))
    first, second, *_ = proposer.propose([sequence], [4]).tokens(0)
    sequence.token_ids += [first, (second + 1) % VOCAB]
    assert proposer.propose([sequence], [4]).tokens(0) == greedy(own_logits, sequence.token_ids, 4)


def test_tokens_missed_while_k_was_zero_are_caught_up(proposer, make_sequence, own_logits) -> None:
    sequence = make_sequence(list(range(3, 20)))
    proposer.propose([sequence], [3])
    for token_id in (30, 31, 32, 33, 34, 35):
        sequence.token_ids.append(token_id)
        assert proposer.propose([sequence], [0]).tokens(0) == []
    assert proposer.propose([sequence], [4]).tokens(0) == greedy(own_logits, sequence.token_ids, 4)


def test_a_draft_behind_a_rejected_one_is_forgotten_even_if_the_text_has_it(proposer, make_sequence) -> None:
    """The keys of a token depend on those before it: the same token behind another one is not the same."""
    sequence = make_sequence(list(range(3, 20)), temperature=1.0, seed=1)
    first, second, *_ = proposer.propose([sequence], [4]).tokens(0)
    sequence.token_ids += [(first + 1) % VOCAB, second, 9]
    after = proposer.propose([sequence], [1]).draft_logits
    fresh = make_sequence(sequence.token_ids, "fresh", temperature=1.0, seed=1)
    assert torch.allclose(after, proposer.propose([fresh], [1]).draft_logits, atol=1e-4)


def test_a_long_prompt_is_caught_up_in_pieces(proposer, make_sequence, own_logits) -> None:
    prompt = [3 + i * 7 % 40 for i in range(200)]
    assert proposer.propose([make_sequence(prompt)], [2]).tokens(0) == greedy(own_logits, prompt, 2)


def test_positions_say_what_the_draft_model_computed(proposer, make_sequence) -> None:
    sequence = make_sequence(list(range(3, 20)))
    proposal = proposer.propose([sequence], [3])
    assert proposal.positions == (16 + 3,)
    sequence.token_ids += [*proposal.tokens(0), 9]
    # Its last draft token and the target's extra one were never fed; then one more for the second draft token.
    assert proposer.propose([sequence], [2]).positions == (1 + 2,)


def test_a_ragged_batch_drafts_what_each_would_alone(proposer, make_sequence, own_logits) -> None:
    prompts = [[3, 4, 5], list(range(3, 30)), [9], [5, 6]]
    batch = [make_sequence(p, f"{i}") for i, p in enumerate(prompts)]
    proposal = proposer.propose(batch, [2, 4, 0, 1])
    assert proposal.cu_draft == (0, 2, 6, 6, 7)
    for b, k in ((0, 2), (1, 4), (3, 1)):
        assert proposal.tokens(b) == greedy(own_logits, prompts[b], k)


def test_a_greedy_draft_says_not_what_it_was_drawn_from_unless_a_batch_mate_must(proposer, make_sequence) -> None:
    greedy_one, sampled = make_sequence([3, 4, 5], "a"), make_sequence([6, 7, 8], "b", temperature=1.0)
    alone = proposer.propose([greedy_one], [3])
    together = proposer.propose([greedy_one, sampled], [3, 2])
    assert alone.draft_logits is None
    assert alone.tokens(0) == together.tokens(0)
    assert together.draft_logits.shape == (5, VOCAB)


def test_draft_logits_are_those_that_the_draft_was_sampled_from(proposer, make_sequence, own_logits) -> None:
    """The acceptance test needs the drafter's law with the request's top-k, else the output is biased."""
    prompt = list(range(3, 20))
    proposal = proposer.propose([make_sequence(prompt, temperature=1.0, top_k=5)], [1])
    kept = proposal.draft_logits[0] > -torch.inf
    assert kept.sum() == 5
    assert kept[proposal.tokens(0)[0]]
    assert torch.allclose(proposal.draft_logits[0][kept], own_logits([prompt])[0, -1][kept], atol=1e-4)


def test_no_draft_computes_nothing(proposer, make_sequence) -> None:
    proposal = proposer.propose([make_sequence([3, 4])], [0])
    assert (proposal.cu_draft, proposal.draft_logits, proposal.positions) == ((0, 0), None, (0,))


def test_a_released_sequence_gives_its_slot_back(make_runner, make_sequence) -> None:
    proposer = DraftModelProposer(make_runner(slots=1), VOCAB)
    for i in range(3):
        sequence = make_sequence([3, 4, 5], f"{i}")
        proposer.propose([sequence], [1])
        proposer.release(sequence)


def test_a_slot_that_another_sequence_used_makes_no_difference(make_runner, make_sequence, own_logits) -> None:
    proposer = DraftModelProposer(make_runner(slots=1), VOCAB)
    long = make_sequence(list(range(3, 40)), "long")
    proposer.propose([long], [4])
    proposer.release(long)
    assert proposer.propose([make_sequence([9, 8, 7])], [3]).tokens(0) == greedy(own_logits, [9, 8, 7], 3)


def test_a_smaller_padded_vocabulary_is_never_proposed_beyond(make_runner, make_sequence) -> None:
    proposer = DraftModelProposer(make_runner(vocab=40), VOCAB)
    logits = proposer.propose([make_sequence([3, 4, 5], temperature=1.0)], [2]).draft_logits
    assert logits.shape == (2, VOCAB)
    assert bool((logits[:, 40:] == -torch.inf).all())


def test_a_larger_padded_vocabulary_is_cut(make_runner, make_sequence) -> None:
    proposer = DraftModelProposer(make_runner(vocab=64), VOCAB)
    proposal = proposer.propose([make_sequence([3, 4, 5], temperature=1.0)], [8])
    assert proposal.draft_logits.shape == (8, VOCAB)
    assert max(proposal.tokens(0)) < VOCAB


@pytest.mark.parametrize("vocab", [40, 64])
def test_row_31_a_vocabulary_that_differs_in_padding_alone_is_refused(
    make_engine, make_runner, ask, drain, vocab
) -> None:
    def text(k, proposer):
        engine = make_engine(k, proposer, eos=())
        engine.submit(ask([3, 4, 5], max_tokens=20))
        return drain(engine)["r"].token_ids

    assert text(4, DraftModelProposer(make_runner(vocab=vocab), VOCAB)) == text(0, "none")


def of_words(*words: str) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel({w: i for i, w in enumerate(words)}, unk_token="a"))
    )


def test_the_same_vocabulary_passes() -> None:
    check_vocabulary(of_words("a", "b", "c"), of_words("a", "b", "c"))


def test_row_31_a_different_vocabulary_gives_garbage_without_an_error() -> None:
    with pytest.raises(VocabularyMismatch, match=r"at id 1: 'x' against 'b'.*same tokenizer"):
        check_vocabulary(of_words("a", "b", "c", "d"), of_words("a", "x", "c", "y"))


def test_a_drafter_that_lacks_tokens_is_refused() -> None:
    with pytest.raises(VocabularyMismatch, match="at id 2: None against 'c'"):
        check_vocabulary(of_words("a", "b", "c"), of_words("a", "b"))
