import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from workers import cli


def test_a_run_reports_every_cohort_and_the_total_as_json(endpoint, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["load", "default", "--url", endpoint.url, "--requests", "8", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert [row["cohort"] for row in result["cohorts"]] == ["code", "json", "contract", "fiction"]
    assert result["total"]["tokens"] == 8 * 9
    assert result["total"]["acceptance_length"] == 4.0


def test_the_table_has_a_row_for_every_cohort(endpoint, capsys: pytest.CaptureFixture[str]) -> None:
    cli.run(["load", "--url", endpoint.url, "--requests", "4"])
    table = capsys.readouterr().out
    assert all(name in table for name in ("code", "json", "contract", "fiction", "total", "acceptance length"))


def test_every_request_is_written_to_the_file(endpoint, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "requests.jsonl"
    cli.run(["load", "--url", endpoint.url, "--requests", "4", "--out", str(out)])
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["text"] for line in lines] == ["Hello, world"] * 4


def test_errors_fail_the_command_and_are_told_once_with_their_number(
    endpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    endpoint.error = (400, "no")
    assert cli.run(["load", "--url", endpoint.url, "--requests", "8", "--concurrency", "2"]) == 1
    assert "kadence: json: 2 x HTTP 400: no\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--url", "http://127.0.0.1:9"], "cannot reach http://127.0.0.1:9"),
        (["--duration", "soon"], "duration 'soon'"),
        (["nope"], "mix 'nope'"),
        (["--out", "/nowhere/x.jsonl"], "--out /nowhere/x.jsonl: folder /nowhere does not exist"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["load", *arguments]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"kadence: error: {message}")
    assert error.count("\n") == 1


def test_ctrl_c_prints_the_summary_so_far(endpoint) -> None:
    endpoint.pause_s = 0.05
    command = [sys.executable, "-c", "import sys; from workers.cli import main; sys.exit(main())", "load", "--json"]
    process = subprocess.Popen(
        [*command, "--url", endpoint.url], stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    for _ in range(200):
        if len(endpoint.bodies) > 8:
            break
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=20)
    assert json.loads(out)["total"]["requests"] > 4
