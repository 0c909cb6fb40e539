"""The Triton kernels against the definition, in Triton's interpreter.

TRITON_INTERPRET is fixed for a process when a kernel is decorated, and the rest of the suite needs it unset. So this
file runs itself once as a program in a process of its own, which leaves every case's outcome in a file.
"""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy import stats

from kernels.launch import Backend
from kernels.verify import Purpose, Verdict, gumbel_noise, verify_chain
from kernels.verify.verdict import RULES, Rule

# Depth and mode of each sequence of the mixed batch: greedy, seeded and unseeded side by side.
SEQUENCES = (
    (3, "greedy"), (0, "unseeded"), (8, "unseeded"), (0, "greedy"), (2, "seeded"), (1, "unseeded"), (0, "seeded"),
    (4, "seeded"), (5, "unseeded"), (6, "greedy"), (16, "unseeded"), (16, "seeded"), (3, "unseeded"),
    (7, "unseeded"), (9, "seeded"), (10, "greedy"), (11, "unseeded"), (12, "seeded"), (13, "unseeded"), (14, "greedy"),
    (15, "unseeded"),
)  # fmt: skip
ALL, REMAINING_DEPTHS = tuple(range(13)), tuple(range(13, 21))
# Filters of sequence m of the mixed batch: entry m % 5.
TOP_K, TOP_P, MIN_P = (0, 3, 2, 0, 20), (0.8, 1.0, 0.9, 1.0, 1.0), (0.0, 0.0, 0.02, 0.1, 0.0)


@dataclass(frozen=True)
class Case:
    """masked: share of the vocabulary that the target masks. error: of the drafter's logits, for sampled sequences.

    spread: standard deviation of the target's logits.
    """

    vocab: int
    members: tuple[int, ...] = ALL
    dtype: torch.dtype = torch.float32
    draft_dtype: torch.dtype | None = torch.float32
    masked: float = 0.0
    error: float = 0.3
    spread: float = 4.0
    is_filtered: bool = False
    rule: Rule = "token"


FP16, BF16 = torch.float16, torch.bfloat16
CASES = {
    "7": Case(7),
    "7-ngram": Case(7, draft_dtype=None),
    "7-masked": Case(7, masked=0.6),
    "7-filters": Case(7, (0, 1, 2, 4, 5, 12), error=1.0, is_filtered=True),
    "7-other-depths": Case(7, REMAINING_DEPTHS, error=0.1),
    "7-block": Case(7, rule="block"),
    # Chains that end early, in residuals that the joint scale decides.
    "7-block-far": Case(7, (8,) * 10 + (2, 2), error=1.5, spread=1.0, rule="block"),
    "7-block-masked": Case(7, masked=0.6, rule="block"),
    "7-block-ngram-filters": Case(7, (5, 8, 12), draft_dtype=None, is_filtered=True, rule="block"),
    "1000": Case(1000),
    "1000-ngram-masked": Case(1000, draft_dtype=None, masked=0.9),
    "1000-fp16": Case(1000, tuple(range(10)), FP16, FP16),
    "1000-fp16-block": Case(1000, (2, 4, 8, 12), FP16, FP16, rule="block"),
    "1000-bf16-filters": Case(1000, (1, 2, 5), BF16, torch.float32, is_filtered=True),
    "1000-mixed-halves": Case(1000, (4, 5, 8), FP16, BF16),
    "32000-bf16": Case(32000, (0, 1, 2, 4), BF16, BF16),
    "32000-masked": Case(32000, (0, 1, 5, 4), masked=0.9999),
    "32000-filters": Case(32000, (1, 5, 4), is_filtered=True),
    "49152": Case(49152, (3, 5, 8, 4)),
    "49152-ngram": Case(49152, (0, 1, 5, 4), draft_dtype=None),
    "49152-plain": Case(49152, (1, 3, 6), draft_dtype=None),
    "49152-block": Case(49152, (5, 12), rule="block"),
    "262144-bf16": Case(262144, (3, 5, 6), BF16, BF16),
}
IN_COLUMNS = ("7-filters", "7-block-ngram-filters")
STREAMS = (torch.tensor([1, -2, 2**62]), torch.tensor([0, 5, 2**33 + 1]))
NOISE_SIZES = (7, 5000)
NUM_TEXTS = 48


