"""A process with the real nvidia-ml-py, on a small library that speaks NVML's ABI and answers by script."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

SOURCE = Path(__file__).with_name("nvml.c")

SERVER = """
import contextlib, ctypes, io, json, os, sys
library = ctypes.CDLL("libnvidia-ml.so.1")
for line in sys.stdin:
    answers, code = json.loads(line)
    for name in [n for n in os.environ if n.startswith("KADENCE_NVML_") or n == "CUDA_VISIBLE_DEVICES"]:
        del os.environ[name]
    os.environ.update(answers)
    library.kadence_reset()
    space = {"library": library}
    with contextlib.redirect_stdout(io.StringIO()):
        exec(code, space)
    print(json.dumps(space["found"]), flush=True)
"""


class Nvml:
    """Runs code there and gives what it left in `found`; answers: KADENCE_NVML_* by their last word, or a variable."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def __call__(self, code: str, **answers: str) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        environment = {n if n.isupper() else f"KADENCE_NVML_{n.upper()}": value for n, value in answers.items()}
        self._process.stdin.write(json.dumps([environment, code]) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the process with the library has ended; its error is above"
        return json.loads(line)


@pytest.fixture(scope="session")
def nvml(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nvml]:
    compiler = shutil.which("gcc") or shutil.which("cc")
    assert compiler is not None, "these tests build a C library: install gcc"
    folder = tmp_path_factory.mktemp("nvml")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", folder / "libnvidia-ml.so.1", SOURCE], check=True)
    with subprocess.Popen(
        [sys.executable, "-c", SERVER],
        env={**os.environ, "LD_LIBRARY_PATH": str(folder)},
        cwd=Path(__file__).parents[3],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield Nvml(process)
