"""Makes packages in a process of its own, so that a worker that serves meanwhile loses neither its thread nor memory.

`python -m workers.compiled.compiler SKELETON PACKAGE THREADS NICE` is that process.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import filelock
import torch

from kernels import native_build, packed_linear
from workers.compiled.form import Form
from workers.compiled.skeleton import CannotCompile, family, fingerprint

FOLDER = ".compiled"
"""Of packages, in the folder of models."""
LIMIT_S = 3600.0
NICE = 10
"""Of that process: beside a worker that is always busy it is left about a tenth of a core, so that it ends some day."""
REASON_LENGTH = 300
KEPT = 6
"""Packages of one family: of versions, numbers of threads and ways to hold weights that are used by turns."""


def package_of(skeleton: Form, cache: Path) -> Path:
    """Where its package is, or would be. cache: the folder of models."""
    return cache / FOLDER / f"{family(skeleton)}-{fingerprint(skeleton)}.pt2"


def is_ready(package: Path) -> bool:
    """Whether nothing needs compiling."""
    return package.is_file() and packed_linear.is_built()


def touch(package: Path) -> None:
    """Note that it is used: the longest unused ones go first."""
    with contextlib.suppress(OSError):  # a folder that can only be read
        os.utime(package)


def prune(new: Path) -> None:
    """Delete what was made for the same form as `new` and is not among the KEPT last used of them.

    Packages of before they were named by family count as of every one.
    """

    def used_at(package: Path) -> float:
        try:
            return package.stat().st_mtime
        except OSError:  # another process was faster
            return 0.0

    named = [path for path in new.parent.glob("*.pt2") if path.name.partition("-")[0] == new.name.partition("-")[0]]
    unnamed = [path for path in new.parent.glob("*.pt2") if "-" not in path.name]
    for package in sorted({*named, *unnamed} - {new}, key=used_at, reverse=True)[KEPT - 1 :]:
        for path in (package, package.with_suffix(".lock")):
            with contextlib.suppress(OSError):
                path.unlink()


def obstacle() -> str | None:
    """Why nothing can be compiled on this machine; None where it can."""
    try:
        native_build.find_compiler()
    except native_build.BuildFailed as error:
        return f"there is no C++ compiler: {error}"
    return None


def ensure(skeleton: Form, package: Path, stop: threading.Event | None = None) -> None:
    """Return when the package is there: compiled here, or by another process that began earlier.

    Raises CannotCompile with the reason; also once `stop` is set.
    """
    if is_ready(package):
        return
    if (reason := obstacle()) is not None:
        raise CannotCompile(reason)
    try:
        packed_linear.load()  # the process below needs it, too
        package.parent.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(package.with_suffix(".lock")):
            if not package.is_file():
                _compile(skeleton, package, stop or threading.Event())
                prune(package)
    except (packed_linear.BackendUnavailable, OSError) as error:
        raise CannotCompile(str(error)[:REASON_LENGTH]) from error


def _compile(skeleton: Form, package: Path, stop: threading.Event) -> None:
    with tempfile.TemporaryDirectory(dir=package.parent) as name:
        folder = Path(name)
        torch.save(skeleton, folder / "skeleton.pt")
        made, log = folder / "step.pt2", folder / "log"
        environment = {
            **os.environ,
            "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
            "OMP_NUM_THREADS": "1",
            "TMPDIR": str(folder),
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        }
        threads = str(torch.get_num_threads())
        arguments = [sys.executable, "-m", __name__, str(folder / "skeleton.pt"), str(made), threads, str(NICE)]
        with open(log, "wb") as out:
            child = subprocess.Popen(arguments, stdout=out, stderr=out, stdin=subprocess.DEVNULL, env=environment)
            try:
                ends_at = time.monotonic() + LIMIT_S
                while child.poll() is None and not stop.wait(0.2) and time.monotonic() < ends_at:
                    pass
            finally:
                if child.poll() is None:
                    child.kill()
                child.wait()
        if stop.is_set():
            raise CannotCompile("it was stopped")
        if child.returncode or not made.is_file():
            lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines() or ["no output"]
            raise CannotCompile(f"the compiler ended with {child.returncode}: {lines[-1][:REASON_LENGTH]}")
        made.replace(package)


def _end_with(parent: int) -> None:
    """Without the worker nobody wants the package; a killed one cannot say so."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


def main(skeleton: str, package: str, threads: str, nice: str) -> None:
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    os.nice(int(nice))
    from workers.compiled.packaging import make_package

    torch.set_num_threads(int(threads))  # their number becomes part of the code
    form: Form = torch.load(skeleton, weights_only=False)
    form.arrive()
    make_package(form, Path(package))


if __name__ == "__main__":
    main(*sys.argv[1:])
