"""Libraries are built once, whole, and only where a compiler works."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kernels.native_build import CACHE_VARIABLE, BuildFailed, build, find_compiler

try:
    find_compiler()
except BuildFailed as missing:
    pytest.skip(str(missing), allow_module_level=True)

SOURCE = '#include "answer.h"\nextern "C" int answer() { return ANSWER; }\n'
LOGGED = '#!/bin/sh\n[ "$1" = --version ] || echo built >> "$(dirname "$0")/log"\nexec {compiler} "$@"\n'


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    source, header = tmp_path / "answer.cpp", tmp_path / "answer.h"
    source.write_text(SOURCE)
    header.write_text("#define ANSWER 42\n")
    return source, header


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Has a line for every compilation."""
    compiler = tmp_path / "compiler"
    compiler.write_text(LOGGED.format(compiler=find_compiler()))
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    return tmp_path / "log"


def test_a_library_that_is_kept_is_not_built_again(sources: tuple[Path, Path], log: Path) -> None:
    assert build(sources) == build(sources)
    assert log.read_text().splitlines() == ["built"]


def test_a_changed_header_makes_another_library(sources: tuple[Path, Path]) -> None:
    before = build(sources)
    sources[1].write_text("#define ANSWER 43\n")
    assert build(sources) != before


def test_two_processes_at_once_build_one_library(sources: tuple[Path, Path], log: Path) -> None:
    program = (
        "import sys, ctypes; from pathlib import Path; from kernels.native_build import build\n"
        "print(ctypes.CDLL(str(build([Path(p) for p in sys.argv[1:]]))).answer())"
    )
    both = [
        subprocess.Popen([sys.executable, "-c", program, *map(str, sources)], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    assert [process.communicate(timeout=120)[0].strip() for process in both] == ["42", "42"]
    assert log.read_text().splitlines() == ["built"]


def test_a_failed_build_leaves_nothing_and_quotes_the_compiler(sources: tuple[Path, Path], tmp_path: Path) -> None:
    sources[1].write_text("")
    with pytest.raises(BuildFailed, match=r"cannot build answer\.cpp .*ANSWER"):
        build(sources)
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".lock"]


@pytest.mark.parametrize(
    ("variable", "value", "reason"),
    [("CXX", "no-such-compiler", "no-such-compiler, which is not there"), ("PATH", "", "no compiler")],
)
def test_without_a_compiler_the_reason_is_named(
    variable: str, value: str, reason: str, sources: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv(variable, value)
    with pytest.raises(BuildFailed, match=reason):
        build(sources)


def test_a_folder_that_cannot_be_written_is_named(
    sources: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "file" / "below"))
    with pytest.raises(BuildFailed, match="cannot be written"):
        build(sources)


def test_a_user_without_a_home_is_told_to_name_a_folder(
    sources: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pwd.getpwuid", lambda _: {}["nobody"])
    for name in (CACHE_VARIABLE, "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(BuildFailed, match=f"name a folder in {CACHE_VARIABLE}"):
        build(sources)


ATTENTION_WITHOUT_COMPILER = """
import torch
from kernels.attention import BackendUnavailable, tree_attention
i = torch.zeros(1, dtype=torch.int32)
c = torch.ones(1, 16, 1, 64)
arguments = torch.zeros(1, 1, 64), c, c, i[None], i, torch.tensor([0, 1], dtype=torch.int32)
print(float(tree_attention(*arguments).sum()))
try:
    tree_attention(*arguments, backend="native")
except BackendUnavailable as error:
    print(error)
"""


def test_attention_without_a_compiler_is_the_definition_unless_native_is_named(tmp_path: Path) -> None:
    environment = os.environ | {"CXX": "no-such-compiler", CACHE_VARIABLE: str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", ATTENTION_WITHOUT_COMPILER], env=environment, capture_output=True, text=True, check=True
    )
    answer, refusal = done.stdout.splitlines()
    assert answer == "64.0"
    assert refusal == (
        "backend 'native' cannot run: CXX names no-such-compiler, which is not there; use 'auto' or 'naive'"
    )
