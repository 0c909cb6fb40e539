"""Builds operations written in C++, once for a machine, and keeps the library on disk.

A library is kept under a hash of everything it depends on: its sources, PyTorch, the compiler and the CPU. It appears
whole or not at all, and of several processes that want it at once one builds it.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

CACHE_VARIABLE = "KADENCE_KERNELS_CACHE"
"""Environment variable: the folder of built libraries, instead of kadence/kernels in the user's cache folder."""
COMPILERS = ("g++", "clang++", "c++")
TIMEOUT_S = 600


class BuildFailed(RuntimeError):
    """There is no library; the message says why, in one line."""


def build(sources: Sequence[Path]) -> Path:
    """The shared library of the first of `sources`, which includes the others; built if it is not kept already.

    Raises BuildFailed where there is no compiler, or it fails, or the folder cannot be written.
    """
    compiler = find_compiler()
    command = [compiler, *compiler_flags()]
    library = _kept_at(compiler, command, sources)
    if library.exists():
        return library
    try:
        library.parent.mkdir(parents=True, exist_ok=True)
        with _turn(library.with_suffix(".lock")):
            if not library.exists():
                _compile(command, sources[0], library)
    except OSError as error:
        raise BuildFailed(f"{library.parent} cannot be written ({error.strerror})") from error
    return library


def is_built(sources: Sequence[Path]) -> bool:
    """Whether `build` has nothing to do."""
    try:
        compiler = find_compiler()
        return _kept_at(compiler, [compiler, *compiler_flags()], sources).exists()
    except BuildFailed:
        return False


def cache_folder() -> Path:
    """Where libraries are kept. Raises BuildFailed for a user without a home, as in some containers."""
    if chosen := os.environ.get(CACHE_VARIABLE):
        return Path(chosen)
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kadence" / "kernels"
    except RuntimeError as error:
        raise BuildFailed(f"this user has no home folder; name a folder in {CACHE_VARIABLE}") from error


def find_compiler() -> str:
    """Path of the C++ compiler: CXX of the environment, or the first of COMPILERS. Raises BuildFailed."""
    named = os.environ.get("CXX")
    for name in (named,) if named else COMPILERS:
        if found := shutil.which(name):
            return found
    raise BuildFailed(f"CXX names {named}, which is not there" if named else f"no compiler ({', '.join(COMPILERS)})")


def compiler_flags() -> list[str]:
    """Flags but for source and output. Contraction is off, so that no rounding depends on what the compiler inlines."""
    torch_folder = Path(torch.__file__).parent
    cpu = "-march=native" if platform.machine() in ("x86_64", "AMD64") else "-mcpu=native"
    return [
        "-O3", "-std=c++20", cpu, "-ffp-contract=off", "-fPIC", "-shared", "-fopenmp",
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
        "-isystem", str(torch_folder / "include"), "-L", str(torch_folder / "lib"), "-lc10", "-ltorch_cpu",
        "-Wl,--as-needed", *map(str, _own_openmp(torch_folder)),
    ]  # fmt: skip


def _own_openmp(torch_folder: Path) -> list[Path]:
    """The OpenMP runtime that comes with PyTorch, if one does: a second one would have threads of its own."""
    folders = (torch_folder / "lib", torch_folder.parent / "torch.libs")
    return [path for folder in folders for path in sorted(folder.glob("libgomp*.so*"))][:1]


def _kept_at(compiler: str, command: Sequence[str], sources: Sequence[Path]) -> Path:
    return cache_folder() / f"{sources[0].stem}-{_key(compiler, command, sources)}.so"


def _key(compiler: str, command: Sequence[str], sources: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    for part in (*(source.read_bytes() for source in sources), _version(compiler), "\0".join(command).encode(),
                 torch.__version__.encode(), cpu_identity()):  # fmt: skip
        digest.update(hashlib.sha256(part).digest())
    return digest.hexdigest()[:24]


def _version(compiler: str) -> bytes:
    try:
        return subprocess.run([compiler, "--version"], capture_output=True, check=True, timeout=TIMEOUT_S).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise BuildFailed(f"{compiler} does not run ({_one_line(error)})") from error


@functools.cache
def cpu_identity() -> bytes:
    """What the CPU can do: a library built for another one might not run here, or round otherwise."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}".encode()
    wanted = ("model name", "flags", "Features", "CPU part")
    return "\n".join(sorted({line for line in lines if line.startswith(wanted)})).encode()


def _compile(command: Sequence[str], source: Path, library: Path) -> None:
    """Compile into a file of another name and then rename it: nobody sees half a library."""
    handle, unfinished = tempfile.mkstemp(suffix=".so", prefix=".unfinished-", dir=library.parent)
    os.close(handle)
    flags = list(command)
    try:
        subprocess.run([*flags[:1], str(source), *flags[1:], "-o", unfinished], capture_output=True, text=True,
                       check=True, timeout=TIMEOUT_S)  # fmt: skip
        os.replace(unfinished, library)
    except (OSError, subprocess.SubprocessError) as error:
        raise BuildFailed(f"{command[0]} cannot build {source.name} ({_one_line(error)})") from error
    finally:
        Path(unfinished).unlink(missing_ok=True)


def _one_line(error: Exception) -> str:
    """The compiler's first complaint, if that is what went wrong."""
    lines = str(getattr(error, "stderr", "") or error).splitlines()
    return next((line for line in lines if "error" in line), lines[0] if lines else type(error).__name__)


class _turn:
    """Holds the lock of a file: one process builds, the others wait for it. Without locks here, all build."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> None:
        self.file = self.path.open("w")
        try:
            import fcntl

            fcntl.flock(self.file, fcntl.LOCK_EX)
        except (ImportError, OSError):  # not this system, or a file system without locks
            pass

    def __exit__(self, *_: object) -> None:
        self.file.close()
