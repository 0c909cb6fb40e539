"""An experiment in words and tables, and what to run next. Figures are those of `kadence experiment report`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import tzinfo

import pandas as pd

from controlplane.experiment import Run, Spec
from controlplane.finops.confidence_sequence import MIN_PAIRS
from controlplane.finops.savings import Measure, Saving
from controlplane.finops.savings_checks import Guardrail, Verdict
from controlplane.finops.savings_projection import Projection
from controlplane.finops.savings_report import Report
from controlplane.policy import Experiment
from dashboard import format as fmt

NO_INTERVAL = "no interval yet"
SIGNS: dict[Verdict, str] = {"kept": "✓ kept", "broken": "✗ broken", "unclear": "? unclear"}
USUAL = Spec("window", 0.2, 1800.0, 300.0)
"""What is proposed where neither a policy nor an earlier experiment says how: docs/savings.md."""
SHIFTED = ("order", "carry-over")
"""Checks that ask for a longer burn-in."""


@dataclass(frozen=True, slots=True)
class NextStep:
    """What to do now, and the command for it."""

    sentence: str
    command: str


def percent(share: float | None) -> str:
    """A saving or a change with its sign; a dash where nothing is known."""
    return fmt.NOTHING if share is None else f"{share:+.1%}"


def interval(low: float | None, high: float | None) -> str:
    return NO_INTERVAL if low is None or high is None else f"{low:+.1%} to {high:+.1%}"


def saved(found: Saving) -> str:
    """The share that was saved; the words of not measured where no pair has the measure."""
    return fmt.NOT_MEASURED if found.share is None else percent(found.share)


def standing(found: Saving) -> str:
    """What stands beside the share: its interval, and whether anything is claimed."""
    if found.share is None:
        return "in no pair"
    if found.low is None or found.high is None:
        return f"{found.pairs} of {MIN_PAIRS} pairs"
    return interval(found.low, found.high) + ("" if found.is_clear else ": unclear")


def state_text(run: Run, where: tzinfo) -> str:
    """Running, finished or stopped, since when and why."""
    if run.ended_at is None:
        return f"{run.state} since {fmt.moment(run.started_at, where)}"
    return f"{run.state} at {fmt.moment(run.ended_at, where)}: {run.sentence}"


def spec_text(spec: Spec) -> str:
    """The design in one line."""
    burn_in = f"the first {fmt.duration(spec.dropped_s)} of each not measured"
    if spec.unit == "replica":
        window = fmt.duration(spec.window_s)
        return f"by replica: {spec.holdout:.1%} of them without a drafter, windows of {window}, {burn_in}"
    every = fmt.duration(spec.pair_every_s)
    return (
        f"by window: pairs of {fmt.duration(spec.window_s)}, one every {every} ({spec.holdout:.1%} control), {burn_in}"
    )


def month_text(month: Projection, currency: str | None) -> tuple[str, str]:
    """Money saved in the last 30 days, and what stands beside it: its interval, or the share's where it is unpriced."""
    if month.share is None:
        return "not projected", "see below"
    beside = f"{percent(month.share)} of machine time"
    if month.nano is None or month.nano_low is None or month.nano_high is None:
        return fmt.UNPRICED, beside
    return fmt.cost(
        month.nano, currency
    ), f"{fmt.cost(month.nano_low, currency)} to {fmt.cost(month.nano_high, currency)}"


GUARDRAIL_COLUMNS = ("Guardrail", "Verdict", "Change", "Interval", "Limit", "Pairs")


def guardrail_table(rails: Sequence[Guardrail]) -> pd.DataFrame:
    """Each with its verdict and its number; errors in points."""
    return pd.DataFrame(
        [
            (
                rail.name,
                SIGNS[rail.verdict],
                percent(rail.change),
                interval(rail.low, rail.high),
                f"{'±' if rail.name == 'output length' else '+'}{rail.limit:.1%}",
                rail.pairs,
            )
            for rail in rails
        ],
        columns=list(GUARDRAIL_COLUMNS),
    )


def check_table(report: Report) -> pd.DataFrame:
    return pd.DataFrame(
        [("✓ good" if check.is_good else "✗ speaks up", check.sentence) for check in report.checks],
        columns=["Check", "What it says"],
    )


def adjustment_table(adjusted: Saving, unadjusted: Saving) -> pd.DataFrame:
    """What taking account of the offered load (CUPED) did to the estimate and its interval."""
    rows = []
    for name, found in (("adjusted for offered load", adjusted), ("as measured", unadjusted)):
        spread = fmt.NOTHING if found.spread is None else f"{found.spread:.4f}"
        rows.append((name, saved(found), interval(found.low, found.high), spread, found.pairs))
    return pd.DataFrame(rows, columns=["Estimate", "Saving", "Interval", "Spread of a pair", "Pairs"])


