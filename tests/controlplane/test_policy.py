"""Operator YAML: what is accepted, and that everything wrong is said at once with its line."""

from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.policy import Guard, Match, Policy, PolicyError, PolicyFileError, Slo, load_policy, parse_policy

DEFAULT = (
    "  - {name: default, match: {}, speculation: {tuner: threshold, ladder: [0, 1, 2, 4], start: 2, fallback: 0}}\n"
)
FULL = """\
version: 1
cohorts:
  - name: code-copilot
    match: {api_key: [team-ide, team-web], route: "/v1/*", headers: {X-App: [ide, "web*"]}, metadata: {tier: 1}}
    speculation: {tuner: threshold, acceptance_floor: 62.5%, ladder: [0, 2, 4], start: 4, fallback: 2}
    slo: {tpot_p95: 40ms, ttft_p95: 1.5s}
    guard: {tolerance: 3%, hold: 5s, min_samples: 20, probe_every: 2m}
    budget: {usd: 500.50, period: month, soft: 75%, on_exceeded: reject}
  - name: default
    match: {}
    speculation: {tuner: fixed, ladder: [0, 2], start: 0, fallback: 0}
experiment: {holdout: 5%, unit: window, window: 15m, burn_in: 5m}
"""


def cohort(match: str = "{api_key: [a]}", name: str = "a", **fields: str) -> str:
    speculation = fields.pop("speculation", "{tuner: threshold, ladder: [0, 1, 2], start: 1, fallback: 0}")
    extra = "".join(f", {key}: {value}" for key, value in fields.items())
    return f"  - {{name: {name}, match: {match}, speculation: {speculation}{extra}}}\n"


def policy(*cohorts: str, tail: str = "") -> str:
    return "version: 1\ncohorts:\n" + "".join(cohorts) + DEFAULT + tail


def problems(text: str) -> list[tuple[int | None, str, str]]:
    with pytest.raises(PolicyError) as caught:
        parse_policy(text)
    return [(p.line, p.field, p.message) for p in caught.value.problems]


def only_problem(text: str) -> tuple[int | None, str, str]:
    (problem,) = problems(text)
    return problem


def test_every_field_of_a_full_policy_is_read() -> None:
    read = parse_policy(FULL).cohort("code-copilot")
    assert read.match == Match(
        api_key=("team-ide", "team-web"),
        route=("/v1/*",),
        headers={"x-app": ("ide", "web*")},
        metadata={"tier": ("1",)},
    )
    assert (read.speculation.acceptance_floor, read.speculation.ladder) == (0.625, (0, 2, 4))
    assert read.slo == Slo(0.04, 1.5)
    assert read.guard == Guard(0.03, 5.0, 20, 120.0)
    assert read.budget is not None
    assert (read.budget.usd, read.budget.soft, read.budget.on_exceeded) == (Decimal("500.50"), (0.75,), "reject")


def test_what_is_left_out_has_its_default() -> None:
    read = parse_policy(policy()).cohort("default")
    assert (read.guard, read.slo, read.budget) == (Guard(0.02, 10.0, 50, 60.0), Slo(), None)
    assert (read.speculation.acceptance_floor, read.speculation.objective) == (0.5, "throughput")
    assert read.speculation.slots == "uniform"


def test_a_full_policy_comes_without_a_warning() -> None:
    assert parse_policy(FULL).warnings == ()


@pytest.mark.parametrize(("tuner", "warned"), [("fixed", True), ("threshold", False), ("goodput", False)])
def test_only_the_fixed_tuner_does_not_act_on_an_slo(tuner: str, warned: bool) -> None:
    speculation = f"{{tuner: {tuner}, ladder: [0, 1], start: 1, fallback: 0}}"
    read = parse_policy(policy(cohort(speculation=speculation, slo="{tpot_p95: 40ms}")))
    assert any("cohorts[0].slo" in warning for warning in read.warnings) is warned


@pytest.mark.parametrize("objective", ["throughput", "latency", "cost", "energy"])
@pytest.mark.parametrize("slots", ["uniform", "ragged"])
def test_goodput_takes_every_objective_and_both_kinds_of_slots(objective: str, slots: str) -> None:
    written = f"{{tuner: goodput, ladder: [0, 1], start: 1, fallback: 0, objective: {objective}, slots: {slots}}}"
    read = parse_policy(policy(cohort(speculation=written, slo="{tpot_p95: 40ms}"))).cohorts[0].speculation
    assert (read.tuner, read.objective, read.slots) == ("goodput", objective, slots)


