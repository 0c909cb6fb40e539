"""Which weights a model folder holds: a hash of its weight files, worked out once and then kept in the cache."""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path

from workers.models.registry import ModelError

WEIGHT_FILES = ("*.safetensors", "*.bin")


def weights_sha256(folder: Path, cache: Path) -> str:
    """sha256, in hex, over the names and contents of the folder's weight files (several GB take seconds).

    Kept in `cache` by path, size and time of change of the files, so that a second start only reads it. Raises
    ModelError where the folder has no weights or they cannot be read.
    """
    files = sorted({path for pattern in WEIGHT_FILES for path in folder.glob(pattern)})
    if not files:
        raise ModelError(f"model folder {folder} lacks weights (model.safetensors)")
    try:
        known = cache / ".weights" / _key(files)
        with contextlib.suppress(OSError):
            return known.read_text(encoding="ascii")
        digest = _hash(files)
    except OSError as error:
        raise ModelError(f"cannot read the weights in {folder}: {error.strerror or error}") from error
    with contextlib.suppress(OSError):  # a cache that cannot be written costs the next start a second look
        known.parent.mkdir(parents=True, exist_ok=True)
        partial = known.with_name(f"{known.name}.{os.getpid()}")
        partial.write_text(digest, encoding="ascii")
        partial.replace(known)
    return digest


def _key(files: list[Path]) -> str:
    """What must differ where a file was changed."""
    stats = [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    return hashlib.sha256(repr(stats).encode()).hexdigest()


def _hash(files: list[Path]) -> str:
    whole = hashlib.sha256()
    for path in files:
        with open(path, "rb") as file:
            whole.update(f"{path.name}\0{hashlib.file_digest(file, 'sha256').hexdigest()}\0".encode())
    return whole.hexdigest()
