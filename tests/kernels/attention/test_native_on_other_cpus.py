"""The code for CPUs with less than this one: the same tests, by a compiler that is told of older instructions."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from kernels.native_build import CACHE_VARIABLE, BuildFailed, find_compiler

ROOT = Path(__file__).parents[3]
CHOSEN = "attends or chunks or path_as_a_chain or nan or number_of_threads"
OLDER = '#!/bin/sh\nexec {compiler} "$@" -march={cpu}\n'
CPUINFO = Path("/proc/cpuinfo")
FLAGS = CPUINFO.read_text(encoding="utf-8").split() if CPUINFO.exists() and platform.machine() == "x86_64" else []
SETS = [name for name, flag in (("x86-64-v2", "ssse3"), ("x86-64-v3", "avx2")) if flag in FLAGS]
"""Vectors of 4 and of 8, where this CPU can run them."""


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("cpu", SETS)
def test_an_older_instruction_set_passes_the_same_tests(cpu: str, tmp_path: Path) -> None:
    try:
        compiler = find_compiler()
    except BuildFailed as missing:
        pytest.skip(str(missing))
    older = tmp_path / "compiler"
    older.write_text(OLDER.format(compiler=compiler, cpu=cpu))
    older.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/kernels/attention/test_native.py",
         "-k", CHOSEN],
        cwd=ROOT, env=os.environ | {"CXX": str(older), CACHE_VARIABLE: str(tmp_path / "cache")},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:]
    assert "skipped" not in done.stdout
