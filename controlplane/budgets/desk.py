"""The one place that says whether a request may still be paid for, so that any number of endpoints can race for it.

A request is admitted while what is spent and what is reserved are together less than the budget, and what it may cost
is reserved until it ends: its prompt and the most tokens it may be given, at the measured cost of its cohort's tokens.
So a budget is overrun by one request's cost at most. What a request that ended did use stays reserved for a few
seconds more, until the workers' windows have come with its cost: up to half a minute, where a worker's are late. No
clock, no lock: the caller serialises the calls.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from controlplane.budgets.token_cost import TokenCost, TokenCosts
from controlplane.finops.budget import BudgetStatus, refusal

SILENT_S = 30.0
"""An endpoint that was not heard of for so long is gone, and its requests with it."""
SETTLED_S = 3.0
"""How long a request's cost takes to come with the windows, beside two ticks, where all goes well."""
CANCELLED_S = 1.0
"""For how long a worker may still compute for a request that ended, and its clock be off."""


class Ask(NamedTuple):
    """A request before it is admitted. output_tokens: the most it may be given, over all of its prompts."""

    id: str
    cohort: str
    tenant: str | None
    input_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """Which budget says no, and the sentence for the client. is_spent: it holds until the reset; else others have
    reserved what is left, and it holds for this request.
    """

    budget: str
    message: str
    resets_at: float
    is_spent: bool = True


class Answer(NamedTuple):
    """refusal: None where the request is admitted. budgets: names of those that were asked."""

    refusal: Refusal | None
    budgets: tuple[str, ...]


class Settled(NamedTuple):
    """An endpoint's word that a request ended, however it did, with the tokens it had until then."""

    id: str
    input_tokens: int
    output_tokens: int


@dataclass(slots=True)
class _Holder:
    heard: float
    asks: dict[str, Ask] = field(default_factory=dict)


