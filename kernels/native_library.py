"""C++ operations for the CPU: compiled once a machine, kept on disk, and loaded into torch."""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

import torch

from kernels.launch import BackendUnavailable

CACHE_VARIABLE = "KADENCE_NATIVE_CACHE"
"""Folder for compiled libraries; where it is not set, kadence/native in the user's cache folder."""
FLAGS = ("-O3", "-march=native", "-std=c++20", "-fPIC", "-shared", "-fopenmp")
BUILD_LIMIT_S = 600
ERROR_LENGTH = 200


@functools.cache
def load(source: Path) -> None:
    """Compile `source` unless that was done before, and register its operations with torch.

    Takes about ten seconds the first time. Raises BackendUnavailable where that cannot be done, with the reason.
    """
    library = path_of(source)
    if not library.is_file():
        _build(source, library)
    try:
        torch.ops.load_library(str(library))
    except OSError as error:
        raise BackendUnavailable(f"{library} cannot be loaded: {str(error)[:ERROR_LENGTH]}") from error


def compiler() -> str | None:
    """The C++ compiler: $CXX, or the first of g++, clang++ and c++ that is installed; None where there is none."""
    named = os.environ.get("CXX")
    return next((found for name in ([named] if named else ["g++", "clang++", "c++"]) if (found := which(name))), None)


def which(name: str) -> str | None:
    return shutil.which(name)


def path_of(source: Path) -> Path:
    """Where the library of `source` is kept: another file for other text, torch, compiler flags or CPU."""
    identity = hashlib.sha256(source.read_bytes())
    for part in (torch.__version__, *FLAGS, cpu_identity()):
        identity.update(f"\0{part}".encode())
    return _cache_folder() / f"{source.stem}-{identity.hexdigest()[:16]}.so"


@functools.cache
def cpu_identity() -> str:
    """What the machine code of this CPU depends on: its architecture and instruction sets."""
    flags = ""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        flags = next((line for line in lines if line.lower().startswith(("flags", "features"))), "")
        flags += next((line for line in lines if line.startswith("model name")), "")
    except OSError:
        flags = platform.processor()
    return f"{platform.machine()} {flags}"


def _cache_folder() -> Path:
    named = os.environ.get(CACHE_VARIABLE)
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kadence" / "native"


def _build(source: Path, library: Path) -> None:
    """Compile into a folder beside the library and move it in place: two processes at once do each other no harm."""
    command = compiler()
    if command is None:
        raise BackendUnavailable("there is no C++ compiler (g++ or clang++) to compile it with")
    root = Path(torch.__file__).parent
    includes = [f"-I{root / 'include'}", f"-I{root / 'include/torch/csrc/api/include'}"]
    libraries = [f"-L{root / 'lib'}", "-ltorch", "-ltorch_cpu", "-lc10"]
    try:
        library.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=library.parent) as folder:
            made = Path(folder) / library.name
            done = subprocess.run(
                [command, *FLAGS, *includes, str(source), "-o", str(made), *libraries],
                capture_output=True, text=True, timeout=BUILD_LIMIT_S, check=False,
            )  # fmt: skip
            if done.returncode:
                reason = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr)
                raise BackendUnavailable(f"{command} could not compile {source.name}: {reason[:ERROR_LENGTH]}")
            made.replace(library)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BackendUnavailable(f"{source.name} could not be compiled: {str(error)[:ERROR_LENGTH]}") from error
