"""The table of complaints is whole, and every test that it names is there."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| (\d+) \|.*\| ([^|]+) \|$", re.MULTILINE)
ROWS = {int(number): re.findall(r"`([^`]+)::([^`]+)`", tests) for number, tests in ROW.findall(
    (ROOT / "docs" / "complaints.md").read_text(encoding="utf-8")
)}  # fmt: skip
NAMED = [test for tests in ROWS.values() for test in tests]


@cache
def functions_in(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def test_every_complaint_of_the_list_has_a_row_with_a_test() -> None:
    assert list(ROWS) == list(range(1, 24))
    assert all(ROWS.values())


@pytest.mark.parametrize(("path", "name"), NAMED)
def test_a_test_that_is_named_is_there(path: str, name: str) -> None:
    assert name in functions_in(path)


def test_a_number_in_a_tests_name_is_its_complaints() -> None:
    for number, tests in ROWS.items():
        for _, name in tests:
            numbers = [int(n) for n in re.findall(r"^test_(\d+)(?:_(\d+))?_", name)[:1] for n in n if n]
            assert not numbers or number in numbers, name
