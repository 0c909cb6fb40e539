"""From YAML text to a Policy, or to all that is wrong with it at once."""

from __future__ import annotations

import hashlib
from pathlib import Path

import yaml

from controlplane.policy import nodes
from controlplane.policy.budgets import BUDGET_FIELDS, check_budgets, dial_problem, name, read_budget, read_budgets
from controlplane.policy.model import (
    CohortPolicy,
    Guard,
    Policy,
    PolicyError,
    PolicyFileError,
    PolicyProblem,
    Slo,
    Speculation,
)
from controlplane.policy.nodes import Fields, Problems
from controlplane.policy.order import UNREADABLE, check_order
from controlplane.policy.sections import (
    read_experiment,
    read_guard,
    read_match,
    read_slo,
    read_speculation,
)

MAX_TEXT = 1_000_000

_SECTIONS = ("match", "speculation", "slo", "guard", "budget")
_NO_SPECULATION = Speculation("threshold", 0.5, (0,), 0, 0)

_NEEDS_TPOT = (
    "latency needs to know which latency is good enough: give `slo: {tpot_p95: 40ms}`, or choose another objective"
)

# The same YAML in C where PyYAML was built with it, ten times as fast; the marks of lines are the same.
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_ELSEWHERE = {
    **dict.fromkeys(("tuner", "ladder", "start", "fallback", "acceptance_floor", "objective", "slots"), "speculation"),
    **dict.fromkeys(("tolerance", "hold", "min_samples", "probe_every"), "guard"),
    **dict.fromkeys(("tpot_p95", "ttft_p95"), "slo"),
    **dict.fromkeys(("api_key", "route", "model", "headers", "user", "metadata", "service_tier"), "match"),
    **dict.fromkeys(BUDGET_FIELDS, "budget"),
}


def load_policy(path: str | Path) -> Policy:
    """The policy in a file; raises PolicyFileError when it cannot be read, PolicyError when it cannot be used."""
    source = str(path)
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        reason = "there is no such file" if isinstance(error, FileNotFoundError) else (error.strerror or str(error))
        raise PolicyFileError(source, (PolicyProblem(None, "", f"cannot be read: {reason}"),)) from None
    except ValueError as error:  # a NUL in the path
        raise PolicyFileError(source, (PolicyProblem(None, "", f"cannot be read: {error}"),)) from None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise PolicyError(source, (PolicyProblem(line, "", "is not UTF-8 text; save the file as UTF-8"),)) from None
    return parse_policy(text, source)


def parse_policy(text: str, source: str = "policies.yaml") -> Policy:
    """The policy in `text`; raises PolicyError with every problem found. `source` names the file in messages."""
    root = _compose(text, source)
    problems, warnings = Problems(), list[str]()
    top = Fields(root, "", problems)
    version = top.take("version", nodes.integer(1, 1), required=True)
    cohort_nodes = top.child("cohorts", required=True)
    cohorts = _cohorts(cohort_nodes, problems) if cohort_nodes is not None else []
    budgets_node = top.child("budgets")
    budgets = [] if budgets_node is None else read_budgets(budgets_node, problems)
    experiment_node = top.child("experiment")
    experiment = None if experiment_node is None else read_experiment(Fields(experiment_node, "experiment", problems))
    top.finish()
    check_order(cohorts, problems, warnings)
    warnings += check_budgets([cohort for _, cohort in cohorts], budgets, problems)
    if problems.found:
        raise PolicyError(source, problems.found)
    for i, (_, cohort) in enumerate(cohorts):
        if cohort.slo != Slo() and cohort.speculation.tuner == "fixed":
            warnings.append(f"cohorts[{i}].slo: of {cohort.name!r} is checked, but the tuner fixed does not act on it")
    return Policy(
        version=version or 1,
        cohorts=tuple(cohort for _, cohort in cohorts),
        experiment=experiment,
        revision=hashlib.sha256(text.encode()).hexdigest()[:12],
        text=text,
        warnings=tuple(warnings),
        budgets=tuple(named for _, named in budgets),
    )


def _compose(text: str, source: str) -> yaml.Node:
    def fail(line: int | None, message: str) -> PolicyError:
        return PolicyError(source, (PolicyProblem(line, "", message),))

    if len(text) > MAX_TEXT:
        raise fail(None, f"is longer than {MAX_TEXT} characters")
    try:
        try:
            root = yaml.compose(text, Loader=LOADER)
        except (yaml.YAMLError, ValueError, RecursionError):
            # Read again for the error: its words and its line must not depend on how PyYAML was built.
            root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        said = ", ".join(part for part in (error.context, error.problem) if part)
        raise fail(mark.line + 1 if mark else None, f"is not valid YAML: {said}") from None
    except yaml.reader.ReaderError as error:
        at = error.position if isinstance(error.position, int) else 0
        raise fail(text[:at].count("\n") + 1, f"is not valid YAML: {error.reason}") from None
    except RecursionError:
        raise fail(None, "is nested too deeply") from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        raise fail(None, f"is not valid YAML: {' '.join(str(error).split())}") from None
    if root is None:
        raise fail(None, "is empty; it needs at least `version: 1` and `cohorts:`")
    return root


def _cohorts(node: yaml.Node, problems: Problems) -> list[tuple[yaml.Node, CohortPolicy]]:
    if not isinstance(node, yaml.SequenceNode):
        problems.add(node, "cohorts", "must be a list; start each cohort with `- name:`")
        return []
    if not node.value:
        problems.add(node, "cohorts", "is empty; give at least one cohort with `match: {}`")
    return [(item, _cohort(item, f"cohorts[{i}]", problems)) for i, item in enumerate(node.value)]


def _cohort(node: yaml.Node, path: str, problems: Problems) -> CohortPolicy:
    """The cohort as far as it could be read: parts that are wrong are noted and stand as defaults."""
    fields = Fields(node, path, problems)
    called = fields.take("name", name, required=True)
    children = {key: fields.child(key, required=key in ("match", "speculation")) for key in _SECTIONS}
    fields.finish(_ELSEWHERE)
    read = {key: Fields(child, f"{path}.{key}", problems) for key, child in children.items() if child is not None}
    speculation = read_speculation(read["speculation"]) if "speculation" in read else _NO_SPECULATION
    slo = read_slo(read["slo"]) if "slo" in read else Slo()
    if speculation.objective == "latency" and slo.tpot_p95_s is None and not _has(read.get("slo"), "tpot_p95"):
        read["speculation"].problem("objective", _NEEDS_TPOT)
    cohort = CohortPolicy(
        name=called or "",
        match=read_match(read["match"], problems) if "match" in read else UNREADABLE,
        speculation=speculation,
        slo=slo,
        guard=read_guard(read["guard"]) if "guard" in read else Guard(),
        budget=read_budget(read["budget"]) if "budget" in read else None,
    )
    if dial := dial_problem(cohort):
        read["budget"].problem("on_exceeded", dial)
    return cohort


def _has(fields: Fields | None, name: str) -> bool:
    """Whether the field is written, right or wrong: a wrong one was reported already."""
    return fields is not None and name in fields.names()
