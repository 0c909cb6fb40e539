"""A drafter is named by the hash of its weights, which is worked out once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import workers.models.weights_hash
from workers.models.registry import ModelError
from workers.models.weights_hash import weights_sha256


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("model-1.safetensors", "model-2.safetensors"):
        (folder / name).write_bytes(name.encode() * 100)
    (folder / "config.json").write_text("{}")
    return folder


def test_it_is_of_the_weights_alone(folder: Path, tmp_path: Path) -> None:
    before = weights_sha256(folder, tmp_path / "cache")
    (folder / "config.json").write_text('{"vocab_size": 1}')
    assert weights_sha256(folder, tmp_path / "other cache") == before


def test_one_changed_byte_in_any_file_is_another_hash(folder: Path, tmp_path: Path) -> None:
    """Also where size and name stay, and with a cache of the old one."""
    before = weights_sha256(folder, tmp_path / "cache")
    weights = folder / "model-2.safetensors"
    weights.write_bytes(b"x" + weights.read_bytes()[1:])
    os.utime(weights, ns=(1, 1))
    assert weights_sha256(folder, tmp_path / "cache") != before


def test_a_second_start_reads_no_weights(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = weights_sha256(folder, tmp_path / "cache")

    def fail(files: list[Path]) -> str:
        raise AssertionError("the weights were read again")

    monkeypatch.setattr(workers.models.weights_hash, "_hash", fail)
    assert weights_sha256(folder, tmp_path / "cache") == before


def test_a_cache_that_cannot_be_written_is_no_error(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert len(weights_sha256(folder, tmp_path / "file" / "cache")) == 64


def test_a_folder_without_weights_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=f"{tmp_path} lacks weights"):
        weights_sha256(tmp_path, tmp_path / "cache")
