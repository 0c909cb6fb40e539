"""What a cost report is made of: rows, the report, and the single cells that exports read."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Literal, NamedTuple

from controlplane.finops.pricing import NANO
from controlplane.store.cost_dimensions import DIMENSIONS, NO_TENANT, hour_key

__all__ = ["DIMENSIONS", "NO_TENANT", "CostCell", "CostReport", "CostRow", "IdleRule", "hour_key"]

IdleRule = Literal["none", "weighted", "even"]
"""What becomes of idle time: a row of its own; or spread over the rows by their machine time, or in even parts."""

MICRO = 1_000_000


@dataclass(frozen=True, slots=True)
class CostRow:
    """One value of the dimension, the rest that a filter left out, idle, or the total.

    cost_nano: integer nano-units, None = unpriced; = input + output cost, and idle_cost_nano where has_idle. energy_uj:
    microjoules of the windows that were measured, likewise, None = none was; measured_tokens: the tokens emitted in
    those. energy_source: the windows' sources, joined by "+" when there are several. wasted_*: spent on draft tokens
    that were not kept. idle_cost_nano, idle_uj: the row's part of idle by the report's rule (weighted, where the rule
    is none and the part therefore not in the cost). machine_ns: busy time; idle_ns: idle time of the row's own
    machines, hours or days, None by dimensions that idle time has no value of. requests: ended ones. steps,
    planned_k_steps, draft_tokens, accepted_tokens, spec_steps: as in the rollups (cost_models).
    """

    key: str
    input_tokens: int = 0
    emitted_tokens: int = 0
    cost_nano: int | None = 0
    energy_uj: int | None = None
    energy_source: str = "none"
    wasted_cost_nano: int | None = 0
    wasted_uj: int | None = None
    requests: int = 0
    measured_tokens: int = 0
    input_cost_nano: int | None = 0
    output_cost_nano: int | None = 0
    idle_cost_nano: int | None = 0
    idle_uj: int | None = None
    has_idle: bool = False
    machine_ns: int = 0
    idle_ns: int | None = None
    steps: int = 0
    planned_k_steps: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    wasted_ns: int = 0
    spec_steps: int | None = 0

    @property
    def acceptance_length(self) -> float | None:
        """1 + accepted draft tokens / step with a draft; None without one, or where spec_steps is."""
        return 1 + self.accepted_tokens / self.spec_steps if self.spec_steps else None

    @property
    def cost_per_million_tokens(self) -> Decimal | None:
        """Currency per million emitted tokens, to six decimals; None when unpriced or without tokens."""
        return _per_million(self.cost_nano, self.emitted_tokens)

    @property
    def cost_per_million_input_tokens(self) -> Decimal | None:
        """What prefill cost per million prompt tokens."""
        return _per_million(self.input_cost_nano, self.input_tokens)

    @property
    def cost_per_million_output_tokens(self) -> Decimal | None:
        """What drafting and verification cost per million emitted tokens."""
        return _per_million(self.output_cost_nano, self.emitted_tokens)

    @property
    def loaded_cost_nano(self) -> int | None:
        """With the row's part of idle, whether the report spreads it or not: what compares with an API's price."""
        if self.has_idle:
            return self.cost_nano
        return None if self.cost_nano is None or self.idle_cost_nano is None else self.cost_nano + self.idle_cost_nano

    @property
    def loaded_cost_per_million_tokens(self) -> Decimal | None:
        return _per_million(self.loaded_cost_nano, self.emitted_tokens)

    @property
    def tokens_per_unit(self) -> Decimal | None:
        """Emitted tokens for one unit of the currency, to three decimals; None when unpriced or free."""
        if not self.cost_nano:
            return None
        return (Decimal(self.emitted_tokens) * NANO / self.cost_nano).quantize(Decimal("0.001"))

    @property
    def j_per_token(self) -> float | None:
        """Joules (as in energy_uj) per emitted token, over the measured windows only."""
        return self._per_token(self.energy_uj)

    @property
    def active_j_per_token(self) -> float | None:
        """Without idle: what the work itself drew."""
        return self._per_token(self._energy(with_idle=False))

    @property
    def loaded_j_per_token(self) -> float | None:
        """With the row's part of idle."""
        return self._per_token(self._energy(with_idle=True))

    @property
    def utilisation(self) -> float | None:
        """Busy share of the machine time; None where the row has no idle time of its own."""
        if self.idle_ns is None or not self.machine_ns + self.idle_ns:
            return None
        return self.machine_ns / (self.machine_ns + self.idle_ns)

    def _energy(self, *, with_idle: bool) -> int | None:
        if self.energy_uj is None:
            return None
        return self.energy_uj + (with_idle - self.has_idle) * (self.idle_uj or 0)

    def _per_token(self, microjoules: int | None) -> float | None:
        return None if microjoules is None or not self.measured_tokens else microjoules / MICRO / self.measured_tokens


def _per_million(nano: int | None, tokens: int) -> Decimal | None:
    return None if nano is None or not tokens else (Decimal(nano) / 1000 / tokens).quantize(Decimal("1e-6"))


@dataclass(frozen=True, slots=True)
class CostReport:
    """rows + rest + idle = total, exactly. machine_s: seconds of all windows together, idle_s: of them
    without work. unpriced: a line per missing price. rest: what a filter left out; None without a filter. idle_rule:
    unless "none", idle is inside the rows (and the rest), and `idle` holds what nobody was there to bear.
    """

    rows: tuple[CostRow, ...]
    idle: CostRow
    total: CostRow
    currency: str | None
    basis: str
    machine_s: float
    unpriced: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    idle_s: float = 0.0
    rest: CostRow | None = None
    idle_rule: IdleRule = "none"

    @property
    def utilisation(self) -> float | None:
        """Busy share of all machine time of the range; None without any."""
        return self.total.utilisation

    @property
    def idle_share(self) -> float | None:
        return None if self.utilisation is None else 1.0 - self.utilisation


class CostCell(NamedTuple):
    """What one tenant's part of a cohort cost on one sku in one hour, in one direction; or the idle rest of that hour.

    hour: since the unix epoch, UTC. sku: the worker's device. cohort, tenant: None where there is none (idle has
    neither). direction: input (prefill), output (drafting and verification) or idle. ns: machine time; wasted_*: on
    rejected draft positions. cost_nano: integer nano-units, None = unpriced; the cells of an (hour, sku) cost together
    exactly its bill. uj: microjoules, None = not measured. tokens: prompt tokens for input, emitted ones for output;
    measured_tokens: of them in windows with energy. steps, planned_k_steps, draft_tokens, accepted_tokens, spec_steps:
    of output (spec_steps: None where it is not known). requests: ended ones, counted in output.
    """

    hour: int
    sku: str
    model: str
    cohort: str | None
    tenant: str | None
    direction: Literal["input", "output", "idle"]
    ns: int
    wasted_ns: int
    cost_nano: int | None
    wasted_cost_nano: int | None
    uj: int | None
    wasted_uj: int | None
    energy_source: str
    tokens: int
    steps: int
    planned_k_steps: int
    draft_tokens: int
    accepted_tokens: int
    requests: int
    measured_tokens: int = 0
    spec_steps: int | None = 0
