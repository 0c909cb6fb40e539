"""What the benchmark of verification expects a chain to keep is what the rules keep of it."""

from __future__ import annotations

import pytest
import torch

from benchmarks.verification import expected_kept
from kernels.verify import verify_chain


def test_of_a_chain_worked_out_by_hand() -> None:
    # By token 0.5, then 0.5 x 1; by block min(0.5, 1), then min(0.5 x 3, 1).
    assert expected_kept([0.5, 3.0]) == (0.5 + 0.5, 0.5 + 1.0)


@pytest.mark.parametrize(("rule", "which"), [("token", 0), ("block", 1)])
def test_it_is_what_the_rule_keeps_on_average(rule, which) -> None:
    n, generator = 1500, torch.Generator().manual_seed(3)
    target, draft = torch.randn(4, 5, generator=generator), torch.randn(3, 5, generator=generator)
    drafts = torch.multinomial(torch.softmax(draft, -1), n, replacement=True, generator=generator).T
    verdict = verify_chain(
        target.repeat(n, 1), drafts.reshape(-1), draft.repeat(n, 1), torch.arange(n + 1, dtype=torch.int32) * 3,
        torch.ones(n), torch.arange(n), torch.ones(n, dtype=torch.int64), torch.zeros(n, dtype=torch.bool), rule=rule,
    )  # fmt: skip
    ratios = (torch.softmax(target[:3], -1) / torch.softmax(draft, -1)).gather(1, drafts.T).T
    expected = [expected_kept(chain)[which] for chain in ratios.tolist()]
    differences = verdict.num_accepted - torch.tensor(expected)
    assert abs(differences.mean()) < 4 * differences.std() / n**0.5