@pytest.mark.parametrize("slo", ["{ttft_p95: 40ms}", None])
def test_a_latency_objective_without_a_latency_to_reach_is_refused(slo: str | None) -> None:
    written = "{tuner: goodput, ladder: [0, 1], start: 1, fallback: 0, objective: latency}"
    line, field, says = only_problem(policy(cohort(speculation=written, **({"slo": slo} if slo else {}))))
    assert (line, field) == (3, "cohorts[0].speculation.objective")
    assert "slo: {tpot_p95: 40ms}" in says


def test_a_wrong_tpot_is_one_problem_not_also_a_missing_one() -> None:
    written = "{tuner: goodput, ladder: [0, 1], start: 1, fallback: 0, objective: latency}"
    assert only_problem(policy(cohort(speculation=written, slo="{tpot_p95: 40}")))[1] == "cohorts[0].slo.tpot_p95"


def test_the_revision_is_of_the_text() -> None:
    assert parse_policy(FULL).revision == parse_policy(FULL).revision != parse_policy(FULL + "#").revision


def test_the_cohort_that_does_not_exist_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        parse_policy(FULL).cohort("nobody")


def test_the_shipped_policy_is_good_and_without_warnings() -> None:
    read = load_policy(Path(__file__).parents[2] / "policies.yaml")
    assert [c.name for c in read.cohorts] == ["code", "json", "contract", "fiction", "default"]
    assert read.warnings == ()


def test_all_problems_are_reported_at_once_in_the_order_of_the_file() -> None:
    text = policy(
        cohort(speculation="{tuner: treshold, ladder: [0, 2, 1], start: 1, fallback: 9}"),
        cohort(name="a", match="{api_key: [b], rout: x}", guard="{hold: 10}"),
    )
    found = problems(text)
    assert [line for line, _, _ in found] == sorted(line or 0 for line, _, _ in found)
    assert {field for _, field, _ in found} == {
        "cohorts[0].speculation.tuner",
        "cohorts[0].speculation.ladder",
        "cohorts[1].name",
        "cohorts[1].match.rout",
        "cohorts[1].guard.hold",
    }


