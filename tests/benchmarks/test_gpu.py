"""The command for a GPU machine: limits, order, exit code; and the real parts, small, where there is no GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is published for Linux only")

from benchmarks.gpu import LIMIT_S, LOG, SUMMARY, Part, parts, run_all, run_part, untested
from benchmarks.gpu_decode_figures import DEFINED, FUSED, PLAIN, Mode, Run, differences

PYTHON = sys.executable


def program(name: str, code: str, limit_s: float = 30, **environment: str) -> Part:
    return Part(name, (PYTHON, "-c", code), limit_s, environment)


def gpu(*arguments: str, out: str = "") -> subprocess.CompletedProcess[str]:
    command = [PYTHON, "-m", "benchmarks.gpu", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env=os.environ | {"OUT": out, "OMP_NUM_THREADS": "1"}
    )


def test_all_limits_together_are_less_than_eight_minutes(tmp_path: Path) -> None:
    assert sum(part.limit_s for part in parts(tmp_path, "cuda")) < LIMIT_S == 480


def test_a_part_that_fails_does_not_keep_the_next_from_running(tmp_path: Path) -> None:
    good = program("good", "print('here')")
    assert not run_all([program("bad", "raise SystemExit(3)"), good], tmp_path)
    summary = json.loads((tmp_path / SUMMARY).read_text())
    assert [(part["name"], part["ok"], part["exit_code"]) for part in summary["parts"]] == [
        ("bad", False, 3),
        ("good", True, 0),
    ]
    assert not summary["ok"]
    assert (tmp_path / "good.out").read_text() == "here\n"


def test_parts_that_are_all_well_are_well_together(tmp_path: Path) -> None:
    assert run_all([program("a", ""), program("b", "")], tmp_path)
    assert json.loads((tmp_path / SUMMARY).read_text())["ok"]


def test_a_part_is_ended_at_its_limit_with_all_that_it_started(tmp_path: Path) -> None:
    started = tmp_path / "started"
    code = (
        "import subprocess, sys, time\n"
        f"child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(started)!r}, 'w').write(str(child.pid))\n"
        "time.sleep(600)\n"
    )
    outcome = run_part(program("hangs", code, limit_s=2), tmp_path)
    assert outcome.fault == "ran past its 2 s"
    child = Path(f"/proc/{started.read_text()}/stat")
    for _ in range(100):
        if not child.exists() or child.read_text().rpartition(")")[2].split()[0] == "Z":
            return
        time.sleep(0.05)
    raise AssertionError("what the part started is still running")


def test_a_part_that_cannot_be_started_is_a_fault(tmp_path: Path) -> None:
    assert "could not be started" in run_part(Part("none", ("/nowhere/python",), 5), tmp_path).fault


def test_errors_go_to_the_log_and_answers_to_a_file_of_their_own(tmp_path: Path) -> None:
    run_all([program("both", "import sys; print('answer'); print('noise', file=sys.stderr)")], tmp_path)
    assert (tmp_path / "both.out").read_text() == "answer\n"
    assert "noise" in (tmp_path / LOG).read_text()


def test_a_part_has_its_own_environment(tmp_path: Path) -> None:
    run_all([program("a", "import os; print(os.environ['MARK'])", MARK="seen")], tmp_path)
    assert (tmp_path / "a.out").read_text() == "seen\n"


@pytest.mark.parametrize(
    ("suite", "fault"),
    [
        ('<testsuite tests="4" skipped="0"/>', None),
        ('<testsuite tests="4" skipped="1"/>', "1 of 4 tests were skipped"),
        ('<testsuite tests="0" skipped="0"/>', "no test was run"),
        ("", "no test was run"),
    ],
)
def test_a_skipped_test_is_a_fault_on_a_gpu(suite: str, fault: str | None, tmp_path: Path) -> None:
    (tmp_path / "tests.xml").write_text(f"<testsuites>{suite}</testsuites>")
    assert untested(tmp_path / "tests.xml") == fault


def test_a_report_that_is_missing_is_a_fault(tmp_path: Path) -> None:
    assert "no report of the tests" in str(untested(tmp_path / "tests.xml"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "--output is not given and OUT is not set"),
        (("--output", "x", "--device", "tpu"), "--device tpu: use cuda or cpu"),
        (
            ("--output", "x", "--only", "lunch"),
            "--only lunch: no such part; there are environment, tests, steps-",
        ),
    ],
)
def test_a_wrong_call_says_what_to_give(arguments: tuple[str, ...], message: str) -> None:
    done = gpu(*arguments)
    assert done.returncode == 2
    assert message in done.stderr


def test_the_real_parts_run_small_on_the_cpu(tmp_path: Path) -> None:
    names = ["environment", "steps-bfloat16", "decode-float32", "kernels"]
    chosen = [f"--only={name}" for name in names]
    done = gpu("--device", "cpu", *chosen, out=str(tmp_path))
    summary = json.loads((tmp_path / SUMMARY).read_text())
    assert done.returncode == 0, (done.stderr, (tmp_path / LOG).read_text())
    assert [part["name"] for part in summary["parts"]] == names
    assert summary["environment"]["triton"]
    assert json.loads((tmp_path / "kernels.out").read_text())["correct"]
    stepped = json.loads((tmp_path / "steps-bfloat16.out").read_text())
    assert stepped["correct"]
    assert {(row["sequences"], row["k"]) for row in stepped["rows"]} == {
        (n, k) for n in (1, 2) for k in (0, 1, 2, 4, 8)
    }
    decoded = json.loads((tmp_path / "decode-float32.out").read_text())
    assert decoded["correct"]
    lengths = {row["arm"]: row["acceptance_length"] for row in decoded["rows"]}
    assert lengths[PLAIN] is None
    assert 1 < lengths[FUSED] == lengths[DEFINED]
    assert {path.name for path in tmp_path.glob("*.csv")} == {"kernels.csv", "decode.csv", "steps.csv"}


def runs(**changed: tuple[tuple[int, ...], ...]) -> list[Run]:
    """Every arm in both modes with the same text, but for arms that `changed` names by their last word."""
    modes: tuple[Mode, ...] = ("greedy", "seeded")
    return [
        Run(arm, mode, changed.get(arm.rpartition("/")[2], ((1, 2, 3),)), 1.0, spec_steps=1, accepted=1)
        for mode in modes
        for arm in (PLAIN, DEFINED, FUSED)
    ]


def test_equal_texts_are_no_difference() -> None:
    assert differences(runs(), demand_equal_k=True) == []


def test_a_fused_verification_that_takes_other_tokens_is_named() -> None:
    lines = differences(runs(fused=((1, 2, 4),)), demand_equal_k=False)
    assert lines == [f"{mode}: {FUSED} does not decode to the text of {DEFINED}" for mode in ("greedy", "seeded")]


def test_text_with_drafts_must_be_the_text_without_where_that_is_demanded() -> None:
    other = runs(fused=((1, 2, 4),), naive=((1, 2, 4),))
    assert differences(other, demand_equal_k=False) == []
    assert len(differences(other, demand_equal_k=True)) == 2


def test_an_arm_that_never_drafts_is_named() -> None:
    idle = [Run(run.arm, run.mode, run.token_ids, 1.0) for run in runs()]
    assert len([line for line in differences(idle, demand_equal_k=True) if "drafted nothing" in line]) == 4


@pytest.mark.gpu
@pytest.mark.skipif("not __import__('torch').cuda.is_available()", reason="no CUDA or ROCm device")
def test_the_engine_decodes_the_same_with_the_fused_verification_on_an_accelerator() -> None:
    command = [PYTHON, "-m", "benchmarks.gpu_decode", "--rounds", "1", "--max-tokens", "16"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
