import json
from pathlib import Path

import pytest

from workers.models.registry import ModelError
from workers.models.resolve import check_model_folder, resolve_model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (tmp_path / name).write_text("{}")
    return tmp_path


def error_of(name: str, cache: Path) -> str:
    with pytest.raises(ModelError) as raised:
        resolve_model(name, cache, fetch_missing=False)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_a_local_folder_is_taken_as_it_is(folder: Path) -> None:
    assert resolve_model(str(folder), Path("/nowhere")) == folder


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_what_a_local_folder_lacks_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    assert name in error_of(str(folder), folder).removeprefix(str(folder))


def test_everything_that_is_missing_is_named_at_once(tmp_path: Path) -> None:
    error = error_of(str(tmp_path), tmp_path)
    assert error.startswith(f"model folder {tmp_path} lacks config.json, weights (model.safetensors), a tokenizer")


def test_a_missing_shard_is_named(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "a.safetensors").touch()
    index = {"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match=r"lacks b\.safetensors$"):
        check_model_folder(folder)


def test_a_tokenizer_may_be_in_two_files(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.json").touch()
    (folder / "merges.txt").touch()
    assert check_model_folder(folder) == folder


def test_an_unknown_name_lists_the_known_ones(tmp_path: Path) -> None:
    assert error_of("smollm3", tmp_path) == (
        "unknown model 'smollm3'; known: smollm2-135m-instruct; or give a local folder or a hub id (organisation/name)"
    )


def test_a_known_model_that_is_not_there_names_the_command_that_fetches_it(tmp_path: Path) -> None:
    error = error_of("smollm2-135m-instruct", tmp_path)
    assert error.endswith("run: kadence model fetch smollm2-135m-instruct")


def test_a_folder_that_does_not_exist_is_no_hub_id(tmp_path: Path) -> None:
    assert error_of("./models/none", tmp_path) == "model folder ./models/none does not exist"


def test_a_file_is_refused(folder: Path) -> None:
    assert "is a file; give the folder" in error_of(str(folder / "config.json"), folder)


def test_a_hub_id_that_cannot_be_had_is_one_line(tmp_path: Path) -> None:
    error = error_of("organisation/model-that-nobody-cached", tmp_path)
    assert error.startswith("cannot get organisation/model-that-nobody-cached from the model hub")
