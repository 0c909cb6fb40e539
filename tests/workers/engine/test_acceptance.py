"""The probability with which each examined position was kept: the drafter's evidence, with less noise than outcomes."""

from __future__ import annotations

import pytest
import torch

from workers.detokenizer import Detokenizer
from workers.proposers.base import Proposal
from workers.sequence import EngineRequest, SamplingParams, Sequence
from workers.target import Score
from workers.verifier import Verifier

UNSEEDED = {"temperature": 1.0}
SEEDED = {"temperature": 1.0, "seed": 5}
GREEDY = {"temperature": 0.0}
DRAFT = [3, 4, 5]


@pytest.fixture
def verify(tokenizer):
    """One sequence's verdict on DRAFT where the target gives `kept` to each draft token, and 1 - kept to token 9."""

    def run(kept, sampling, draft_kept=None):
        request = EngineRequest("r", (1,), SamplingParams(50, **sampling), "default")
        sequence = Sequence(request, [1, 2], 7, Detokenizer(tokenizer))
        proposal = Proposal.of([DRAFT])
        if draft_kept is not None:
            proposal = Proposal(proposal.draft_token_ids, proposal.cu_draft, rows(draft_kept), (0,))
        score = Score(rows((*kept, 0.5)), proposal.cu_draft, 0.0)
        (accepted,) = Verifier([], backend="naive").verify([sequence], proposal, score)
        return accepted

    def rows(probabilities):
        logits = torch.full((len(probabilities), 12), -torch.inf)
        for row, (probability, token_id) in enumerate(zip(probabilities, [*DRAFT, 6], strict=False)):
            logits[row, token_id] = torch.tensor(probability).log()
            logits[row, 9] = torch.tensor(1.0 - probability).log()
        return logits

    return run


def test_of_a_sure_draft_it_is_the_targets_probability(verify) -> None:
    accepted = verify((1.0, 0.0, 0.5), UNSEEDED)
    assert (accepted.num_accepted, accepted.acceptance) == (1, pytest.approx((1.0, 0.0)))
    accepted = verify((1.0, 1.0, 1.0), UNSEEDED)
    assert (accepted.num_accepted, accepted.acceptance) == (3, pytest.approx((1.0, 1.0, 1.0)))


def test_of_a_sampled_draft_it_is_the_overlap_of_both(verify) -> None:
    acceptance = verify((0.8, 0.8, 0.8), UNSEEDED, draft_kept=(0.75, 0.75, 0.75)).acceptance
    assert acceptance[0] == pytest.approx(0.75 + 0.2)


def test_of_a_sampled_draft_coupled_by_noise_it_is_the_outcome(verify) -> None:
    """Such draws agree less often than the distributions overlap; their overlap would flatter the drafter."""
    accepted = verify((0.8, 0.8, 0.8), SEEDED, draft_kept=(0.75, 0.75, 0.75))
    n = accepted.num_accepted
    assert accepted.acceptance == (*(1.0,) * n, 0.0)[: min(n + 1, 3)]


def test_of_a_sure_draft_coupled_by_noise_it_is_the_targets_probability(verify) -> None:
    assert verify((0.8, 0.8, 0.8), SEEDED).acceptance[0] == pytest.approx(0.8)


def test_a_greedy_draft_is_right_or_wrong(verify) -> None:
    assert verify((0.8, 0.8, 0.3), GREEDY).acceptance == (1.0, 1.0, 0.0)


def test_its_mean_is_the_share_that_is_kept(make_engine, ask, drain) -> None:
    """As summed in windows, over seeded texts of a sure drafter."""
    engine = make_engine(1, "ngram", eos=())
    for i in range(16):
        engine.submit(ask([3 + i, 4, 5], f"{i}", temperature=0.7, seed=i, max_tokens=100))
    drain(engine)
    (cohort,) = engine.close_window().cohorts
    examined = sum(cell.overlap_steps[0] for cell in cohort.cells if cell.overlap)
    mean = sum(cell.overlap[0] for cell in cohort.cells if cell.overlap) / examined
    kept = cohort.accepted_at(0) / cohort.drafted_at(0)
    assert examined == cohort.drafted_at(0) > 500
    assert abs(mean - kept) < 3 * (kept * (1 - kept) / examined) ** 0.5
