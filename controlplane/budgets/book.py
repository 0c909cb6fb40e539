"""What every budget has spent, tick by tick: windows in, alerts and statuses out. No clock and no I/O.

What was spent before comes from the ledger (`restore`), what comes after from the workers' windows, each once. A window
counts for the period it began in, however late it comes. Until a budget's past is known, it stands as unknown.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from controlplane.alerts import BUDGET, Alert
from controlplane.budgets.account import Account, Past, Unread, added
from controlplane.budgets.token_cost import Spending, TokenCosts
from controlplane.finops.attribution import NS_PER_HOUR, window_use
from controlplane.finops.budget import (
    UNKNOWN,
    BudgetState,
    BudgetStatus,
    alert_of,
    dialled,
    fire,
    fresh,
    limit_nano,
    rearmed,
    status,
    subject,
    thresholds,
)
from controlplane.finops.forecast import HORIZON_HOURS, HOUR_S, forecast
from controlplane.finops.periods import Period
from controlplane.finops.pricing import PriceSheet
from controlplane.finops.spending import Cell, spent
from controlplane.policy import Policy
from controlplane.policy.model import NamedBudget
from controlplane.telemetry import WorkerWindow

NOT_READ = "what was spent before is not read from the ledger yet"
UNREAD_S = 60.0
"""For so long a start may take to read the ledger before anybody is told."""
FORECAST_EVERY_S = 10.0
GONE_S = 30.0
"""A worker whose last window ended so long ago is waited for no longer."""
FORECASTS_LEAST = 16
"""In one tick; of many budgets a small part, so that no tick makes all of them."""
FORECASTS_PART = 32

Scope = tuple[str | None, str | None]
"""Cohort and tenant of a budget."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What came of a tick. raised: new alerts. over: names of alerts that are no longer true, each with the reason.

    statuses: of every budget in its present period. ended: of periods that are over, as they ended or as late windows
    left them. dialled: cohorts that pursue cost from now on.
    """

    raised: tuple[Alert, ...]
    over: tuple[tuple[str, str], ...]
    statuses: tuple[BudgetStatus, ...]
    ended: tuple[BudgetStatus, ...]
    dialled: tuple[str, ...]


class BudgetBook:
    """The budgets of the policy in force. Not thread-safe."""

    def __init__(self) -> None:
        self._accounts: dict[str, Account] = {}
        self._by_scope: dict[Scope, list[Account]] = {}
        self._windows: list[WorkerWindow] = []
        self._heard: dict[str, float] = {}
        self._sheet: PriceSheet | None = None
        self._costs = TokenCosts()
        self._sku = ""
        self._forecasts_left = 0

    @property
    def costs(self) -> TokenCosts:
        """What tokens cost lately."""
        return self._costs

    @property
    def sku(self) -> str:
        """Of the worker that was heard last; "" before any."""
        return self._sku

    def known_until(self, now: float) -> float:
        """Up to when (unix seconds) all workers' windows were in the last tick; infinity where none is heard of."""
        self._heard = {worker: until for worker, until in self._heard.items() if until >= now - GONE_S}
        return min(self._heard.values(), default=math.inf)

    def take(self, window: WorkerWindow) -> None:
        """Keep a window for the next tick. The caller leaves repetitions out."""
        self._windows.append(window)
        self._heard[window.id.worker] = max(window.ended_at, self._heard.get(window.id.worker, 0.0))
        self._sku = window.device

    def follow(self, policy: Policy, now: float) -> None:
        """Have an account for each budget of the policy. One whose scope, period or time zone changed begins anew."""
        accounts: dict[str, Account] = {}
        for named in policy.all_budgets:
            account = self._accounts.get(named.name)
            if account is None or _kind(account.named) != _kind(named):
                account = Account(named, fresh(named, now), now)
                if self._sheet is not None:
                    account.price(self._sheet)
            account.named = named
            accounts[named.name] = account
        self._accounts = accounts
        self._by_scope = {}
        for account in accounts.values():
            self._by_scope.setdefault((account.named.cohort, account.named.tenant), []).append(account)

    def unread(self) -> list[Unread]:
        """The budgets whose past is to be read from the ledger as it is now, each for `restore`."""
        return [Unread(a.named, a.state, a) for a in self._accounts.values() if not a.is_restored]

    def restore(self, unread: Unread, past: Past, now: float) -> None:
        """What the ledger had when `unread` was said, at which everything was written that had been taken in by a tick.

        Changes nothing where the budget is another one or in another period by now; it is then unread still.
        """
        account = self._accounts.get(unread.named.name)
        if account is None or account is not unread.account:
            return
        if account.is_restored or account.state.period != unread.period:
            return
        named, period = account.named, account.state.period
        since = {cell: ns - unread.state.ns.get(cell, 0) for cell, ns in account.state.ns.items()}
        account.state = BudgetState(period, dict(past.in_period), _shares(named, period, past.fired)).with_use(since)
        if past.last is not None:
            ended = unread.last
            account.last = BudgetState(ended, dict(past.last.in_period), _shares(named, ended, past.last.told))
            account.is_last_read = True
        account.before = dict(past.before)
        account.since = now if past.since is None else past.since
        account.is_restored = True
        if self._sheet is not None:
            account.price(self._sheet)

    def tick(self, policy: Policy, sheet: PriceSheet, now: float, active: Iterable[Alert] = ()) -> Entry:
        """Take in the windows since the last tick. active: the alerts that are."""
        self.follow(policy, now)
        self._forecasts_left = max(FORECASTS_LEAST, len(self._accounts) // FORECASTS_PART)
        if sheet is not self._sheet:
            if self._sheet is not None:
                self._costs = TokenCosts()  # at other prices
            self._sheet = sheet
            for account in self._accounts.values():
                account.price(sheet)
        ended = {a.named.name for a in self._accounts.values() if self._turned(a, sheet, now)} | self._count(sheet)
        ended |= {name for name, account in self._accounts.items() if account.is_last_read}
        raised, statuses, closed = list[Alert](), list[BudgetStatus](), list[BudgetStatus]()
        for name, account in self._accounts.items():
            if name in ended and account.last is not None:
                account.is_last_read = False
                said, alerts = self._settled_last(account, now)
                closed.append(said)
                raised += alerts
            said, alerts = self._said(account, now)
            statuses.append(said)
            raised += alerts
        over = tuple(self._over(active))
        return Entry(tuple(raised), over, tuple(statuses), tuple(closed), dialled(statuses))

    @staticmethod
    def _turned(account: Account, sheet: PriceSheet, now: float) -> bool:
        """Begin a new period where the last one has ended."""
        state = account.state
        if now < state.period.end:
            return False
        account.last, account.last_money = state, account.money
        account.state, account.money = fresh(account.named, now), spent({}, sheet)
        horizon = account.state.period.start / HOUR_S - HORIZON_HOURS
        account.before = {cell: ns for cell, ns in added(account.before, state.ns).items() if cell[0] >= horizon}
        account.past = spent(account.before, sheet)
        account.ahead, account.ahead_at = None, float("-inf")
        return True

    def _count(self, sheet: PriceSheet) -> set[str]:
        """The windows since the last tick, into the periods they began in; budgets whose last period that changed."""
        windows, self._windows = self._windows, []
        spending: list[Spending] = []
        current: dict[str, dict[Cell, int]] = {}
        late: dict[str, dict[Cell, int]] = {}
        for window in windows:
            at, cell = window.started_at, (int(window.started_at // HOUR_S), window.device)
            price = sheet.price_at(window.device, sheet.default_basis, cell[0] * HOUR_S)
            for use in window_use(window).uses:
                if price is not None:
                    spending.append((use.cohort, use.direction, use.ns * price.per_hour_nano / NS_PER_HOUR, use.tokens))
                for account in self._counting(use.cohort, use.tenant):
                    is_late = at < account.state.period.start
                    if is_late and (account.last is None or not account.last.period.holds(at)):
                        continue  # of a period long ago: the ledger has it
                    cells = (late if is_late else current).setdefault(account.named.name, {})
                    cells[cell] = cells.get(cell, 0) + use.ns
        for name, cells in current.items():
            account = self._accounts[name]
            account.state, account.money = account.state.with_use(cells), account.money.plus(spent(cells, sheet))
        for name, cells in late.items():
            account, more = self._accounts[name], spent(cells, sheet)
            if account.last is not None:
                account.last, account.last_money = account.last.with_use(cells), account.last_money.plus(more)
                account.before, account.past = added(account.before, cells), account.past.plus(more)
        self._costs = self._costs.learn(spending)
        return set(late)

    def _counting(self, cohort: str, tenant: str | None) -> Iterator[Account]:
        yield from self._by_scope.get((cohort, None), ())
        if tenant is not None:
            yield from self._by_scope.get((None, tenant), ())
            yield from self._by_scope.get((cohort, tenant), ())

    def _said(self, account: Account, now: float) -> tuple[BudgetStatus, list[Alert]]:
        money = account.money
        if not account.is_restored:
            # What is over the limit without its past is over it with that, too.
            said = status(account.named, account.state, replace(money, why=money.why or NOT_READ), now)
            return self._said_unread(account, said, now)
        if now - account.ahead_at >= FORECAST_EVERY_S and self._forecasts_left:
            self._forecasts_left -= 1
            by_hour = account.by_hour(now)
            since = now if account.since is None else account.since
            limit, period = limit_nano(account.named), account.state.period
            account.ahead, account.ahead_at = forecast(money.nano, limit, by_hour, since, period, now), now
        said_of = (account.named, money, account.state, account.ahead)
        if account.said is not None and all(a is b for a, b in zip(said_of, account.said_of, strict=True)):
            return replace(account.said, at=now), []  # most budgets, in most ticks
        account.state = rearmed(account.named, account.state, money)
        said = status(account.named, account.state, money, now, account.ahead)
        account.state, alerts = fire(account.named, account.state, said)
        account.said = replace(said, fired=tuple(sorted(account.state.fired)))
        account.said_of = (account.named, money, account.state, account.ahead)
        return account.said, alerts

    @staticmethod
    def _said_unread(account: Account, said: BudgetStatus, now: float) -> tuple[BudgetStatus, list[Alert]]:
        """Thresholds may have been told of before; that nothing is enforced is told of where it lasts."""
        if said.standing != "unknown" or now - account.opened_at < UNREAD_S or UNKNOWN in account.state.fired:
            return said, []
        account.state = replace(account.state, fired=account.state.fired | {UNKNOWN})
        return replace(said, fired=(UNKNOWN,)), [alert_of(account.named, UNKNOWN, said)]

    @staticmethod
    def _settled_last(account: Account, now: float) -> tuple[BudgetStatus, list[Alert]]:
        assert account.last is not None
        said = status(account.named, account.last, account.last_money, now)
        if not account.is_restored:
            return said, []
        account.last, alerts = fire(account.named, account.last, said)
        return replace(said, fired=tuple(sorted(account.last.fired))), alerts

    def _over(self, active: Iterable[Alert]) -> Iterator[tuple[str, str]]:
        """Alerts on budgets that stand no more: their period has ended, or the budget is another one."""
        told = [alert for alert in active if alert.kind == BUDGET]
        if not told:
            return
        standing = {
            subject(name, share, account.state.period): share in account.state.fired or not account.is_restored
            for name, account in self._accounts.items()
            for share in (*thresholds(account.named), UNKNOWN)
        }
        for alert in told:
            if not standing.get(alert.subject, False):
                account = self._accounts.get(alert.subject.partition("/")[0])
                if account is None:
                    yield alert.name, "the budget was removed"
                else:
                    is_present = alert.subject.endswith(f"/{account.state.period.label}")
                    yield alert.name, "the budget or a price was changed" if is_present else "the budget was reset"


def _shares(named: NamedBudget, period: Period, subjects: frozenset[str]) -> frozenset[float]:
    """The thresholds of the budget whose alerts in that period are among these."""
    return frozenset(s for s in (*thresholds(named), UNKNOWN) if subject(named.name, s, period) in subjects)


def _kind(named: NamedBudget) -> tuple[object, ...]:
    """What makes it another budget, whose past has to be read anew."""
    return named.cohort, named.tenant, named.budget.period, named.budget.timezone
