"""What the Speculation and What-if pages rest on: beliefs from the newest windows of the range, and whose they are.

The beliefs are formed by the controller's own functions (controlplane.decision.believed). Pure but for `read_evidence`.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from datetime import tzinfo

import numpy as np

from controlplane.decision.believed import Believed, believe, covering
from controlplane.decision.observation import BUCKETS, Floats
from controlplane.decision.what_if import Machine
from controlplane.policy import Policy
from controlplane.store.evidence import RecentWindows, newest_start, recent_windows
from dashboard import format as fmt
from dashboard.ledger import Ledger
from dashboard.policy_reading import policy_in_force

NS = 1e9


@dataclass(frozen=True, slots=True, eq=False)
class Evidence:
    """machine_s, tokens: [cohorts, loads] seconds of machine time and emitted tokens of steps. span_s: wall time from
    the first window's start to the last one's end. devices: sku -> seconds of its windows. drafters: those of the last
    window in which a cohort had a step, by cohort. windows, steps: how many of them all rests on.
    """

    believed: Believed
    machine_s: Floats
    tokens: Floats
    busy_s: float
    idle_s: float
    idle_j: float | None
    energy_j: float | None
    prefill_s: float
    prefill_positions: int
    windows: int
    first_at: float
    last_at: float
    devices: Mapping[str, float]
    drafters: Mapping[str, str]
    model: str
    is_cut: bool
    other_models: tuple[str, ...] = ()
    has_policy: bool = True

    @property
    def span_s(self) -> float:
        return self.last_at - self.first_at

    @property
    def steps(self) -> int:
        return round(float(self.believed.steps.sum()))

    @property
    def emitted(self) -> float:
        return float(self.tokens.sum())

    @property
    def utilisation(self) -> float | None:
        whole = self.busy_s + self.idle_s
        return self.busy_s / whole if whole > 0 and self.busy_s > 0 else None

    def machine(self, price_per_hour: float | None) -> Machine:
        """As a what-if takes it. price_per_hour: of a worker's machine, None where it is unpriced."""
        per_token = 1.0 / self.emitted if self.emitted else 0.0
        idle_w = self.idle_j / self.idle_s if self.idle_j is not None and self.idle_s > 0 else None
        return Machine(
            price_per_hour,
            self.utilisation,
            self.prefill_s * per_token,
            self.prefill_positions * per_token,
            idle_w,
        )

    def k_used(self, c: int, load_bucket: int) -> float:
        """Mean K that the steps of cohort `c` at that load were planned with, by their wall time; by steps without."""
        seconds, steps = self.believed.seconds[c, load_bucket], self.believed.steps[c, load_bucket]
        weight = seconds if seconds.any() else steps
        return float((weight * np.arange(len(weight))).sum() / weight.sum())

    def index(self, cohort: str) -> int | None:
        names = self.believed.names
        return names.index(cohort) if cohort in names else None


def gathered(recent: RecentWindows, policy: Policy | None) -> Evidence | None:
    """The evidence of these windows; None where no step is in them."""
    seen = recent.windows
    deepest = max((cell.k for s in seen for c in s.window.cohorts for cell in c.cells), default=0)
    names = recent.cohorts
    if not names:
        return None
    believed = believe(recent.ticks, covering(policy, names, deepest), recent.profile)
    if not believed.steps.any():
        return None
    index = {name: i for i, name in enumerate(believed.names)}
    machine_s, tokens = np.zeros((2, len(index), BUCKETS))
    devices: dict[str, float] = {}
    drafters: dict[str, str] = {}
    for each in seen:
        window = each.window
        devices[window.device] = devices.get(window.device, 0.0) + window.seconds
        for cohort in window.cohorts:
            whole = sum(cell.step_seconds for cell in cohort.cells)
            if not cohort.cells:
                continue
            drafters[cohort.cohort] = window.drafter
            taken = each.output_ns.get(cohort.cohort, 0) / NS
            for cell in cohort.cells:
                where = index[cohort.cohort], cell.load_bucket
                machine_s[where] += taken * cell.step_seconds / whole if whole > 0 else 0.0
                tokens[where] += cell.emitted_tokens
    idle_uj = [each.idle_uj for each in seen if each.idle_uj is not None]
    energy_uj = [each.window.energy_uj for each in seen if each.window.energy_uj is not None]
    output_s = sum(sum(each.output_ns.values()) for each in seen) / NS
    prefill_s = sum(each.input_ns for each in seen) / NS
    return Evidence(
        believed=believed,
        machine_s=machine_s,
        tokens=tokens,
        busy_s=output_s + prefill_s,
        idle_s=sum(each.idle_ns for each in seen) / NS,
        idle_j=sum(idle_uj) / 1e6 if len(idle_uj) == len(seen) else None,
        energy_j=sum(energy_uj) / 1e6 if len(energy_uj) == len(seen) else None,
        prefill_s=prefill_s,
        prefill_positions=sum(c.prefill_positions for s in seen for c in s.window.cohorts),
        windows=len(seen),
        first_at=min(s.window.started_at for s in seen),
        last_at=max(s.window.ended_at for s in seen),
        devices=devices,
        drafters=drafters,
        model=recent.model,
        is_cut=recent.is_cut,
        other_models=recent.other_models,
        has_policy=policy is not None,
    )


