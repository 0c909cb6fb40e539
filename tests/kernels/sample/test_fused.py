"""Sampling in Triton against the definition, in the interpreter: token for token.

A process of its own runs the interpreter, as for verification (see tests/kernels/verify/test_fused.py).
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

from kernels.sample import LogitBias, Purpose, Sampled, TokenCounts, count_tokens, sample
from kernels.verify import GREEDY_BELOW, verify_chain

# Row b of a batch has entry b % 8 of each: greedy, seeded and unseeded, filtered or not, penalised or not.
TEMPERATURES = (1.0, 0.0, 0.7, 1.0, 1.3, 0.0, 0.8, 1.0)
COUPLED = (False, True, True, False, False, False, True, False)
TOP_K = (0, 3, 0, 20, 0, 0, 5, 0)
TOP_P = (1.0, 1.0, 0.9, 0.95, 1.0, 0.5, 1.0, 1.0)
MIN_P = (0.0, 0.0, 0.0, 0.0, 0.1, 0.0, 0.0, 0.0)
REPETITION = (1.0, 1.5, 1.0, 1.2, 1.0, 1.0, 2.0, 1.0)
PRESENCE = (0.0, 0.0, 0.0, 0.5, 0.0, 2.0, 0.0, 0.0)
FREQUENCY = (0.0, 0.0, 0.3, 0.0, 0.0, 0.0, 0.1, 0.0)
# name: vocabulary, rows of the batch, dtype, what is given
CASES: dict[str, tuple[int, tuple[int, ...], torch.dtype, frozenset[str]]] = {
    "7": (7, tuple(range(8)), torch.float32, frozenset()),
    "7-filters": (7, tuple(range(8)), torch.float32, frozenset({"filters"})),
    "7-everything": (7, tuple(range(8)), torch.bfloat16, frozenset({"filters", "penalties", "bias"})),
    "7-bias": (7, tuple(range(8)), torch.float16, frozenset({"bias"})),
    "32000-bf16": (32000, (0, 1, 2, 3), torch.bfloat16, frozenset()),
    "32000-penalties": (32000, (0, 2, 3, 5), torch.float32, frozenset({"penalties"})),
    "49152-everything-fp16": (49152, (0, 3, 6), torch.float16, frozenset({"filters", "penalties", "bias"})),
    "262144": (262144, (1, 2), torch.float32, frozenset()),
    "262144-filters-bf16": (262144, (4, 6), torch.bfloat16, frozenset({"filters"})),
}


def build(name: str) -> dict[str, Any]:
    vocab, rows, dtype, given = CASES[name]
    generator = torch.Generator().manual_seed(vocab + len(name))
    logits = torch.randn(len(rows), vocab, generator=generator) * 3

    def of_rows(values: tuple[Any, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.tensor([values[b] for b in rows], dtype=dtype)

    # The likely tokens are the ones seen, so that a penalty forgotten changes what is taken.
    seen = logits.topk(min(vocab, 5)).indices.tolist()
    case: dict[str, Any] = {
        "logits": logits.to(dtype),
        "temperature": of_rows(TEMPERATURES),
        "seeds": torch.tensor(rows) * 7919 - 3,
        "positions": torch.tensor(rows) * 1000 + 1,
        "coupled": of_rows(COUPLED, torch.bool),
    }
    if "filters" in given:
        case |= {"top_k": of_rows(TOP_K, torch.int32), "top_p": of_rows(TOP_P), "min_p": of_rows(MIN_P)}
    if "penalties" in given:
        case |= {
            "repetition_penalty": of_rows(REPETITION),
            "presence_penalty": of_rows(PRESENCE),
            "frequency_penalty": of_rows(FREQUENCY),
            "token_counts": count_tokens(
                [row[3:] for row in seen], [[*row[:3], *row[:2], *range(min(vocab // 2, 1500))] for row in seen]
            ),
        }
    if "bias" in given:
        biased = [row[:2] if b % 2 else [] for b, row in enumerate(seen)]
        case["logit_bias"] = LogitBias(
            torch.tensor([t for row in biased for t in row]),
            torch.tensor([v for row in biased for v in (-torch.inf, 1.5)[: len(row)]]),
            torch.tensor([sum(map(len, biased[:b])) for b in range(len(biased) + 1)], dtype=torch.int32),
        )
    return case


def in_columns(case: dict[str, Any]) -> dict[str, Any]:
    """The same arguments, each vector of them a column of a table whose other column holds something else."""
    return {
        name: torch.stack([value, value.flip(0)], 1)[:, 0]
        if isinstance(value, torch.Tensor) and value.ndim == 1
        else type(value)(*in_columns({field: getattr(value, field) for field in type(value).__slots__}).values())
        if isinstance(value, TokenCounts | LogitBias)
        else value
        for name, value in case.items()
    }


def edge_of_greedy() -> dict[str, Any]:
    """Rows at the very temperature under which a row is greedy, which float32 cannot hold, and just below it."""
    temperature = torch.tensor([GREEDY_BELOW, GREEDY_BELOW * (1 - 1e-6)])
    return {
        "logits": torch.tensor([[2.0, 2.0, 1.0]]).expand(2, 3),
        "temperature": temperature,
        "seeds": torch.tensor([1, 1]),
        "positions": torch.tensor([5, 5]),
    }


def run_interpreted(output: str) -> None:
    """Run all cases on the fused backend; fresh memory holds garbage, so that a forgotten write is seen."""
    from kernels.filters.launches import launches as filter_launches
    from kernels.interpreter import hasten_interpreter
    from kernels.launch import Launch
    from kernels.sample import fused  # noqa: F401  (decorated here, before memory is poisoned)
    from kernels.sample.launches import launches

    hasten_interpreter()
    listed, unlisted, run, empty = (*launches(), *filter_launches()), [], Launch.run, torch.empty

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
        sampled = sample(**case, backend="fused")
        outcome[name] = (sampled.token_ids, sampled.logprobs)
    drafted = sample(**cases["7"], purpose=Purpose.DRAFT, backend="fused")
    outcome["draft"] = (drafted.token_ids, drafted.logprobs)
    for name, case in {"in-columns": in_columns(cases["7-everything"]), "edge": edge_of_greedy()}.items():
        sampled = sample(**case, backend="fused")
        outcome[name] = (sampled.token_ids, sampled.logprobs)
    torch.save(outcome | {"unlisted": unlisted}, output)


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
def samples() -> dict[str, Sampled]:
    return {name: sample(**build(name), backend="naive") for name in CASES}


@pytest.mark.parametrize("name", CASES)
def test_fused_takes_the_same_tokens(name: str, outcomes: dict[str, Any], samples: dict[str, Sampled]) -> None:
    assert outcomes[name][0].tolist() == samples[name].token_ids.tolist()


@pytest.mark.parametrize("name", CASES)
def test_fused_gives_the_same_log_probabilities(
    name: str, outcomes: dict[str, Any], samples: dict[str, Sampled]
) -> None:
    torch.testing.assert_close(outcomes[name][1], samples[name].logprobs, rtol=0.0, atol=2e-5)


def test_fused_takes_the_token_of_verification_without_drafts(outcomes: dict[str, Any]) -> None:
    case = build("7-filters")
    logits = case.pop("logits")
    verdict = verify_chain(
        logits, torch.zeros(0, dtype=torch.int64), None, torch.zeros(9, dtype=torch.int32), **case, backend="naive"
    )
    assert outcomes["7-filters"][0].tolist() == verdict.token_ids[:, 0].tolist()


def test_fused_draws_a_drafters_own_stream(outcomes: dict[str, Any]) -> None:
    drafted = sample(**build("7"), purpose=Purpose.DRAFT, backend="naive").token_ids
    assert outcomes["draft"][0].tolist() == drafted.tolist()
    assert outcomes["draft"][0].tolist() != outcomes["7"][0].tolist()


def test_arguments_that_are_columns_of_a_table_are_read_as_they_stand(outcomes: dict[str, Any]) -> None:
    for given, in_column in zip(outcomes["7-everything"], outcomes["in-columns"], strict=True):
        assert torch.equal(in_column, given)


def test_a_row_is_greedy_by_the_same_float32_comparison(outcomes: dict[str, Any]) -> None:
    expected = sample(**edge_of_greedy(), backend="naive")
    assert outcomes["edge"][0].tolist() == expected.token_ids.tolist()
    torch.testing.assert_close(outcomes["edge"][1], expected.logprobs, rtol=0.0, atol=2e-5)
    # Half of the mass where it is sampled, more than a tenth elsewhere where temperature 1 is what is told.
    assert expected.logprobs[0] > expected.logprobs[1] + 0.1


def test_filters_penalties_and_biases_each_change_what_is_taken(samples: dict[str, Sampled]) -> None:
    for name, names in (
        ("7-everything", ("top_k", "repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias")),
        ("49152-everything-fp16", ("top_k", "repetition_penalty", "logit_bias")),
    ):
        for removed in names:
            case = build(name)
            del case[removed]
            assert not torch.equal(sample(**case, backend="naive").logprobs, samples[name].logprobs), removed


def test_whatever_was_launched_is_listed(outcomes: dict[str, Any]) -> None:
    assert outcomes["unlisted"] == []


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA or ROCm device")
@pytest.mark.parametrize("name", CASES)
def test_fused_takes_the_same_tokens_on_an_accelerator(name: str, samples: dict[str, Sampled]) -> None:
    case = {key: on_accelerator(value) for key, value in build(name).items()}
    sampled = sample(**case, backend="fused")
    assert sampled.token_ids.tolist() == samples[name].token_ids.tolist()
    torch.testing.assert_close(sampled.logprobs.cpu(), samples[name].logprobs, rtol=0.0, atol=2e-5)


def on_accelerator(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.cuda()
    return type(value)(*(getattr(value, field).cuda() for field in type(value).__slots__))


if __name__ == "__main__":
    run_interpreted(sys.argv[1])
