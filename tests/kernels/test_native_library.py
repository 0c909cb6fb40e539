"""C++ operations are compiled once, whoever asks first, and where they cannot be the reason is said."""

from __future__ import annotations

import subprocess
import sys

import pytest

from kernels import native_library
from kernels.launch import BackendUnavailable


@pytest.fixture
def source(tmp_path, monkeypatch):
    monkeypatch.setenv(native_library.CACHE_VARIABLE, str(tmp_path / "cache"))
    path = tmp_path / "five.cpp"
    path.write_text('extern "C" int five() { return 5; }\n')
    native_library.load.cache_clear()
    return path


def test_a_library_is_compiled_once(source, monkeypatch) -> None:
    native_library.load(source)
    native_library.load.cache_clear()
    monkeypatch.setenv("PATH", "")
    native_library.load(source)
    assert [path.suffix for path in native_library.path_of(source).parent.iterdir()] == [".so"]


def test_another_text_is_another_library(source) -> None:
    before = native_library.path_of(source)
    source.write_text('extern "C" int five() { return 6; }\n')
    assert native_library.path_of(source) != before


def test_two_processes_at_once_both_get_it(source) -> None:
    script = f"from pathlib import Path; from kernels import native_library; native_library.load(Path({str(source)!r}))"
    both = [subprocess.Popen([sys.executable, "-c", script]) for _ in range(2)]
    assert [process.wait(timeout=120) for process in both] == [0, 0]


def test_without_a_compiler_the_reason_is_that(source, monkeypatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(BackendUnavailable, match=r"no C\+\+ compiler"):
        native_library.load(source)


def test_text_that_does_not_compile_is_named_and_leaves_nothing(source) -> None:
    source.write_text("int five( { return 5; }\n")
    with pytest.raises(BackendUnavailable, match=r"could not compile five\.cpp: .*error"):
        native_library.load(source)
    assert not list(native_library.path_of(source).parent.iterdir())
