"""The Triton kernels of tree verification against the definition, in Triton's interpreter and a process of its own."""

from __future__ import annotations

import dataclasses
import itertools
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from kernels.verify import Purpose, gumbel_noise
from kernels.verify_tree import TreeVerdict, verify_tree

CHAINS = tuple(tuple(range(-1, k - 1)) for k in (0, 1, 2, 3, 4, 6, 9, 16))
BUSHY = (-1, -1, -1, 0, 0, 1, 3, 3, 2, 4)
TREES: tuple[tuple[int, ...], ...] = (
    BUSHY, (), (-1, -1), (-1, -1, 0, 1, 0, 1), (-1, -1, -1, -1), (-1, 0, 0, -1, 3), BUSHY, (-1, -1, -1, -1), BUSHY,
    (-1, -1, 1, 1), (),
)  # fmt: skip
SIXTY_FOUR = (*[-1] * 4, *[n // 3 for n in range(60)])
WIDE = (*[-1] * 20, 0, 1)
MODES = ("unseeded", "greedy", "unseeded", "seeded")
# name: vocabulary, trees, dtype, draft logits, temperature of rows that are not greedy, drafter's tokens
CASES: dict[str, tuple[int, tuple[tuple[int, ...], ...], torch.dtype, bool, float, int]] = {
    "7": (7, TREES, torch.float32, True, 1.0, 7),
    "7-deterministic": (7, TREES, torch.float32, False, 1.0, 7),
    "7-cold": (7, TREES, torch.float32, True, 0.04, 7),
    "7-used-up": (7, (BUSHY, BUSHY, WIDE[:6], (-1, -1, -1), (-1, -1, -1)), torch.float32, True, 1.5, 2),
    "7-chains": (7, CHAINS, torch.float32, True, 1.0, 7),
    "7-of-64": (7, (SIXTY_FOUR,), torch.bfloat16, True, 1.0, 7),
    "100-wide": (100, (WIDE,), torch.float32, True, 1.0, 100),
    "1000-fp16": (1000, TREES[:5], torch.float16, True, 1.0, 500),
    "32000-bf16": (32000, (BUSHY, (-1, 0), (-1, -1, 0)), torch.bfloat16, True, 0.7, 32000),
    "49152": (49152, ((-1, -1, -1, 0, 1), (-1, -1), (-1, -1)), torch.float32, True, 1.0, 49152),
    "49152-deterministic": (49152, ((-1, -1, 0), (), (-1, -1, 1)), torch.float32, False, 1.0, 49152),
    "262144-bf16": (262144, ((-1, -1),), torch.bfloat16, True, 1.0, 262144),
}
WIDE_LIMITS = {"max_depth": 14, "max_children": 6, "max_nodes": 10}
"""Deeper than the largest tree has nodes."""
FIELDS = tuple(field.name for field in dataclasses.fields(TreeVerdict))
INTEGERS = tuple(name for name in FIELDS if name != "overlap")
# The law is enumerated over all draws of three children of one root.
TARGET, DRAFT = torch.tensor([0.1, 0.35, 0.3, 0.25]), torch.tensor([[0.7, 0.1, 0.05, 0.15], [0.6, 0.4, 0.0, 0.0]])
ORDERS = list(itertools.permutations(range(4), 3))


def draw(scores: torch.Tensor, noise: torch.Tensor, taken: list[int]) -> int:
    """Draw one more child without replacement; any untried token where the drafter has none left."""
    scores = scores.index_fill(0, torch.tensor(taken, dtype=torch.int64), -torch.inf)
    if bool((scores == -torch.inf).all()):
        scores = torch.zeros_like(scores).index_fill(0, torch.tensor(taken, dtype=torch.int64), -torch.inf)
    return int((scores + noise).argmax())


def build(name: str) -> dict[str, Any]:
    """Arguments of one case. Rows of draft logits that have no children are NaN: nobody may read them."""
    vocab, trees, dtype, has_draft_logits, heat, drafter_tokens = CASES[name]
    generator = torch.Generator().manual_seed(len(name) + vocab)
    sizes = [len(tree) for tree in trees]
    cu = [0, *itertools.accumulate(sizes)]
    rows, batch = cu[-1] + len(trees), len(trees)
    modes = [MODES[b % len(MODES)] for b in range(batch)]
    temperature = torch.tensor([0.0 if mode == "greedy" else heat for mode in modes])
    coupled = torch.tensor([mode == "seeded" for mode in modes])
    seeds, positions = torch.arange(batch) * 7919 - 3, torch.arange(batch) * 1000 + 1
    target = (torch.randn(rows, vocab, generator=generator) * 4).to(dtype)
    # A greedy path ends only where the argmax moves, so its drafter is the worse one.
    error = torch.randn(rows, vocab, generator=generator)
    draft = (target.float() + error).to(dtype)
    draft[:, drafter_tokens:] = -torch.inf
    tokens: list[int] = []
    for b, tree in enumerate(trees):
        depths: list[int] = []
        for node, parent in enumerate(tree):
            depths.append(0 if parent < 0 else depths[parent] + 1)
            siblings = [tokens[cu[b] + n] for n in range(node) if tree[n] == parent]
            purpose = Purpose.COUPLED if modes[b] == "seeded" else Purpose.DRAFT
            noise = gumbel_noise(
                seeds[b : b + 1], positions[b : b + 1] + depths[-1], vocab, purpose=purpose, backend="naive"
            )
            scores = draft[cu[b] + b + 1 + parent].float() / (1.0 if modes[b] == "greedy" else heat)
            tokens.append(draw(scores, noise[0] * (modes[b] != "greedy"), siblings))
        leaves = [cu[b] + b + 1 + n for n in range(-1, len(tree)) if n not in tree]
        draft[leaves] = torch.nan
    return {
        "target_logits": target,
        "draft_token_ids": torch.tensor(tokens, dtype=torch.int64),
        "parents": torch.tensor([p for tree in trees for p in tree], dtype=torch.int32),
        "draft_logits": draft if has_draft_logits else None,
        "cu_nodes": torch.tensor(cu, dtype=torch.int32),
        "temperature": temperature,
        "seeds": seeds,
        "positions": positions,
        "coupled": coupled,
    }


def in_columns(case: dict[str, Any]) -> dict[str, Any]:
    """The same arguments, each vector of them a column of a table whose other column holds something else."""
    return {
        name: torch.stack([value, value.flip(0)], 1)[:, 0]
        if isinstance(value, torch.Tensor) and value.ndim == 1
        else value
        for name, value in case.items()
    }


def build_law() -> dict[str, Any]:
    """Each order of three children of four tokens, for both drafters."""
    batch = 2 * len(ORDERS)
    return {
        "target_logits": TARGET.log().expand(4 * batch, 4),
        "draft_token_ids": torch.tensor(ORDERS).reshape(-1).repeat(2),
        "parents": torch.full((3 * batch,), -1, dtype=torch.int32),
        "draft_logits": DRAFT.log().repeat_interleave(4 * len(ORDERS), 0),
        "cu_nodes": torch.arange(batch + 1, dtype=torch.int32) * 3,
        "temperature": torch.ones(batch),
        "seeds": torch.arange(batch),
        "positions": torch.arange(batch),
        "coupled": torch.zeros(batch, dtype=torch.bool),
    }


def run_interpreted(output: str) -> None:
    """Run all cases on the fused backend; fresh memory holds garbage, so that a forgotten write is seen."""
    from kernels.launch import Launch
    from kernels.verify_tree.launches import launches

    empty, run = torch.empty, Launch.run

    def poisoned(*size: Any, **options: Any) -> torch.Tensor:
        fresh = empty(*size, **options)
        return fresh.fill_(torch.nan if fresh.is_floating_point() else -77)

    types = {torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.float16: "*fp16", torch.int32: "*i32",
             torch.int64: "*i64", torch.bool: "*i1"}  # fmt: skip
    listed = launches()
    strays: list[str] = []
    launched: set[str] = set()

    def recorded(launch: Any, grid: tuple[int, ...], *arguments: Any) -> None:
        launched.add(launch.name)
        named = dict(zip(launch.kernel.arg_names, arguments, strict=False))
        pointers = {name: types[value.dtype] for name, value in named.items() if isinstance(value, torch.Tensor)}
        odd = [
            name
            for name in launch.divisible_by_16
            if (named[name].data_ptr() if isinstance(named[name], torch.Tensor) else named[name]) % 16
        ]
        if launch not in listed or pointers != launch.pointers or odd:
            strays.append(launch.name)
        if set(launch.kernel.arg_names) != {*named, *launch.constants}:
            strays.append(f"{launch.name}: arguments")
        run(launch, grid, *arguments)
        if launch.name.startswith("tree_tests"):
            outcome["tests"], outcome["ends"] = named["test_ptr"].clone(), named["end_ptr"].clone()

    outcome: dict[str, Any] = {}
    cases = {name: build(name) for name in CASES}
    # The law comes last: `recorded` keeps the tests of the last launch.
    cases |= {"in-columns": in_columns(cases["7"]), "wide": cases["7"] | WIDE_LIMITS, "law": build_law()}
    torch.empty = poisoned
    Launch.run = recorded  # type: ignore[method-assign]
    warnings.simplefilter("error")
    for name, case in cases.items():
        verdict = verify_tree(**case, backend="fused")
        outcome[name] = {field: getattr(verdict, field) for field in FIELDS}
    outcome["strays"], outcome["launched"] = strays, sorted(launched)
    torch.save(outcome, output)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    pytest.importorskip("triton", reason="Triton is published for Linux only")
    output = tmp_path_factory.mktemp("interpreted") / "outcomes.pt"
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(Path(__file__)), str(output)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    loaded: dict[str, Any] = torch.load(output, weights_only=True)
    return loaded


@pytest.fixture(scope="module")
def verdicts() -> dict[str, TreeVerdict]:
    return {name: verify_tree(**build(name), backend="naive") for name in CASES}


@pytest.mark.parametrize("name", CASES)
def test_fused_takes_the_same_path(name: str, outcomes: dict[str, Any], verdicts: dict[str, TreeVerdict]) -> None:
    for field in INTEGERS:
        assert outcomes[name][field].tolist() == getattr(verdicts[name], field).tolist(), field


@pytest.mark.parametrize("name", CASES)
def test_fused_measures_the_same_overlap(name: str, outcomes: dict[str, Any], verdicts: dict[str, TreeVerdict]) -> None:
    torch.testing.assert_close(outcomes[name]["overlap"], verdicts[name].overlap, rtol=0.0, atol=1e-4, equal_nan=True)


def test_arguments_that_are_columns_of_a_table_are_read_as_they_stand(outcomes: dict[str, Any]) -> None:
    for field in FIELDS:
        given, in_column = outcomes["7"][field], outcomes["in-columns"][field]
        torch.testing.assert_close(in_column, given, rtol=0.0, atol=0.0, equal_nan=True)


def test_a_verdict_wider_than_any_tree_is_filled_to_its_end(outcomes: dict[str, Any]) -> None:
    expected = verify_tree(**build("7"), **WIDE_LIMITS, backend="naive")
    for field in INTEGERS:
        assert outcomes["wide"][field].tolist() == getattr(expected, field).tolist(), field


def probability_of(draft: torch.Tensor, order: tuple[int, ...]) -> float:
    """Of drawing these children in this order, evenly from untried tokens once the drafter's are used up."""
    left, probability = draft.double().clone(), 1.0
    for i, token in enumerate(order):
        if left.sum() < 1e-9:
            probability *= 1 / (len(draft) - i)
            continue
        probability *= float(left[token] / left.sum())
        left[token] = 0.0
    return probability


@pytest.mark.parametrize("drafter", [0, 1])
def test_the_fused_tests_and_residuals_give_the_targets_law_exactly(drafter: int, outcomes: dict[str, Any]) -> None:
    log_offered, log_residual, _ = outcomes["tests"].double().unbind(0)
    log_weight, floor, _ = outcomes["ends"].double().unbind(0)
    law = torch.zeros(4, dtype=torch.float64)
    for i, order in enumerate(ORDERS):
        row = 4 * (drafter * len(ORDERS) + i)
        falling = probability_of(DRAFT[drafter], order)
        for rank, token in enumerate(order):
            stands = min(1.0, float((log_residual[row, rank] - log_offered[row, rank]).exp()))
            stands = 0.0 if log_residual[row, rank] == -torch.inf else stands
            law[token] += falling * stands
            falling *= 1 - stands
        if falling > 0:
            draft = DRAFT[drafter].double() / DRAFT[drafter].double().max()
            left = (TARGET.double() - log_weight[row].exp() * draft - floor[row]).clamp(min=0)
            left[list(order)] = 0.0
            law += falling * left / left.sum()
    assert float((law - TARGET.double()).abs().sum() / 2) < 1e-6


def test_what_is_launched_is_listed(outcomes: dict[str, Any]) -> None:
    assert outcomes["strays"] == []
    assert {name.split("/")[0] for name in outcomes["launched"]} == {
        "tree_topology", "tree_statistics", "tree_round", "tree_tests", "tree_walk", "tree_resample", "tree_finish"
    }  # fmt: skip


def test_the_cases_reach_every_kind_of_ending(verdicts: dict[str, TreeVerdict]) -> None:
    endings = set()
    for name, verdict in verdicts.items():
        for b, tree in enumerate(CASES[name][1]):
            accepted, mode = int(verdict.num_accepted[b]), MODES[b % len(MODES)]
            node = int(verdict.accepted_nodes[b, accepted - 1]) if accepted else -1
            endings.add((mode, "bonus" if node not in tree else "all siblings fell"))
            ranks = verdict.accepted_rank[b, :accepted].tolist()
            endings |= {(mode, "first sibling stood" if rank == 0 else "later sibling stood") for rank in ranks}
    assert endings == {
        (mode, end)
        for mode in ("greedy", "seeded", "unseeded")
        for end in ("bonus", "all siblings fell", "first sibling stood", "later sibling stood")
    }


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA or ROCm device")
@pytest.mark.parametrize("name", CASES)
def test_fused_takes_the_same_path_on_an_accelerator(name: str, verdicts: dict[str, TreeVerdict]) -> None:
    case = {key: value.cuda() if isinstance(value, torch.Tensor) else value for key, value in build(name).items()}
    verdict = verify_tree(**case, backend="fused")
    for field in INTEGERS:
        assert getattr(verdict, field).tolist() == getattr(verdicts[name], field).tolist(), field
    torch.testing.assert_close(verdict.overlap.cpu(), verdicts[name].overlap, rtol=0.0, atol=1e-4, equal_nan=True)


if __name__ == "__main__":
    run_interpreted(sys.argv[1])