@pytest.mark.parametrize(
    ("text", "line", "field", "says"),
    [
        ("", None, "", "is empty"),
        ("# nothing but a comment\n", None, "", "is empty"),
        ("a: [1", 1, "", "not valid YAML"),
        ("a: b\nc: d: e", 2, "", "not valid YAML"),
        ("a\tb: \x00", 1, "", "not valid YAML"),
        ("a: 1\n---\nb: 2", 2, "", "single document"),
        ("[" * 5000, None, "", "nested too deeply"),
        ("- version: 1", 1, "", "must be a mapping"),
        (policy(tail="cohort: []\n"), 4, "cohort", 'did you mean "cohorts"?'),
        (policy().replace("version: 1", "version: 2"), 1, "version", "must be 1"),
        ("version: 1\ncohorts: []", 2, "cohorts", "is empty"),
        ("version: 1\ncohorts: {}", 2, "cohorts", "must be a list"),
        ("version: 1\ncohorts: [default]", 2, "cohorts[0]", "must be a mapping"),
        ("version: 1\ncohorts: &a [*a]", 2, "cohorts[0]", "must be a mapping"),
        (policy(cohort(name="'a b'")), 3, "cohorts[0].name", "letters, digits"),
        (policy(cohort(name="default")), 4, "cohorts[1].name", "already used on line 3"),
        (policy(cohort(guard="{hold: 10s, hold: 20s}")), 3, "cohorts[0].guard.hold", "given twice"),
        (policy(cohort(hold="10s")), 3, "cohorts[0].hold", "belongs under guard"),
        (policy(cohort(guard="{hold: 10}")), 3, "cohorts[0].guard.hold", "with its unit"),
        (policy(cohort(guard="{hold: -1s}")), 3, "cohorts[0].guard.hold", "not a duration"),
        (policy(cohort(guard="{hold: 2h}")), 3, "cohorts[0].guard.hold", "outside 0ms to 1h"),
        (policy(cohort(guard="{tolerance: 0.02}")), 3, "cohorts[0].guard.tolerance", "such as 50%"),
        (policy(cohort(guard="{min_samples: 0}")), 3, "cohorts[0].guard.min_samples", "1 to 250"),
        (policy(cohort(guard="{min_samples: many}")), 3, "cohorts[0].guard.min_samples", "not a whole number"),
        (policy(cohort(guard="{probe_every: 1s}")), 3, "cohorts[0].guard.probe_every", "outside 5s to 1d"),
        (policy(cohort(guard="{probe_every: }")), 3, "cohorts[0].guard.probe_every", "is empty"),
        (policy(cohort(guard="[]")), 3, "cohorts[0].guard", "must be a mapping of fields, not a list"),
        (policy(cohort(slo="{tpot_p95: 40}")), 3, "cohorts[0].slo.tpot_p95", "such as 40ms"),
        (policy(cohort(budget="{usd: -5, period: month}")), 3, "cohorts[0].budget.usd", "outside 0"),
        (policy(cohort(budget="{usd: .inf, period: month}")), 3, "cohorts[0].budget.usd", "plain number"),
        (policy(cohort(budget="{usd: 5}")), 3, "cohorts[0].budget.period", "is missing"),
        (policy(cohort(budget="{usd: 5, period: year}")), 3, "cohorts[0].budget.period", "day, week, month"),
        (policy(cohort(match="{api_key: []}")), 3, "cohorts[0].match.api_key", "no request could match"),
        (policy(cohort(match="{headers: {'a b': x}}")), 3, "cohorts[0].match.headers.a b", "name of a header"),
        (policy(cohort(match="{headers: {X-A: x, x-a: y}}")), 3, "cohorts[0].match.headers.x-a", "given twice"),
        (policy(cohort(match="{service_tier: gold}")), 3, "cohorts[0].match.service_tier", "flex"),
        (policy(tail="experiment: {holdout: 60%, unit: window, window: 15m}\n"), 4, "experiment.holdout", "50%"),
        (
            policy(tail="experiment: {holdout: 5%, unit: window, window: 5m, burn_in: 5m}\n"),
            4,
            "experiment.burn_in",
            "shorter",
        ),
    ],
)
def test_a_mistake_is_named_with_its_line_and_field(text: str, line: int | None, field: str, says: str) -> None:
    found = only_problem(text)
    assert found[:2] == (line, field)
    assert says in found[2]


@pytest.mark.parametrize(
    ("speculation", "field", "says"),
    [
        ("{tuner: goodputs, ladder: [0, 1], start: 1, fallback: 0}", "tuner", 'did you mean "goodput"?'),
        ("{tuner: goodput, ladder: [0, 1], start: 1, fallback: 0, objective: speed}", "objective", "energy"),
        ("{tuner: goodput, ladder: [0, 1], start: 1, fallback: 0, slots: round}", "slots", "uniform, ragged"),
        ("{tuner: threshold, ladder: [0, 1], start: 1, fallback: 0, objective: cost}", "objective", "choose goodput"),
        ("{tuner: fixed, ladder: [0, 1], start: 1, fallback: 0, slots: ragged}", "slots", "choose goodput"),
        (
            "{tuner: goodput, acceptance_floor: 50%, ladder: [0], start: 0, fallback: 0}",
            "acceptance_floor",
            "not used by the tuner goodput",
        ),
        ("{tuner: threshold, ladder: [1, 0], start: 1, fallback: 0}", "ladder", "write [0, 1]"),
        ("{tuner: threshold, ladder: [0, 1, 1], start: 1, fallback: 0}", "ladder", "twice"),
        ("{tuner: threshold, ladder: [0, 17], start: 0, fallback: 0}", "ladder", "0 to 16"),
        ("{tuner: threshold, ladder: [], start: 0, fallback: 0}", "ladder", "must be a list of K"),
        ("{tuner: threshold, ladder: [0, 2], start: 1, fallback: 0}", "start", "not a rung of the ladder [0, 2]"),
        ("{tuner: threshold, ladder: [1, 2], start: 1, fallback: 0}", "fallback", "not a rung of the ladder [1, 2]"),
        ("{tuner: threshold, ladder: [0, 2], fallback: 0}", "start", "is missing"),
        (
            "{tuner: threshold, acceptance_floor: 101%, ladder: [0], start: 0, fallback: 0}",
            "acceptance_floor",
            "outside 0% to 100%",
        ),
        (
            "{tuner: fixed, acceptance_floor: 50%, ladder: [0], start: 0, fallback: 0}",
            "acceptance_floor",
            "not used by the tuner fixed",
        ),
    ],
)
def test_speculation_that_cannot_be_is_refused(speculation: str, field: str, says: str) -> None:
    line, where, message = only_problem(policy(cohort(speculation=speculation)))
    assert (line, where) == (3, f"cohorts[0].speculation.{field}")
    assert says in message


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("{}", "{api_key: [a]}"),
        ("{api_key: [a, b]}", "{api_key: [b]}"),
        ("{route: '/v1/*'}", "{route: /v1/completions, api_key: [a]}"),
        ("{route: '*'}", "{user: [alice]}"),
        ("{headers: {x-a: '*'}}", "{headers: {x-a: b, x-c: d}}"),
        ("{metadata: {tier: [gold, silver]}}", "{metadata: {tier: gold}}"),
    ],
)
def test_a_cohort_that_can_never_be_reached_is_an_error(first: str, second: str) -> None:
    found = problems(policy(cohort(first, "first"), cohort(second, "second")))
    assert (4, "cohorts[1].match") in [problem[:2] for problem in found]
    assert "can never be reached: 'first' on line 3" in next(m for _, f, m in found if f == "cohorts[1].match")


