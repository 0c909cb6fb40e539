"""The Triton kernels against the definition, in Triton's interpreter.

TRITON_INTERPRET is fixed for a process when a kernel is decorated, and the rest of the suite needs it unset. So this
file runs itself once as a program in a process of its own, which leaves every case's outcome in a file.
"""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from kernels.verify import Purpose, Verdict, gumbel_noise, verify_chain

# Depth and mode of each sequence of the mixed batch: greedy, seeded and unseeded side by side.
SEQUENCES = (
    (3, "greedy"), (0, "unseeded"), (8, "unseeded"), (0, "greedy"), (2, "seeded"), (1, "unseeded"), (0, "seeded"),
    (4, "seeded"), (5, "unseeded"), (6, "greedy"),
)  # fmt: skip
# name: vocabulary, sequences, dtype, draft logits, share of the vocabulary masked as by top-k
CASES: dict[str, tuple[int, tuple[int, ...], torch.dtype, bool, float]] = {
    "7": (7, tuple(range(10)), torch.float32, True, 0.0),
    "7-ngram": (7, tuple(range(10)), torch.float32, False, 0.0),
    "7-masked": (7, tuple(range(10)), torch.float32, True, 0.6),
    "1000": (1000, tuple(range(10)), torch.float32, True, 0.0),
    "1000-ngram-masked": (1000, tuple(range(10)), torch.float32, False, 0.9),
    "1000-fp16": (1000, tuple(range(10)), torch.float16, True, 0.0),
    "32000-bf16": (32000, (0, 1, 2, 4), torch.bfloat16, True, 0.0),
    "32000-masked": (32000, (0, 1, 5, 4), torch.float32, True, 0.9999),
    "49152": (49152, (3, 5, 8, 4), torch.float32, True, 0.0),
    "49152-ngram": (49152, (0, 1, 5, 4), torch.float32, False, 0.0),
    "49152-plain": (49152, (1, 3, 6), torch.float32, False, 0.0),
}
STREAMS = (torch.tensor([1, -2, 2**62]), torch.tensor([0, 5, 2**33 + 1]))
NOISE_SIZES = (7, 5000)


def build(name: str) -> dict[str, Any]:
    """Arguments of one case: drafts are near enough to the target that chains end at every depth."""
    vocab, members, dtype, has_draft_logits, masked = CASES[name]
    generator = torch.Generator().manual_seed(len(name) + vocab)
    ks = [SEQUENCES[m][0] for m in members]
    modes = [SEQUENCES[m][1] for m in members]
    seeds, positions = torch.tensor(members) * 7919 - 3, torch.tensor(members) * 1000 + 1
    temperature = torch.tensor(
        [0.0 if mode == "greedy" else 0.6 + 0.1 * m for m, mode in zip(members, modes, strict=True)]
    )
    target = torch.randn(sum(ks) + len(ks), vocab, generator=generator) * 4
    if masked:
        keep = target.amax(-1, keepdim=True)
        target = target.masked_fill(
            (torch.rand(target.shape, generator=generator) < masked) & (target < keep), -torch.inf
        )
    target = target.to(dtype)
    owner = torch.arange(len(ks)).repeat_interleave(torch.tensor(ks))
    draft_rows = torch.cat([torch.arange(sum(ks[:b]) + b, sum(ks[: b + 1]) + b) for b in range(len(ks))])
    hot = (temperature[owner] > 0)[:, None]
    # A greedy chain breaks only where the argmax moves, so its drafter is the worse one.
    error = torch.where(hot, 0.3, 1.5) * torch.randn(len(draft_rows), vocab, generator=generator)
    draft = (target[draft_rows].float() + error).to(dtype)
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
    return {
        "target_logits": target,
        "draft_token_ids": draft_ids,
        "draft_logits": draft if has_draft_logits else None,
        "cu_draft": torch.tensor([sum(ks[:b]) for b in range(len(ks) + 1)], dtype=torch.int32),
        "temperature": temperature,
        "seeds": seeds,
        "positions": positions,
        "coupled": coupled,
    }


def run_interpreted(output: str) -> None:
    """Run all cases on the fused backend; fresh memory holds garbage, so that a forgotten write is seen."""
    from kernels.verify import fused, fused_noise  # noqa: F401  (decorated here, before memory is poisoned)

    empty = torch.empty

    def poisoned(*size: Any, **options: Any) -> torch.Tensor:
        fresh = empty(*size, **options)
        return fresh.fill_(torch.nan if fresh.is_floating_point() else -77)

    cases = {name: build(name) for name in CASES}
    torch.empty = poisoned
    warnings.simplefilter("error")
    outcome: dict[str, Any] = {}
    for name, case in cases.items():
        verdict = verify_chain(**case, backend="fused")
        outcome[name] = (verdict.num_accepted, verdict.token_ids, verdict.overlap)
    for size in NOISE_SIZES:
        outcome[f"noise-{size}"] = gumbel_noise(*STREAMS, size, backend="fused")
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
    torch.testing.assert_close(outcomes[name][2], verdicts[name].overlap, rtol=0.0, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("size", NOISE_SIZES)
def test_fused_draws_the_same_noise(size: int, outcomes: dict[str, Any]) -> None:
    expected = gumbel_noise(*STREAMS, size, backend="naive")
    torch.testing.assert_close(outcomes[f"noise-{size}"], expected, rtol=1e-6, atol=1e-6)


def test_the_cases_reach_every_kind_of_ending(verdicts: dict[str, Verdict]) -> None:
    endings = set()
    for name, verdict in verdicts.items():
        for member, accepted in zip(CASES[name][1], verdict.num_accepted.tolist(), strict=True):
            k, mode = SEQUENCES[member]
            endings.add(
                (mode, "plain" if k == 0 else "bonus" if accepted == k else "first" if not accepted else "later")
            )
    assert endings == {
        (mode, end) for mode in ("greedy", "seeded", "unseeded") for end in ("plain", "bonus", "first", "later")
    }


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA or ROCm device")
@pytest.mark.parametrize("name", CASES)
def test_fused_takes_the_same_tokens_on_an_accelerator(name: str, verdicts: dict[str, Verdict]) -> None:
    case = {key: value.cuda() if isinstance(value, torch.Tensor) else value for key, value in build(name).items()}
    verdict = verify_chain(**case, backend="fused")
    assert verdict.num_accepted.tolist() == verdicts[name].num_accepted.tolist()
    assert verdict.token_ids.tolist() == verdicts[name].token_ids.tolist()
    torch.testing.assert_close(verdict.overlap.cpu(), verdicts[name].overlap, rtol=0.0, atol=1e-5, equal_nan=True)


if __name__ == "__main__":
    run_interpreted(sys.argv[1])
