import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import typer

from workers import cli
from workers.lazy_group import LAZY_COMMANDS, load_command
from workers.models.registry import ModelError

PROGRAM = [sys.executable, "-c", "import sys; from workers.cli import main; sys.exit(main())"]
HEAVY = ("torch", "ray", "transformers", "sqlalchemy", "streamlit", "numpy", "pydantic", "httpx")


def run(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PROGRAM, *arguments], capture_output=True, text=True, env={**os.environ, **env}, check=False
    )


def test_help_imports_nothing_heavy() -> None:
    program = (
        "import sys; from workers import cli; cli.run(['--help']); "
        f"print(sorted(set({HEAVY!r}) & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"


def test_help_lists_every_command() -> None:
    listed = run("--help").stdout
    assert all(f" {name} " in listed for name in ("up", "serve", "dashboard", "doctor", *LAZY_COMMANDS))


def test_help_comes_at_once() -> None:
    # The best of three: this machine may be busy with something else.
    seconds = []
    for _ in range(3):
        begun = time.monotonic()
        run("--help")
        seconds.append(time.monotonic() - begun)
    assert min(seconds) < 1.5


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("kadence 0.")


def command_paths() -> list[tuple[str, ...]]:
    """Every command and group of `kadence`, at any depth."""
    found: list[tuple[str, ...]] = []

    def walk(command: Any, path: tuple[str, ...]) -> None:
        found.append(path)
        if hasattr(command, "list_commands"):
            context = command.make_context(command.name, [], resilient_parsing=True)
            lazy = getattr(command, "lazy_commands", {})
            for name in command.list_commands(context):
                walk(load_command(name, lazy) if name in lazy else command.get_command(context, name), (*path, name))

    walk(typer.main.get_command(cli.app), ())
    return found


@pytest.mark.parametrize("path", command_paths(), ids=" ".join)
def test_the_help_of_every_command_can_be_read(path: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run([*path, "--help"]) == 0
    assert "Usage: " in capsys.readouterr().out


@pytest.mark.parametrize("name", LAZY_COMMANDS)
def test_every_command_that_is_imported_late_is_there(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run([name, "--help"]) == 0
    assert f"Usage: kadence {name}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code", "line"),
    [
        (["servee"], 2, "kadence: error: No such command 'servee'. Did you mean 'serve'?; see: kadence --help"),
        (["serve", "--device", "gpu"], 2, "kadence: error: --device: input should be 'auto', 'cpu' or 'cuda'"),
        (["serve", "--port", "x"], 2, "kadence: error: Invalid value for '--port'"),
        (["serve", "--port", "8501"], 2, "kadence: error: port and dashboard_port are both 8501"),
        (["up", "--config", "/nowhere.yaml"], 2, "kadence: error: --config /nowhere.yaml: cannot be read"),
        (["up", "--drafter", "eagle:"], 2, "kadence: error: --drafter: must be auto, ngram, none, draft_model:"),
        (["model", "fetch"], 2, "kadence: error: Missing argument"),
        (["model", "fetch", "gpt"], 1, "kadence: error: unknown model 'gpt'; known: smollm2-135m-instruct"),
        (["load", "--frob"], 2, "kadence: error: No such option: --frob"),
    ],
)
def test_a_wrong_call_is_one_line_on_stderr(
    arguments: list[str], code: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(arguments) == code
    error = capsys.readouterr().err
    assert error.startswith(line)
    assert error.count("\n") == 1


def test_without_a_command_the_help_is_shown_and_the_call_was_wrong() -> None:
    done = run()
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_a_bug_is_one_line_that_says_how_to_see_more() -> None:
    assert cli.describe(TypeError("two\nlines")) == "unexpected TypeError: two lines (KADENCE_DEBUG=1 shows where)"


def test_our_own_errors_speak_for_themselves() -> None:
    assert cli.describe(ModelError("no such model")) == "no such model"


def test_an_error_of_the_system_names_the_file() -> None:
    assert cli.describe(PermissionError(13, "Permission denied", "/etc/x")) == "/etc/x: Permission denied"


def test_a_traceback_is_shown_only_when_it_is_asked_for() -> None:
    assert "Traceback" not in run("model", "fetch", "gpt").stderr
    assert "Traceback" in run("model", "fetch", "gpt", KADENCE_DEBUG="1").stderr


def test_models_are_listed_with_where_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["model", "list", "--model-cache", str(tmp_path)]) == 0
    assert "not fetched; run: kadence model fetch smollm2-135m-instruct" in capsys.readouterr().out


def test_a_reader_that_leaves_early_is_no_error() -> None:
    shell = f"{sys.executable} -c 'from workers.cli import main; main()' --help | head -1"
    done = subprocess.run(shell, shell=True, capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr
