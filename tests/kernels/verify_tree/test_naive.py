"""The definition of tree verification: what it shares with chains, and the corners of the contract."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest
import torch

from kernels.verify import Purpose, Verdict, gumbel_noise, verify_chain
from kernels.verify_tree import TreeVerdict, naive, verify_tree

INF = float("inf")


def tree(
    target: torch.Tensor, tokens: list[int], parents: list[int], draft: torch.Tensor | None = None, **rule: Any
) -> TreeVerdict:
    """Verify a single sequence."""
    return verify_tree(
        target,
        torch.tensor(tokens, dtype=torch.int64),
        torch.tensor(parents, dtype=torch.int32),
        draft,
        torch.tensor([0, len(tokens)], dtype=torch.int32),
        torch.tensor([float(rule.get("temperature", 1.0))]),
        torch.tensor([rule.get("seed", 0)]),
        torch.tensor([rule.get("position", 1)]),
        torch.tensor([bool(rule.get("coupled", False))]),
    )


def chains_both_ways(mode: str, drafted: bool) -> tuple[Verdict, TreeVerdict, list[int]]:
    """One ragged batch of chains through `verify_chain`, and as trees without branches through `verify_tree`."""
    ks, vocab = [*range(17), 3, 3, 3], 40
    generator = torch.Generator().manual_seed(5)
    num_draft, batch = sum(ks), len(ks)
    cu = torch.tensor([0, *itertools.accumulate(ks)], dtype=torch.int32)
    target = torch.randn(num_draft + batch, vocab, generator=generator) * 3
    rows = torch.cat([torch.arange(k) + int(cu[b]) + b for b, k in enumerate(ks)])
    # Rows without children are not read.
    draft = torch.full_like(target, torch.nan)
    draft[rows] = target[rows] + 0.5 * torch.randn(num_draft, vocab, generator=generator)
    seeds, positions = torch.arange(batch) * 31 + 2, torch.arange(batch) * 7
    owner = torch.arange(batch).repeat_interleave(torch.tensor(ks))
    depth = torch.cat([torch.arange(k) for k in ks])
    purpose = Purpose.COUPLED if mode == "seeded" else Purpose.DRAFT
    noise = gumbel_noise(seeds[owner], positions[owner] + depth, vocab, purpose=purpose)
    drafts = (draft[rows] + (0.0 if mode == "greedy" else 1.0) * noise).argmax(-1)
    temperature = torch.full((batch,), 0.0 if mode == "greedy" else 1.0)
    coupled = torch.full((batch,), mode == "seeded")
    rule = (cu, temperature, seeds, positions, coupled)
    chain = verify_chain(target, drafts, draft[rows] if drafted else None, *rule, backend="naive")
    parents = torch.cat([torch.arange(k, dtype=torch.int32) - 1 for k in ks])
    branchless = verify_tree(target, drafts, parents, draft if drafted else None, *rule, backend="naive")
    return chain, branchless, ks


@pytest.mark.parametrize("drafted", [True, False])
@pytest.mark.parametrize("mode", ["greedy", "seeded", "unseeded"])
def test_a_chain_given_as_a_tree_gives_the_chains_tokens(mode: str, drafted: bool) -> None:
    chain, branchless, _ = chains_both_ways(mode, drafted)
    assert torch.equal(branchless.token_ids, chain.token_ids)
    assert torch.equal(branchless.num_accepted, chain.num_accepted)
    assert int(chain.num_accepted.max()) > 2
    torch.testing.assert_close(branchless.overlap, chain.overlap, rtol=0, atol=1e-6, equal_nan=True)


def test_of_a_chain_every_examined_rank_is_the_first() -> None:
    _, branchless, ks = chains_both_ways("unseeded", True)
    for b, k in enumerate(ks):
        a = int(branchless.num_accepted[b])
        assert branchless.accepted_nodes[b].tolist() == [*range(a), *[-1] * (16 - a)]
        assert branchless.accepted_rank[b].tolist() == [*[0] * a, *[-1] * (16 - a)]
        examined = min(a + 1, k)
        assert branchless.num_examined[b].tolist() == [*[1] * examined, *[0] * (16 - examined)]


# Argmax by row: root 2, node 0 0, node 1 (token 2) 3, node 2 1, node 3 (child of 1) 1, node 4 (child of 1) 0.
GREEDY = torch.tensor(
    [[0, 1, 5, 1], [9, 0, 0, 0], [0, 0, 1, 4], [0, 3, 0, 0], [0, 3, 0, 0], [7, 0, 0, 0]], dtype=torch.float32
)


def test_greedy_follows_the_child_that_is_the_targets_argmax() -> None:
    verdict = tree(GREEDY, [1, 2, 2, 0, 3], [-1, -1, -1, 1, 1], temperature=0.0)
    assert verdict.accepted_nodes.tolist() == [[1, 4]]
    assert verdict.token_ids.tolist() == [[2, 3, 0]]
    assert verdict.accepted_rank.tolist() == [[1, 1]]
    assert verdict.num_examined.tolist() == [[2, 2]]
    assert verdict.overlap.nan_to_num(-1).tolist() == [0, 1, -1, 0, 1]


def test_of_equal_siblings_the_first_is_followed() -> None:
    verdict = tree(GREEDY, [2, 2, 1, 3, 0], [-1, -1, -1, 1, 0], temperature=0.0)
    assert verdict.accepted_nodes.tolist() == [[0, 4]]


def test_where_no_child_fits_the_targets_own_token_ends_the_path() -> None:
    verdict = tree(GREEDY[:4], [1, 0, 3], [-1, -1, 0], temperature=0.0)
    assert verdict.num_accepted.tolist() == [0]
    assert verdict.token_ids.tolist() == [[2, -1, -1]]
    assert verdict.num_examined.tolist() == [[2, 0]]
    assert verdict.accepted_rank.tolist() == [[-1, -1]]


def test_greedy_breaks_ties_by_the_lowest_token() -> None:
    tied = torch.tensor([[1.0, 4.0, 4.0], [2.0, 2.0, 2.0], [2.0, 2.0, 2.0]])
    assert tree(tied, [2, 1], [-1, -1], temperature=0.0).token_ids.tolist() == [[1, 0]]


@pytest.mark.parametrize("parents", [[-1, 0, 1], [-1, -1, -1], [-1, -1, 0], [-1, 0, 0]])
def test_a_seeded_text_does_not_depend_on_the_tree(parents: list[int]) -> None:
    generator = torch.Generator().manual_seed(1)
    law = torch.randn(5, 5, generator=generator)
    for seed in range(40):
        rows, tokens = [0], torch.randint(5, (3,), generator=generator).tolist()
        verdict = tree(law[[*rows, *tokens]], tokens, parents, seed=seed, coupled=True)
        context, emitted = 0, [t for t in verdict.token_ids[0].tolist() if t >= 0]
        for depth, token in enumerate(emitted):
            own = law[context] + gumbel_noise(torch.tensor([seed]), torch.tensor([1 + depth]), 5)[0]
            assert token == int(own.argmax())
            context = token


@pytest.mark.parametrize("coupled", [False, True])
@pytest.mark.parametrize("drafted", [True, False])
def test_a_token_masked_by_the_target_is_never_accepted(drafted: bool, coupled: bool) -> None:
    target = torch.tensor([[-INF, 0.0, 0.5], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    draft = torch.tensor([[9.0, -INF, -9.0]]).repeat(3, 1) if drafted else None
    for seed in range(60):
        verdict = tree(target, [0, 2], [-1, -1], draft, seed=seed, coupled=coupled)
        assert verdict.accepted_rank[0, 0] != 0
        assert verdict.token_ids[0, 0] in (1, 2)


def test_a_cold_drafters_leftovers_are_weighed_among_themselves() -> None:
    # The first token has all of float32's mass; yet the second was drawn evenly from the two that are left.
    draft = torch.tensor([[0.0, -300.0, -300.0]]).repeat(3, 1)
    target = torch.tensor([[-INF, 0.9, 0.1]]).log().repeat(3, 1)
    target[:, 0] = -INF
    stood = sum(int(tree(target, [0, 1], [-1, -1], draft, seed=s).num_accepted) for s in range(40))
    assert stood == 40  # 0.9 / 0.5 is over 1
    overlap = tree(target, [0, 1], [-1, -1], draft).overlap
    assert overlap.tolist() == pytest.approx([0.0, 0.6], abs=1e-6)


def test_a_drafter_without_further_tokens_counts_as_uniform() -> None:
    draft = torch.tensor([[0.0, -INF, -INF, -INF]]).repeat(3, 1)
    target = torch.tensor([[0.0, 0.2, 0.2, 0.6]]).log().repeat(3, 1)
    overlap = tree(target, [0, 3], [-1, -1], draft).overlap
    # min of (0.2, 0.2, 0.6) and three thirds
    assert overlap.tolist() == pytest.approx([0.0, 0.2 + 0.2 + 1 / 3], abs=1e-6)


def test_deterministic_siblings_share_the_targets_law_between_them() -> None:
    target = torch.tensor([[0.5, 0.3, 0.2]]).log().repeat(4, 1)
    verdict = tree(target, [0, 0, 1], [-1, -1, -1], seed=next(s for s in range(99) if falls(target, s)))
    assert verdict.overlap.tolist() == pytest.approx([0.5, 0.0, 0.6], abs=1e-6)


def falls(target: torch.Tensor, seed: int) -> bool:
    return tree(target, [0, 0, 1], [-1, -1, -1], seed=seed).num_examined[0, 0] == 3


def test_an_empty_residual_falls_back_to_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    # Rounding makes this case; forcing the rejection makes it every time.
    monkeypatch.setattr(naive.rejection, "acceptance", lambda *_: 0.0)
    same = torch.tensor([[0.0, -INF, 1.0]]).repeat(2, 1)
    emitted = {int(tree(same, [0], [-1], same, seed=seed).token_ids[0, 0]) for seed in range(60)}
    assert emitted == {0, 2}


def test_a_sequence_without_nodes_is_one_sample_of_the_target() -> None:
    row = torch.randn(1, 9, generator=torch.Generator().manual_seed(3))
    own = row[0] + gumbel_noise(torch.tensor([11]), torch.tensor([5]), 9, purpose=Purpose.RESAMPLE)[0]
    verdict = tree(row, [], [], seed=11, position=5)
    assert verdict.token_ids.tolist() == [[int(own.argmax())]]
    assert verdict.num_examined.shape == (1, 0)


def test_an_empty_batch_gives_an_empty_verdict() -> None:
    nothing = torch.zeros(0, dtype=torch.int64)
    verdict = verify_tree(
        torch.zeros(0, 5), nothing, nothing.int(), None, torch.zeros(1, dtype=torch.int32), torch.zeros(0), nothing,
        nothing, nothing.bool(),
    )  # fmt: skip
    assert verdict.token_ids.shape == (0, 1)


def test_a_tree_gives_the_same_whatever_its_batch_mates_are() -> None:
    generator = torch.Generator().manual_seed(4)
    parents = [[-1, -1, 0, 0, 1], [], [-1, 0], [-1, -1, -1]]
    sizes = [len(p) for p in parents]
    cu = torch.tensor([0, *itertools.accumulate(sizes)], dtype=torch.int32)
    rows = sum(sizes) + len(sizes)
    target, draft = torch.randn(rows, 6, generator=generator), torch.randn(rows, 6, generator=generator)
    tokens = torch.tensor([3, 1, 2, 5, 0, 4, 1, 0, 2, 5])
    flat = torch.tensor([p for tree_parents in parents for p in tree_parents], dtype=torch.int32)
    temperature, coupled = torch.tensor([0.7, 1.0, 1.3, 1.0]), torch.tensor([False, False, True, False])
    seeds, positions = torch.arange(4) - 2, torch.arange(4) * 11
    together = verify_tree(target, tokens, flat, draft, cu, temperature, seeds, positions, coupled)
    for b, size in enumerate(sizes):
        nodes, own = slice(int(cu[b]), int(cu[b + 1])), slice(int(cu[b]) + b, int(cu[b + 1]) + b + 1)
        alone = verify_tree(
            target[own], tokens[nodes], flat[nodes], draft[own], torch.tensor([0, size], dtype=torch.int32),
            temperature[b : b + 1], seeds[b : b + 1], positions[b : b + 1], coupled[b : b + 1],
        )  # fmt: skip
        depth = alone.accepted_nodes.shape[1]
        assert torch.equal(together.token_ids[b, : depth + 1], alone.token_ids[0])
        assert torch.equal(together.accepted_nodes[b, :depth], alone.accepted_nodes[0])
        assert torch.equal(together.overlap[nodes].nan_to_num(-1), alone.overlap.nan_to_num(-1))


def test_wider_limits_pad_the_verdict() -> None:
    target = torch.zeros(3, 4)
    arguments = (
        target, torch.tensor([1, 2]), torch.tensor([-1, -1], dtype=torch.int32), None,
        torch.tensor([0, 2], dtype=torch.int32), torch.ones(1), torch.zeros(1, dtype=torch.int64),
        torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.bool),
    )  # fmt: skip
    narrow, wide = verify_tree(*arguments), verify_tree(*arguments, max_depth=3, max_children=5, max_nodes=9)
    for field in dataclasses.fields(TreeVerdict):
        ours, theirs = getattr(narrow, field.name), getattr(wide, field.name)
        shared = theirs if theirs.ndim == 1 else theirs[:, : ours.shape[1]]
        torch.testing.assert_close(shared, ours, rtol=0, atol=0, equal_nan=True)
    assert wide.token_ids.shape == (1, 4)
