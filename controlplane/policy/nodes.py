"""Reads YAML nodes field by field, so that every problem is kept with its line and path instead of stopping at one.

Scalars are read as written (`node.value`), not as YAML guesses: `on`, `1:30` and `007` stay what the operator typed.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import TypeVar

import yaml

from controlplane.policy.model import PolicyProblem

T = TypeVar("T")

_NULL = "tag:yaml.org,2002:null"
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PERCENT = re.compile(r"(\d+(?:\.\d+)?)\s?%")
_NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?")


class Problems:
    """Collects what is wrong, in the order of the file."""

    def __init__(self) -> None:
        self._found: list[PolicyProblem] = []

    def add(self, node: yaml.Node | None, path: str, message: str) -> None:
        self._found.append(PolicyProblem(line_of(node), path, message))

    @property
    def found(self) -> tuple[PolicyProblem, ...]:
        return tuple(sorted(dict.fromkeys(self._found), key=lambda p: p.line or 0))


def line_of(node: yaml.Node | None) -> int | None:
    """1-based line on which `node` starts."""
    return None if node is None or node.start_mark is None else int(node.start_mark.line) + 1


def scalar(node: yaml.Node) -> str:
    """The text of a scalar; raises ValueError for a list, a mapping or nothing."""
    if not isinstance(node, yaml.ScalarNode):
        raise ValueError(f"must be a single value, not a {_kind(node)}")
    if node.tag == _NULL or not str(node.value).strip():
        raise ValueError("is empty; give it a value or remove the line")
    return str(node.value)


def duration(least: float, most: float) -> Callable[[yaml.Node], float]:
    """Parser of `40ms`, `10s`, `5m`, `2h`, `1d` into seconds within [least, most]."""

    def parse(node: yaml.Node) -> float:
        text = scalar(node)
        found = _DURATION.fullmatch(text)
        if found is None:
            raise ValueError(f"{text!r} is not a duration; write a number with its unit, such as 40ms, 10s or 5m")
        seconds = float(found[1]) * _SECONDS[found[2]]
        if not least <= seconds <= most:
            raise ValueError(f"{text} is outside {_seconds(least)} to {_seconds(most)}")
        return seconds

    return parse


def percent(least: float, most: float) -> Callable[[yaml.Node], float]:
    """Parser of `2%` into a share; `least` and `most` are percents, inclusive."""

    def parse(node: yaml.Node) -> float:
        text = scalar(node)
        found = _PERCENT.fullmatch(text)
        if found is None:
            raise ValueError(f"{text!r} is not a percentage; write it with its sign, such as 50%")
        value = float(found[1])
        if not least <= value <= most:
            raise ValueError(f"{text} is outside {least:g}% to {most:g}%")
        return value / 100

    return parse


def integer(least: int, most: int) -> Callable[[yaml.Node], int]:
    """Parser of a whole number within [least, most]."""

    def parse(node: yaml.Node) -> int:
        text = scalar(node)
        if not re.fullmatch(r"[-+]?\d{1,18}", text):
            raise ValueError(f"{text!r} is not a whole number")
        if not least <= int(text) <= most:
            allowed = f"{least}" if least == most else f"{least} to {most}"
            raise ValueError(f"{text} is not allowed; it must be {allowed}")
        return int(text)

    return parse


def money(node: yaml.Node) -> Decimal:
    """A positive decimal amount."""
    text = scalar(node)
    if not _NUMBER.fullmatch(text):
        raise ValueError(f"{text!r} is not an amount; write a plain number such as 500 or 12.50")
    if not Decimal(0) < Decimal(text) <= Decimal(10) ** 9:
        raise ValueError(f"{text} is outside 0 (exclusive) to 1000000000")
    return Decimal(text)


def choice(allowed: Sequence[str]) -> Callable[[yaml.Node], str]:
    """Parser of one of a few words."""

    def parse(node: yaml.Node) -> str:
        text = scalar(node)
        if text not in allowed:
            raise ValueError(f"{text!r} is not one of {', '.join(allowed)}{meant(text, allowed)}")
        return text

    return parse


def words(node: yaml.Node) -> tuple[str, ...]:
    """A list of values, or one value standing for a list of one."""
    items = node.value if isinstance(node, yaml.SequenceNode) else [node]
    if not items:
        raise ValueError("is an empty list, which no request could match; give a value or remove the line")
    return tuple(dict.fromkeys(scalar(item) for item in items))


def meant(text: str, allowed: Sequence[str]) -> str:
    """`; did you mean "x"?` when `text` is close to one of the allowed words, else nothing."""
    close = difflib.get_close_matches(text, allowed, n=1, cutoff=0.6)
    return f'; did you mean "{close[0]}"?' if close else ""


class Fields:
    """The fields of one mapping. Each is taken once; `finish` reports those that nobody took."""

    def __init__(self, node: yaml.Node, path: str, problems: Problems) -> None:
        self.node, self.path, self._problems = node, path, problems
        self._nodes: dict[str, yaml.Node] = {}
        self._known: list[str] = []
        self.is_mapping = isinstance(node, yaml.MappingNode)
        if not isinstance(node, yaml.MappingNode):
            problems.add(node, path, f"must be a mapping of fields, not a {_kind(node)}")
            return
        for key, value in node.value:
            name = str(key.value) if isinstance(key, yaml.ScalarNode) else "?"
            if not isinstance(key, yaml.ScalarNode):
                problems.add(key, path, f"a field name must be a word, not a {_kind(key)}")
            elif name == "<<":
                problems.add(key, self.at(name), "merge keys are not supported; write the fields out")
            elif name in self._nodes:
                problems.add(key, self.at(name), f"is given twice, first on line {line_of(self._nodes[name])}")
            else:
                self._nodes[name] = value

    def at(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name

    def given(self) -> tuple[str, ...]:
        """All names as written."""
        return tuple(self._nodes)

    def names(self) -> tuple[str, ...]:
        """All names as written; they count as known from now on."""
        self._known += self._nodes
        return tuple(self._nodes)

    def child(self, name: str, *, required: bool = False) -> yaml.Node | None:
        """The node of a field, to be read by the caller; None when it is absent."""
        self._known.append(name)
        node = self._nodes.get(name)
        if node is None and required and self.is_mapping:
            self.problem(name, "is missing")
        return node

    def take(self, name: str, parse: Callable[[yaml.Node], T], *, required: bool = False) -> T | None:
        """The parsed field; None when it is absent or wrong, and then the problem is noted."""
        node = self.child(name, required=required)
        if node is None:
            return None
        try:
            return parse(node)
        except ValueError as error:
            self.problem(name, str(error))
            return None

    def problem(self, name: str, message: str) -> None:
        self._problems.add(self._nodes.get(name, self.node), self.at(name), message)

    def finish(self, elsewhere: Mapping[str, str] | None = None) -> None:
        """Report unknown fields. `elsewhere`: name -> where such a field belongs."""
        for name, node in self._nodes.items():
            if name not in self._known:
                hint = meant(name, self._known)
                if not hint and elsewhere and name in elsewhere:
                    hint = f"; it belongs under {elsewhere[name]}"
                self._problems.add(
                    node, self.at(name), f"unknown field{hint or '; known are ' + ', '.join(self._known)}"
                )


def _kind(node: yaml.Node) -> str:
    if isinstance(node, yaml.SequenceNode):
        return "list"
    if isinstance(node, yaml.MappingNode):
        return "mapping"
    return "blank" if node.tag == _NULL else "single value"


def _seconds(seconds: float) -> str:
    for unit, size in (("d", 86400.0), ("h", 3600.0), ("m", 60.0), ("s", 1.0)):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:g}{unit}"
    return f"{seconds * 1000:g}ms"