def build(name: str) -> dict[str, Any]:
    """Arguments of one case: drafts are near enough to the target that chains end at every depth."""
    case = CASES[name]
    vocab, members, masked = case.vocab, case.members, case.masked
    generator = torch.Generator().manual_seed(len(name) + vocab)
    ks = [SEQUENCES[m][0] for m in members]
    modes = [SEQUENCES[m][1] for m in members]
    seeds, positions = torch.tensor(members) * 7919 - 3, torch.tensor(members) * 1000 + 1
    temperature = torch.tensor(
        [0.0 if mode == "greedy" else 0.6 + 0.1 * m for m, mode in zip(members, modes, strict=True)]
    )
    target = torch.randn(sum(ks) + len(ks), vocab, generator=generator) * case.spread
    if masked:
        keep = target.amax(-1, keepdim=True)
        target = target.masked_fill(
            (torch.rand(target.shape, generator=generator) < masked) & (target < keep), -torch.inf
        )
    target = target.to(case.dtype)
    owner = torch.arange(len(ks)).repeat_interleave(torch.tensor(ks))
    draft_rows = torch.cat([torch.arange(sum(ks[:b]) + b, sum(ks[: b + 1]) + b) for b in range(len(ks))])
    hot = (temperature[owner] > 0)[:, None]
    # A greedy chain breaks only where the argmax moves, so its drafter is the worse one.
    error = torch.where(hot, case.error, 1.5) * torch.randn(len(draft_rows), vocab, generator=generator)
    draft = (target[draft_rows].float() + error).to(case.draft_dtype or case.dtype)
    if masked and len(draft):
        draft[:, ::5] = -torch.inf
        draft[:, 1] = 3.0  # which the target may have masked
    depth = torch.cat([torch.arange(k) for k in ks])
    coupled = torch.tensor([mode == "seeded" for mode in modes])
    noise = {
        purpose: gumbel_noise(seeds[owner], positions[owner] + depth, vocab, purpose=purpose, backend="naive")
        for purpose in (Purpose.COUPLED, Purpose.DRAFT)
    }
    drawn = torch.where(coupled[owner, None], noise[Purpose.COUPLED], noise[Purpose.DRAFT])
    draft_ids = (draft.float() + hot * temperature[owner, None] * drawn).argmax(-1)
    if masked and case.rule == "block":
        draft_ids[::3] = 0  # to which the drafter gave nothing
    filters = {}
    if case.is_filtered:
        filters = {
            "top_k": torch.tensor([TOP_K[m % 5] for m in members], dtype=torch.int32),
            "top_p": torch.tensor([TOP_P[m % 5] for m in members]),
            "min_p": torch.tensor([MIN_P[m % 5] for m in members]),
        }
    return {
        "target_logits": target,
        "draft_token_ids": draft_ids,
        "draft_logits": draft if case.draft_dtype else None,
        "cu_draft": torch.tensor([sum(ks[:b]) for b in range(len(ks) + 1)], dtype=torch.int32),
        "temperature": temperature,
        "seeds": seeds,
        "positions": positions,
        "coupled": coupled,
        "rule": case.rule,
        **filters,
    }


def in_columns(case: dict[str, Any]) -> dict[str, Any]:
    """The same arguments, each vector of them a column of a table whose other column holds something else."""
    return {
        name: torch.stack([value, value.flip(0)], 1)[:, 0]
        if isinstance(value, torch.Tensor) and value.ndim == 1
        else value
        for name, value in case.items()
    }


def decode_texts(rule: Rule, backend: Backend) -> torch.Tensor:
    """Whole texts of the small Markov model, drafted two tokens at a time."""
    decode = runpy.run_path(str(Path(__file__).with_name("test_naive.py")))["decode"]
    texts: torch.Tensor = decode(NUM_TEXTS, 2, drafted="sampled", rule=rule, backend=backend)
    return texts


def run_interpreted(output: str) -> None:
    """Run all cases on the fused backend; fresh memory holds garbage, so that a forgotten write is seen."""
    from kernels.filters.launches import launches as filter_launches
    from kernels.interpreter import hasten_interpreter
    from kernels.launch import Launch
    from kernels.verify import fused, launches
    from kernels.verify import fused_noise as _decorated_before_memory_is_poisoned  # noqa: F401

    hasten_interpreter()
    listed, unlisted, run, empty = (*launches.launches(), *filter_launches()), [], Launch.run, torch.empty

    def recorded(launch: Launch, grid: tuple[int, ...], *arguments: Any) -> None:
        if launch not in listed:
            unlisted.append(launch.name)
        run(launch, grid, *arguments)

    def poisoned(*size: Any, **options: Any) -> torch.Tensor:
        fresh = empty(*size, **options)
        return fresh.fill_(torch.nan if fresh.is_floating_point() else -12345)

    cases = {name: build(name) for name in CASES}
    Launch.run, torch.empty = recorded, poisoned  # type: ignore[method-assign]
    warnings.simplefilter("error")
    outcome: dict[str, Any] = {}
    for name, case in cases.items():
        verdict = verify_chain(**case, backend="fused")
        outcome[name] = (verdict.num_accepted, verdict.token_ids, verdict.overlap)
    for name in IN_COLUMNS:
        verdict = verify_chain(**in_columns(cases[name]), backend="fused")
        outcome[f"{name}-in-columns"] = (verdict.num_accepted, verdict.token_ids, verdict.overlap)
    for size in NOISE_SIZES:
        outcome[f"noise-{size}"] = gumbel_noise(*STREAMS, size, backend="fused")
    outcome["unlisted"] = list(unlisted)
    # Hundreds of rows of four tokens: in blocks of 16, which the interpreter runs faster.
    launches._CONSTANTS.update(BLOCK=16, BLOCKS=16)
    fused.BLOCK = 16
    for shape in (launches.logits_launch, launches.merge_launch):
        shape.cache_clear()
    for rule in RULES:
        outcome[f"texts-{rule}"] = decode_texts(rule, "fused")
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
def verdicts() -> dict[str, Verdict]:
    return {name: verify_chain(**build(name), backend="naive") for name in CASES}


