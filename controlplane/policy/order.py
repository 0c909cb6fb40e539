"""What must hold between cohorts: the first that matches wins, so their order decides which can be reached."""

from __future__ import annotations

import yaml

from controlplane.policy import nodes
from controlplane.policy.model import CohortPolicy, Match
from controlplane.policy.nodes import Problems
from controlplane.policy.overlap import covers, overlaps

UNREADABLE = Match(api_key=("\0",))
"""Stands for a match that could not be read: it overlaps with nothing, so one mistake is not reported twice."""


def check_order(cohorts: list[tuple[yaml.Node, CohortPolicy]], problems: Problems, warnings: list[str]) -> None:
    """Names once each, the last cohort matches everything, every cohort can be reached; note partial overlaps."""
    first_line: dict[str, int | None] = {}
    for i, (node, cohort) in enumerate(cohorts):
        path = f"cohorts[{i}]"
        if cohort.name and cohort.name in first_line:
            problems.add(node, f"{path}.name", f"{cohort.name!r} is already used on line {first_line[cohort.name]}")
        first_line.setdefault(cohort.name, nodes.line_of(node))
        for earlier_node, earlier in cohorts[:i]:
            if covers(earlier.match, cohort.match) and cohort.match != UNREADABLE:
                problems.add(
                    node,
                    f"{path}.match",
                    f"{cohort.name!r} can never be reached: {earlier.name!r} on line {nodes.line_of(earlier_node)}"
                    " comes first and matches everything it matches; move it up or narrow the other",
                )
                break
            if overlaps(earlier.match, cohort.match) and not covers(cohort.match, earlier.match):
                warnings.append(
                    f"{path}.match: {cohort.name!r} overlaps in part with {earlier.name!r}, which comes first"
                    " and takes the requests that match both"
                )
    if cohorts and not cohorts[-1][1].match.is_empty and cohorts[-1][1].match != UNREADABLE:
        problems.add(
            cohorts[-1][0], f"cohorts[{len(cohorts) - 1}].match", "the last cohort must take the rest: `match: {}`"
        )