def adjustment_text(adjusted: Saving) -> str:
    """What was adjusted for, by how much, and what was left out."""
    said = []
    if adjusted.covariates:
        said.append(
            f"{' and '.join(adjusted.covariates)} explained {adjusted.removed:.0%} of the variance between pairs."
        )
    else:
        said.append("Nothing was adjusted for: offered load explains nothing yet, or there are too few pairs.")
    if adjusted.left_out:
        said.append(f"Not adjusted for {' and '.join(adjusted.left_out)}: the arms differ in it by more than chance.")
    return " ".join(said)


def pair_table(report: Report) -> pd.DataFrame:
    """Pairs that are not counted, with why."""
    return pd.DataFrame([(each.pair, each.reason) for each in report.refused], columns=["Pair", "Not counted because"])


def run_table(runs: Sequence[Run], where: tzinfo) -> pd.DataFrame:
    return pd.DataFrame(
        [(run.id, run.state, fmt.moment(run.started_at, where), run.by, run.why, run.sentence) for run in runs],
        columns=["Experiment", "State", "Started", "By", "Why", "How it ended"],
    )


def next_step(report: Report | None, section: Experiment | None) -> NextStep:
    """What to run next: to begin, to go on, or to find out what this one could not."""
    if report is None:
        if section is not None:
            return NextStep("No experiment is on record. The policy says how one is run.", start_command(None))
        days = _days(USUAL)
        return NextStep(
            f"No experiment is on record. This one takes {days} for its 60 pairs, and serves a fifth of that time "
            "without speculation.",
            start_command(USUAL),
        )
    run, spec, capacity = report.run, report.run.spec, report.savings["capacity"]
    if run.state == "running":
        return NextStep(
            "It is running: nothing to start. To end it, and serve everybody as usual at once:",
            "kadence experiment stop --why 'seen enough'",
        )
    if any(check.name in SHIFTED and not check.is_good for check in report.checks):
        longer = _longer(spec)
        return NextStep(
            f"What came before a window still shows in it: measure again with longer ones, {_days(longer)} in all.",
            start_command(longer),
        )
    if report.broken:
        names = ", ".join(rail.name for rail in report.broken)
        return NextStep(
            f"A guardrail is broken ({names}): lower K for whom it matters in the policy, then measure again.",
            start_command(spec),
        )
    if not capacity.is_clear:
        wanted = spec.pairs if capacity.pairs_needed is None else capacity.pairs + capacity.pairs_needed
        more = replace(spec, pairs=min(max(wanted, spec.pairs), 100_000))
        return NextStep(
            f"It is not told apart from no saving. {more.pairs} pairs, {_days(more)}, would if all goes on like this."
            if capacity.pairs_needed
            else "It is not told apart from no saving, and no number of pairs within reach would tell it.",
            start_command(more),
        )
    return NextStep(
        "It is told apart from no saving. Measure again when model, drafter, policy or traffic change.",
        start_command(spec),
    )


def start_command(spec: Spec | None) -> str:
    """`kadence experiment start` with that design; None: as the policy's `experiment:` section says."""
    words = ["kadence", "experiment", "start", "--why", "what speculation saves"]
    if spec is not None:
        words += ["--unit", spec.unit, "--holdout", f"{100 * spec.holdout:g}%", "--window", f"{spec.window_s:g}s"]
        words += ["--burn-in", f"{spec.burn_in_s:g}s", "--pairs", str(spec.pairs)]
    return shlex.join(words)


def report_command(run: Run, basis: str | None) -> str:
    """The command that prints the same."""
    return shlex.join(["kadence", "experiment", "report", run.id, *(["--basis", basis] if basis else [])])


def measure_of(name: str | None) -> Measure:
    """A measure by its name in the URL; capacity for any other."""
    return "cash" if name == "cash" else "energy" if name == "energy" else "capacity"


def _longer(spec: Spec) -> Spec:
    """Twice the burn-in, and a window of three times that at least."""
    burn_in = min(2 * spec.dropped_s, 28_800.0)
    return replace(spec, burn_in_s=burn_in, window_s=min(max(spec.window_s, 3 * burn_in), 86_400.0))


def _days(spec: Spec) -> str:
    return fmt.duration(spec.pairs * spec.pair_every_s)
