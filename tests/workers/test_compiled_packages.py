"""The folder of compiled packages does not grow with every version."""

from __future__ import annotations

import os

import pytest

from workers.compiled.compiler import KEPT, prune


@pytest.fixture
def folder(tmp_path):
    """Twice as many of one family as are kept, the first the longest unused; one of another; older ones without."""
    for age, name in enumerate(["b-0", *(f"a-{n}" for n in range(2 * KEPT)), "old"]):
        for suffix in (".pt2", ".lock"):
            path = tmp_path / f"{name}{suffix}"
            path.touch()
            os.utime(path, (1e9 + age, 1e9 + age))
    return tmp_path


def names(folder, suffix=".pt2"):
    return {path.stem for path in folder.glob(f"*{suffix}")}


def test_of_a_family_the_last_used_ones_are_kept(folder) -> None:
    prune(folder / "a-0.pt2")
    kept = {"a-0", "old", *(f"a-{n}" for n in range(KEPT + 2, 2 * KEPT))}
    assert names(folder) == kept | {"b-0"}


def test_locks_go_with_their_packages(folder) -> None:
    prune(folder / "a-0.pt2")
    assert names(folder, ".lock") == names(folder)


def test_packages_of_before_there_were_families_go_when_they_are_old(folder) -> None:
    os.utime(folder / "old.pt2", (0, 0))
    prune(folder / "a-0.pt2")
    assert "old" not in names(folder)


def test_a_family_of_few_is_left_alone(folder) -> None:
    before = names(folder)
    for name in list(before):
        if name.startswith("a-"):
            (folder / f"{name}.pt2").unlink()
    prune(folder / "b-0.pt2")
    assert names(folder) == {"b-0", "old"}
