"""The code for CPUs with less than this one: the same tests, by a compiler that is told of older instructions."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from kernels.native_build import CACHE_VARIABLE, BuildFailed, find_compiler

ROOT = Path(__file__).parents[2]
CHOSEN = {
    "attention/test_native.py": "attends or chunks or path_as_a_chain or nan or number_of_threads",
    "packed_linear/test_packed_linear.py": "",
}
OLDER = '#!/bin/sh\nexec {compiler} "$@" -march={cpu}\n'
CPUINFO = Path("/proc/cpuinfo")
FLAGS = CPUINFO.read_text(encoding="utf-8").split() if CPUINFO.exists() and platform.machine() == "x86_64" else []
SETS = [
    name for name, flag in (("x86-64-v2", "ssse3"), ("x86-64-v3", "avx2"), ("x86-64-v4", "avx512f")) if flag in FLAGS
]
"""Vectors of 4, of 8, and of 16 without products of bfloat16, where this CPU can run them."""


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("cpu", SETS)
@pytest.mark.parametrize("tests", CHOSEN)
def test_an_older_instruction_set_passes_the_same_tests(tests: str, cpu: str, tmp_path: Path) -> None:
    try:
        compiler = find_compiler()
    except BuildFailed as missing:
        pytest.skip(str(missing))
    older = tmp_path / "compiler"
    older.write_text(OLDER.format(compiler=compiler, cpu=cpu))
    older.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"tests/kernels/{tests}",
         "-k", CHOSEN[tests]],
        cwd=ROOT, env=os.environ | {"CXX": str(older), CACHE_VARIABLE: str(tmp_path / "cache")},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:]
    assert "skipped" not in done.stdout
