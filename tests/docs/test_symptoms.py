"""The tables of what others reported are whole, and every test that they name is there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| (\d+) \|.*\| ([^|]+) \|$", re.MULTILINE)
DOES_NOT_APPLY = "does not apply: "


@dataclass(frozen=True)
class Table:
    """page: under docs/. numbers: of its rows. named: how a test's name begins that has one or two of them."""

    page: str
    numbers: tuple[int, ...]
    named: re.Pattern[str]

    @property
    def last_column(self) -> dict[int, str]:
        """What each row says of its tests."""
        text = (ROOT / "docs" / self.page).read_text(encoding="utf-8")
        return {int(number): tests for number, tests in ROW.findall(text)}

    @property
    def tests(self) -> dict[int, list[tuple[str, str]]]:
        """(path, name) of each row's."""
        return {number: re.findall(r"`([^`]+)::([^`]+)`", cell) for number, cell in self.last_column.items()}

    def numbers_in(self, name: str) -> set[int]:
        return {int(n) for match in self.named.finditer(name) for n in match.groups() if n}


COMPLAINTS = Table("complaints.md", tuple(range(1, 24)), re.compile(r"^test_(\d+)(?:_(\d+))?_"))
SYMPTOMS = Table(
    "symptoms.md",
    tuple(n for n in range(1, 38) if n not in (12, 19, 30, 36)),
    re.compile(r"^test_row_(\d+)(?:_(\d+))?_"),
)
TABLES = [pytest.param(table, id=table.page) for table in (COMPLAINTS, SYMPTOMS)]
NAMED = sorted({test for table in (COMPLAINTS, SYMPTOMS) for tests in table.tests.values() for test in tests})


@cache
def functions_in(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def named_after_a_symptom() -> Iterator[tuple[str, str]]:
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        if "def test_row_" in path.read_text(encoding="utf-8"):
            file = path.relative_to(ROOT).as_posix()
            yield from ((file, name) for name in functions_in(file) if SYMPTOMS.numbers_in(name))


@pytest.mark.parametrize("table", TABLES)
def test_every_row_is_there_with_a_test_or_with_why_it_does_not_apply(table: Table) -> None:
    assert tuple(table.last_column) == table.numbers
    for number, tests in table.tests.items():
        assert bool(tests) != table.last_column[number].startswith(DOES_NOT_APPLY), number


@pytest.mark.parametrize(("path", "name"), NAMED)
def test_a_test_that_is_named_is_there(path: str, name: str) -> None:
    assert name in functions_in(path)


@pytest.mark.parametrize("table", TABLES)
def test_a_number_in_a_tests_name_is_its_rows(table: Table) -> None:
    for number, tests in table.tests.items():
        for _, name in tests:
            assert not table.numbers_in(name) or number in table.numbers_in(name), name


def test_every_symptom_that_applies_has_a_test_named_after_it() -> None:
    for number, tests in SYMPTOMS.tests.items():
        assert not tests or any(number in SYMPTOMS.numbers_in(name) for _, name in tests), number


def test_every_test_that_is_named_after_a_symptom_is_in_its_row() -> None:
    for test in named_after_a_symptom():
        for number in SYMPTOMS.numbers_in(test[1]):
            assert test in SYMPTOMS.tests[number], test