@pytest.mark.parametrize(
    ("first", "second", "warned"),
    [
        ("{api_key: [a]}", "{route: /v1/completions}", True),
        ("{api_key: [a, b]}", "{api_key: [b, c]}", True),
        ("{route: '/v1/c*'}", "{route: '*/completions'}", True),
        ("{api_key: [a]}", "{api_key: [b]}", False),
        ("{headers: {x-a: b}}", "{headers: {x-a: c}}", False),
        ("{route: /v1/completions}", "{route: '/v1/*'}", False),  # the special case before the general one
        ("{user: ['*']}", "{api_key: [a]}", True),
    ],
)
def test_a_partial_overlap_is_a_warning(first: str, second: str, warned: bool) -> None:
    warnings = parse_policy(policy(cohort(first, "first"), cohort(second, "second"))).warnings
    assert any("'second' overlaps in part with 'first'" in warning for warning in warnings) is warned


def test_the_last_cohort_must_take_the_rest() -> None:
    found = only_problem("version: 1\ncohorts:\n" + cohort())
    assert found == (3, "cohorts[0].match", "the last cohort must take the rest: `match: {}`")


def test_the_error_reads_one_line_a_problem() -> None:
    with pytest.raises(PolicyError) as caught:
        parse_policy(policy(cohort(guard="{hold: 10, tolerance: 2}")), "mine.yaml")
    places = [line.split(": ")[:2] for line in str(caught.value).splitlines()]
    assert places == [["mine.yaml:3", "cohorts[0].guard.tolerance"], ["mine.yaml:3", "cohorts[0].guard.hold"]]


@pytest.mark.parametrize(("content", "says"), [(b"version: 1\n# \xff", ":2: is not UTF-8"), (b"", "is empty")])
def test_a_file_that_is_not_a_policy_is_one_clear_line(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "p.yaml"
    path.write_bytes(content)
    with pytest.raises(PolicyError) as caught:
        load_policy(path)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(FULL, encoding="utf-8-sig")
    assert load_policy(path) == parse_policy(FULL)


@pytest.mark.parametrize("name", ["absent.yaml", ".", "nul\0.yaml"])
def test_a_file_that_cannot_be_read_is_told_apart(tmp_path: Path, name: str) -> None:
    with pytest.raises(PolicyFileError, match="cannot be read"):
        load_policy(str(tmp_path / name))


@given(st.text(max_size=60) | st.lists(st.sampled_from(FULL.splitlines()), max_size=14).map("\n".join))
def test_any_text_is_a_policy_or_a_policy_error(text: str) -> None:
    try:
        outcome: Policy | PolicyError = parse_policy(text)
    except PolicyError as error:
        outcome = error
    assert isinstance(outcome, Policy) or outcome.problems