class BudgetDesk:
    """Reservations of all endpoints. settle_s: for how long an ended request's cost stays reserved."""

    def __init__(self, settle_s: float = SETTLED_S) -> None:
        self._settle_s = settle_s
        self._statuses: dict[str, BudgetStatus] = {}
        self._by_scope: dict[tuple[str | None, str | None], list[str]] = {}
        self._costs, self._per_second_nano = TokenCosts(), 0.0
        self._cost_of: dict[str, TokenCost] = {}
        self._holders: dict[str, _Holder] = {}
        self._settled: list[tuple[float, Ask]] = []
        self._untold: dict[tuple[str, str], tuple[float, Ask]] = {}
        self._tokens: dict[str, dict[str, list[int]]] = {}
        self._count: Counter[str] = Counter()
        self._rejections: Counter[str] = Counter()
        self.unasked = 0

    @property
    def rejections(self) -> Mapping[str, int]:
        """Requests refused, by the budget that refused them."""
        return dict(self._rejections)

    def update(
        self,
        statuses: Sequence[BudgetStatus],
        costs: TokenCosts,
        per_second_nano: float,
        now: float,
        known_until: float = float("inf"),
    ) -> None:
        """What is spent now; only budgets that refuse matter here. per_second_nano: of one machine, for what was not
        measured. known_until: unix seconds up to which every worker's windows are in that. Lets go of what has settled
        and of endpoints that went silent.
        """
        refusing = [s for s in statuses if s.on_exceeded == "reject"]
        scopes: dict[tuple[str | None, str | None], list[str]] = {}
        for each in refusing:
            scopes.setdefault((each.cohort, each.tenant), []).append(each.name)
        self._statuses = {each.name: each for each in refusing}
        self._costs, self._per_second_nano, self._cost_of = costs, per_second_nano, {}
        if scopes != self._by_scope:
            self._by_scope = scopes
            self._recount()
        self._let_go(now, known_until)

    def admit(self, holder: str, ask: Ask, now: float) -> Answer:
        """Admit or refuse; admitted, its money is reserved until it is settled or its endpoint goes silent."""
        names = self.budgets_of(ask.cohort, ask.tenant)
        self._drop(holder, ask.id)  # it does not stand in its own way, where it was held before it could ask
        for name in names:
            status = self._statuses[name]
            if now >= status.period.end and status.standing != "unknown":
                status = replace(status, spent_nano=0, standing="ok")  # it was reset, as the next tick will say
            is_full = status.standing != "unknown" and status.spent_nano + self.reserved(name) >= status.limit_nano
            if status.standing == "exceeded" or is_full:
                self._rejections[name] += 1
                said = refusal(status, reserved_by=self._count[name])
                return Answer(Refusal(name, said, status.period.end, status.standing == "exceeded"), names)
        self._open(holder, ask, now)
        return Answer(None, names)

    def settle(self, holder: str, settled: Settled, now: float) -> None:
        """A request ended. One that is not known is no error: its endpoint was given up, or the controller is new."""
        ask = self._drop(holder, settled.id) or self._forget(holder, settled.id)
        if ask is None:
            return
        if holder in self._holders:
            self._holders[holder].heard = now
        used = ask._replace(input_tokens=settled.input_tokens, output_tokens=settled.output_tokens)
        self._settled.append((now, used))
        self._add(used, 1)

    def hold(
        self,
        holder: str,
        asks: Iterable[Ask],
        now: float,
        refused: Mapping[str, int] | None = None,
        unasked: int = 0,
        asking: Collection[str] = (),
    ) -> None:
        """All that an endpoint has under way, said once a second: a new controller learns them, a lost word is healed.

        asking: ids of requests whose answer is on its way; what is known here of them stays. unasked: requests on which
        the endpoint decided by itself since the last time, because this desk did not answer; refused: those of them
        that it refused, by budget.
        """
        self.unasked += unasked
        said = {ask.id: ask for ask in asks}
        known = self._holders.setdefault(holder, _Holder(now))
        for gone in known.asks.keys() - said.keys() - set(asking):
            ask = self._drop(holder, gone)
            self._forget(holder, gone)
            if ask is not None:  # it ended, and the word of what it used is late or lost
                self._untold[holder, gone] = now, ask
                self._add(ask, 1)
        for ask in said.values():
            self._open(holder, ask, now)
        known.heard = now
        self._rejections.update(refused or {})

    def reserved(self, name: str) -> int:
        """Nano-dollars that requests under way, or just ended, may come to use of a budget that refuses."""
        by_cohort = self._tokens.get(name, {})
        return round(sum(self._cost(cohort).of(*tokens) for cohort, tokens in by_cohort.items()))

    def under_way(self, name: str) -> int:
        """How many requests that is."""
        return self._count[name]

    def budgets_of(self, cohort: str, tenant: str | None) -> tuple[str, ...]:
        """The budgets that refuse which a request counts against."""
        scopes = [(cohort, None)] if tenant is None else [(cohort, None), (None, tenant), (cohort, tenant)]
        return tuple(name for scope in scopes for name in self._by_scope.get(scope, ()))

    def _cost(self, cohort: str) -> TokenCost:
        if cohort not in self._cost_of:
            self._cost_of[cohort] = self._costs.of(cohort, self._per_second_nano)
        return self._cost_of[cohort]

    def _open(self, holder: str, ask: Ask, now: float) -> None:
        known = self._holders.setdefault(holder, _Holder(now))
        known.heard = now
        if ask.id not in known.asks:
            known.asks[ask.id] = ask
            self._add(ask, 1)

    def _drop(self, holder: str, id: str) -> Ask | None:
        known = self._holders.get(holder)
        ask = known.asks.pop(id, None) if known is not None else None
        if ask is not None:
            self._add(ask, -1)
        return ask

    def _forget(self, holder: str, id: str) -> Ask | None:
        """Of a request that was missing in a list before it was settled."""
        _, ask = self._untold.pop((holder, id), (0.0, None))
        if ask is not None:
            self._add(ask, -1)
        return ask

    def _add(self, ask: Ask, sign: int) -> None:
        for name in self.budgets_of(ask.cohort, ask.tenant):
            tokens = self._tokens.setdefault(name, {}).setdefault(ask.cohort, [0, 0])
            tokens[0] += sign * ask.input_tokens
            tokens[1] += sign * ask.output_tokens
            self._count[name] += sign

    def _recount(self) -> None:
        """Other budgets are in force: what is reserved counts against those."""
        self._tokens, self._count = {}, Counter()
        for holder in self._holders.values():
            for ask in holder.asks.values():
                self._add(ask, 1)
        for _, ask in (*self._settled, *self._untold.values()):
            self._add(ask, 1)

    def _let_go(self, now: float, known_until: float) -> None:
        def is_spent(ended: float) -> bool:
            has_come = known_until >= ended + CANCELLED_S or now > ended + SILENT_S
            return has_come and now >= ended + self._settle_s

        for name in [name for name, holder in self._holders.items() if now - holder.heard > SILENT_S]:
            for ask in self._holders.pop(name).asks.values():
                self._add(ask, -1)
        settled, self._settled = self._settled, []
        for ended, ask in settled:
            if is_spent(ended):
                self._add(ask, -1)
            else:
                self._settled.append((ended, ask))
        for gone, id in [key for key, (ended, _) in self._untold.items() if is_spent(ended)]:
            self._forget(gone, id)