def rests_on(evidence: Evidence, where: tzinfo) -> str:
    """One sentence: which windows, how many steps of how many cohorts, and when."""
    cohorts = int(np.count_nonzero(evidence.believed.steps.any(axis=(1, 2))))
    newest = "the newest " if evidence.is_cut else ""
    windows = f"{fmt.count(evidence.windows)} window" + ("s" if evidence.windows != 1 else "")
    began, ended = fmt.moment(evidence.first_at, where), fmt.moment(evidence.last_at, where)
    left_out = "; older windows of the range are left out, for evidence fades" if evidence.is_cut else ""
    steps = f"{fmt.count(evidence.steps)} step" + ("s" if evidence.steps != 1 else "")
    of = "1 cohort" if cohorts == 1 else f"{cohorts} cohorts"
    return f"Rests on {newest}{windows} of {evidence.model}, {began} to {ended}: {steps} of {of}{left_out}."


def beside(evidence: Evidence) -> list[str]:
    """What else a reader must know of the evidence, one sentence each."""
    notes = []
    if evidence.other_models:
        others = ", ".join(evidence.other_models)
        notes.append(f"Windows of {others} are left out, as step times are a model's: choose a model above.")
    if not evidence.has_policy:
        notes.append("No policy is on record: every K up to the deepest that was used counts as a rung.")
    if evidence.believed.state.times is None:
        notes.append("No worker's step times are on record, so that nothing can be said of what K brings per second.")
    return notes


def price_per_hour(ledger: Ledger, devices: Mapping[str, float]) -> tuple[float | None, str | None]:
    """Units of the currency for an hour of a worker's machine, in the mean over the devices' time; or why not."""
    basis = ledger.main_basis
    whole = sum(devices.values())
    total = 0.0
    for sku, seconds in sorted(devices.items()):
        price = ledger.sheet.price_at(sku, basis, ledger.now)
        if price is None:
            return None, ledger.sheet.why_unpriced(sku, basis, ledger.now)
        total += price.per_hour_nano / 1e9 * (seconds / whole if whole > 0 else 1.0 / len(devices))
    return (total, None) if devices else (None, None)


def read_evidence(ledger: Ledger) -> Evidence | None:
    """Of the newest windows of the range and model; None where there are none on record."""
    return ledger.cached(
        ("evidence", *evidence_key(ledger)),
        lambda: gathered(
            recent_windows(ledger.engine, ledger.range, model=ledger.model), policy_in_force(ledger.engine)
        ),
    )


def evidence_key(ledger: Ledger) -> tuple[Hashable, ...]:
    """Another one where the evidence may be another one: long ranges that end now rest on the same newest windows."""
    filters = ledger.filters
    oldest = ledger.cached(
        ("newest_start", ledger.range, ledger.model),
        lambda: newest_start(ledger.engine, ledger.range, model=ledger.model),
    )
    asked = ("newest", filters.until) if oldest is not None else (filters.span, filters.since, filters.until)
    return (*asked, ledger.model)


def busiest_first(evidence: Evidence, cohort: str | None = None) -> Sequence[int]:
    """Indices of the cohorts that had steps, most machine time first; of one only where one is chosen."""
    weight = evidence.machine_s.sum(axis=1) + 1e-9 * evidence.believed.steps.sum(axis=(1, 2))
    names = evidence.believed.names
    order = np.lexsort((np.array(names), -weight)).tolist()
    had = evidence.believed.steps.sum(axis=(1, 2)) > 0
    return [i for i in order if had[i] and cohort in (None, names[i])]
