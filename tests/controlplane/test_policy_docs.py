"""The operator's page is true: its example parses, and it names every key, reason and default there is."""

import dataclasses
import re
from pathlib import Path

import pytest

from controlplane.decision.guard import Reason
from controlplane.policy import Budget, Experiment, Guard, Match, NamedBudget, Slo, Speculation, parse_policy

PAGE = (Path(__file__).parents[2] / "docs" / "policy.md").read_text(encoding="utf-8")
EXAMPLE = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)[0]


def test_the_example_is_a_good_policy() -> None:
    assert [c.name for c in parse_policy(EXAMPLE).cohorts] == ["code-copilot", "default"]


@pytest.mark.parametrize("part", [Match, Speculation, Slo, Guard, Budget, NamedBudget, Experiment])
def test_every_key_has_a_row(part: type) -> None:
    for field in dataclasses.fields(part):
        key = field.name.removesuffix("_s")
        assert re.search(rf"^\| `{key}` \|", PAGE, re.MULTILINE), key


@pytest.mark.parametrize("reason", list(Reason))
def test_every_reason_is_explained(reason: Reason) -> None:
    assert re.search(rf"^\| .*`{reason.value}`.* \|", PAGE, re.MULTILINE)
