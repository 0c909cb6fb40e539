"""`kadence bench kernels`: the check by the interpreter, and that nothing is timed or reported where it fails."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="Triton is published for Linux only")

from benchmarks import kernels_cases
from benchmarks.kernels import check
from benchmarks.kernels_cases import Case, Outputs, Prepared, cases, difference, differences
from benchmarks.kernels_compile import operations
from kernels.launch import Backend

KADENCE = (sys.executable, "-c", "import sys; from workers.cli import run; sys.exit(run(sys.argv[1:]))", "bench")
CPU = torch.device("cpu")
WITHOUT_A_CASE = {"kernels.filters"}
"""Has no public function; `verify` and `sample` with top-p run it."""


def bench(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return subprocess.run(
        [*KADENCE, "kernels", *arguments], capture_output=True, text=True, check=False, env=inherited | environment
    )


@pytest.fixture(scope="module")
def interpreted(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], list[dict[str, str]]]:
    """The object on stdout and the rows of the CSV, of one run on the CPU."""
    path = tmp_path_factory.mktemp("bench") / "kernels.csv"
    done = bench("--device", "cpu", "--json", "--output", str(path))
    assert done.returncode == 0, done.stderr
    with path.open(newline="") as file:
        return json.loads(done.stdout), list(csv.DictReader(file))


def test_every_case_is_right_in_the_interpreter(interpreted) -> None:
    found, _ = interpreted
    assert found["correct"]
    assert found["differences"] == []
    assert [(row["op"], row["shape"]) for row in found["rows"]] == [(case.op, case.shape) for case in cases("tiny")]


def test_the_interpreter_reports_no_time(interpreted) -> None:
    times = ("us", "eager_us", "compiled_us", "fraction_of_copy")
    assert {row[name] for row in interpreted[0]["rows"] for name in times} == {None}


def test_the_csv_has_a_line_for_every_case(interpreted) -> None:
    found, lines = interpreted
    assert [(line["op"], line["shape"], line["correct"]) for line in lines] == [
        (row["op"], row["shape"], "True") for row in found["rows"]
    ]


@pytest.mark.parametrize("size", ["tiny", "full"])
def test_every_operation_has_cases(size: kernels_cases.Size) -> None:
    wanted = {name.rpartition(".")[2] for name in operations() if name not in WITHOUT_A_CASE}
    assert {case.op for case in cases(size)} == wanted


def test_no_two_cases_share_a_name() -> None:
    names = [(case.op, case.shape) for case in (*cases("tiny"), *cases("full"))]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("case", cases("tiny"), ids=lambda case: f"{case.op}: {case.shape}")
def test_the_eager_twin_runs_on_the_tensors_of_its_case(case: Case) -> None:
    prepared = case.build(CPU)
    assert prepared.eager() is not None
    assert prepared.minimal_bytes > 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="an accelerator is here")
def test_without_an_accelerator_there_is_nothing_to_time() -> None:
    done = bench()
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.splitlines() == [done.stderr.strip()]
    assert "no CUDA or ROCm device" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--device", "gpu"), "--device gpu: use auto or cpu"),
        (("--device", "cpu", "--op", "sort"), "--op sort: no such operation; there are verify"),
    ],
)
def test_a_wrong_call_says_what_to_use(arguments: tuple[str, ...], message: str) -> None:
    done = bench(*arguments)
    assert done.returncode == 2
    assert message in done.stderr


BROKEN = """
import sys
from benchmarks import kernels_cases, kernels_timing
real = kernels_cases.differences
kernels_cases.differences = lambda prepared: ["token_ids: 1 of 3 entries are not those of the definition"]
def never(*_): raise AssertionError("timed on red")
kernels_timing.time_in_turns = kernels_timing.copy_bytes_per_s = never
from workers.cli import run
sys.exit(run(["bench", "kernels", "--device", "cpu", "--op", "sample", "--json", "--output", sys.argv[1]]))
"""


def test_a_wrong_answer_is_named_and_nothing_is_written(tmp_path: Path) -> None:
    path = tmp_path / "kernels.csv"
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-c", BROKEN, str(path)], capture_output=True, text=True, check=False, env=environment
    )
    found = json.loads(done.stdout)
    assert done.returncode == 1
    assert "1 of 3 entries are not those of the definition" in done.stderr
    assert not found["correct"]
    assert not any(row["correct"] or row["us"] for row in found["rows"])
    assert not path.exists()


def prepared_with(fused: torch.Tensor, naive: torch.Tensor) -> Prepared:
    def run(backend: Backend) -> Outputs:
        return {"answer": fused if backend == "fused" else naive}

    return Prepared(run, lambda: None, lambda: None, minimal_bytes=8)


def test_a_whole_number_must_be_equal() -> None:
    wanted = torch.tensor([1, 2, 3])
    assert differences(prepared_with(wanted, wanted)) == []
    assert differences(prepared_with(wanted + torch.tensor([0, 0, 1]), wanted)) == [
        "answer: 1 of 3 entries are not those of the definition"
    ]


@pytest.mark.parametrize(("error", "is_seen"), [(0.5e-4, False), (1e-3, True), (torch.nan, True)])
def test_a_real_number_may_be_off_by_its_tolerance(error: float, is_seen: bool) -> None:
    wanted = torch.tensor([0.0, 1.0, torch.nan])
    found = wanted + torch.tensor([error, 0.0, 0.0])
    assert (difference("answer", found, wanted, 1e-4) is not None) is is_seen


def test_an_operation_that_does_not_run_is_a_wrong_answer() -> None:
    def build(_: torch.device) -> Prepared:
        raise RuntimeError("no such kernel")

    rows, faults = check([Case("verify", "any", build)], CPU)
    assert not rows[0].correct
    assert faults == ["verify, any: RuntimeError: no such kernel"]


def test_medusa_tokens_that_are_not_worth_their_logit_are_seen() -> None:
    case = next(case for case in cases("tiny") if case.op == "medusa_heads")
    prepared = case.build(CPU)
    right = prepared.run("naive")
    assert prepared.compare is not None
    assert prepared.compare(right, right) == []
    (line,) = prepared.compare({**right, "token_ids": right["token_ids"].roll(1, -1)}, right)
    assert line.startswith("logits of the chosen tokens")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA or ROCm device")
@pytest.mark.parametrize("case", [*cases("tiny"), *cases("full")], ids=lambda case: f"{case.op}: {case.shape}")
def test_every_operation_answers_as_defined_on_an_accelerator(case: Case) -> None:
    assert differences(case.build(torch.device("cuda"))) == []


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA or ROCm device")
def test_a_case_is_timed_against_its_twin_on_an_accelerator() -> None:
    from benchmarks.kernels import timed_row

    case = cases("full", "sample")[-1]
    (row,), _ = check([case], torch.device("cuda"))
    timed = timed_row(row, case, torch.device("cuda"), rounds=3, compile=False, copy_speed=1e12)
    assert timed.us
    assert timed.eager_us
    assert replace(timed, us=None, eager_us=None, fraction_of_copy=None) != timed