@pytest.mark.parametrize("name", CASES)
def test_fused_takes_the_same_tokens(name: str, outcomes: dict[str, Any], verdicts: dict[str, Verdict]) -> None:
    num_accepted, token_ids, _ = outcomes[name]
    assert num_accepted.tolist() == verdicts[name].num_accepted.tolist()
    assert token_ids.tolist() == verdicts[name].token_ids.tolist()


@pytest.mark.parametrize("name", CASES)
def test_fused_measures_the_same_overlap(name: str, outcomes: dict[str, Any], verdicts: dict[str, Verdict]) -> None:
    # torch's softmax of 262144 tokens errs by 1e-5 on a CPU.
    atol = 1e-5 if CASES[name].vocab < 2**17 else 3e-5
    torch.testing.assert_close(outcomes[name][2], verdicts[name].overlap, rtol=0.0, atol=atol, equal_nan=True)


@pytest.mark.parametrize("size", NOISE_SIZES)
def test_fused_draws_the_same_noise(size: int, outcomes: dict[str, Any]) -> None:
    expected = gumbel_noise(*STREAMS, size, backend="naive")
    torch.testing.assert_close(outcomes[f"noise-{size}"], expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", IN_COLUMNS)
def test_arguments_that_are_columns_of_a_table_are_read_as_they_stand(name: str, outcomes: dict[str, Any]) -> None:
    for given, in_column in zip(outcomes[name], outcomes[f"{name}-in-columns"], strict=True):
        torch.testing.assert_close(in_column, given, rtol=0.0, atol=0.0, equal_nan=True)


def test_the_cases_have_chains_of_every_length_up_to_16() -> None:
    assert {SEQUENCES[m][0] for case in CASES.values() for m in case.members} == set(range(17))


def test_the_cases_reach_every_kind_of_ending(verdicts: dict[str, Verdict]) -> None:
    endings = set()
    for name, verdict in verdicts.items():
        for member, accepted in zip(CASES[name].members, verdict.num_accepted.tolist(), strict=True):
            k, mode = SEQUENCES[member]
            endings.add(
                (mode, "plain" if k == 0 else "bonus" if accepted == k else "first" if not accepted else "later")
            )
    assert endings == {
        (mode, end) for mode in ("greedy", "seeded", "unseeded") for end in ("plain", "bonus", "first", "later")
    }


def test_whatever_was_launched_is_listed(outcomes: dict[str, Any]) -> None:
    assert outcomes["unlisted"] == []


@pytest.mark.parametrize("rule", RULES)
def test_fused_writes_the_texts_whose_law_the_definition_is_held_to(rule: Rule, outcomes: dict[str, Any]) -> None:
    texts = outcomes[f"texts-{rule}"]
    assert torch.equal(texts, decode_texts(rule, "naive"))
    # Few texts, for the interpreter's sake: enough for the law of their first tokens.
    target = runpy.run_path(str(Path(__file__).with_name("test_naive.py")))["TARGET"][0].double().exp()
    counts = torch.bincount(texts[:, 0], minlength=4)
    assert stats.chisquare(counts.numpy(), (target / target.sum() * NUM_TEXTS).numpy()).pvalue > 1e-3


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA or ROCm device")
@pytest.mark.parametrize("name", CASES)
def test_fused_takes_the_same_tokens_on_an_accelerator(name: str, verdicts: dict[str, Verdict]) -> None:
    case = {key: value.cuda() if isinstance(value, torch.Tensor) else value for key, value in build(name).items()}
    verdict = verify_chain(**case, backend="fused")
    assert verdict.num_accepted.tolist() == verdicts[name].num_accepted.tolist()
    assert verdict.token_ids.tolist() == verdicts[name].token_ids.tolist()
    torch.testing.assert_close(verdict.overlap.cpu(), verdicts[name].overlap, rtol=0.0, atol=1e-5, equal_nan=True)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA or ROCm device")
@pytest.mark.parametrize("name", ["7", "1000-fp16", "49152"])
def test_a_broken_row_emits_tokens_of_the_vocabulary_on_an_accelerator(name: str) -> None:
    # The interpreter takes the first NaN for the largest; a chip's comparisons leave any index of the block.
    case = {key: value.cuda() if isinstance(value, torch.Tensor) else value for key, value in build(name).items()}
    case["target_logits"].fill_(torch.nan)
    verdict = verify_chain(**case, backend="fused")
    assert bool(((verdict.token_ids >= -1) & (verdict.token_ids < CASES[name].vocab)).all())


if __name__ == "__main__":
    run_interpreted(sys.argv[1])
