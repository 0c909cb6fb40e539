"""Budgets beside a controller: its windows in, its alerts and dialled cohorts out, and what endpoints ask at the desk.

Runs on the controller's event loop, so calls take turns. What waits for the database or for a receiver of messages does
so in the background: a tick never does.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Protocol

import sqlalchemy as sa

from controlplane.alerts import BUDGET, Alert, AlertBook
from controlplane.budgets.account import Past, Unread
from controlplane.budgets.book import BudgetBook
from controlplane.budgets.desk import SETTLED_S, Answer, Ask, BudgetDesk, Settled
from controlplane.budgets.past import read_pasts
from controlplane.finops.budget import UNKNOWN, BudgetStatus, alert_of
from controlplane.finops.pricing import NANO, PriceSheet
from controlplane.policy import Policy
from controlplane.policy.model import NamedBudget
from controlplane.store.budgets import CONTROLLER, PastReader, save_states
from controlplane.store.engine import one_line
from controlplane.store.webhooks import unknown_messages
from controlplane.telemetry import WorkerWindow
from controlplane.webhook import WebhookSender
from controlplane.webhook_message import Message, message

log = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0
RETRY_EVERY_S = 5.0
SAVE_EVERY_S = 10.0


class Controlled(Protocol):
    """What budgets need of the controller."""

    @property
    def policy(self) -> Policy: ...

    @property
    def alerts(self) -> AlertBook: ...

    def raise_alert(self, alert: Alert) -> None: ...

    def clear_alert(self, name: str, *, by: str, why: str, now: float) -> Alert: ...


class Spool(Protocol):
    """What budgets need of the journal. spooled: what it was given and is not in the database yet."""

    @property
    def spooled(self) -> int: ...

    def flush(self, timeout: float = ...) -> bool: ...


class BudgetOffice:
    """One per controller. tick_s: seconds between two ticks, which a request's cost needs to arrive."""

    def __init__(
        self,
        engine: sa.Engine,
        journal: Spool,
        tick_s: float,
        *,
        secret_of: Callable[[str], str | None] = os.environ.get,
    ) -> None:
        self._engine, self._journal = engine, journal
        self._book = BudgetBook()
        self._desk = BudgetDesk(SETTLED_S + 2 * tick_s)
        self._sender = WebhookSender(engine, secret_of=secret_of)
        self._statuses: tuple[BudgetStatus, ...] = ()
        self._dialled: tuple[str, ...] = ()
        self._unsaved: dict[tuple[str, float], BudgetStatus] = {}
        self._ticks = 0
        self._untold: dict[str, int] = {}
        self._since: dict[str, float] = {}
        self._named: dict[str, NamedBudget] = {}
        self._said_away = False

    @property
    def statuses(self) -> tuple[BudgetStatus, ...]:
        """Every budget as of the last tick, with what is reserved and how many requests it refused."""
        desk = self._desk
        return tuple(
            replace(each, reserved_nano=desk.reserved(each.name), rejections=desk.rejections.get(each.name, 0))
            for each in self._statuses
        )

    @property
    def unasked(self) -> int:
        """Requests that endpoints decided on by themselves, while this desk did not answer."""
        return self._desk.unasked

    def open(self, policy: Policy, now: float) -> None:
        """Before the first window: read what was spent until now. A database that is away is asked again later."""
        self._book.follow(policy, now)
        unread = self._book.unread()
        try:
            pasts = read_pasts(PastReader(self._engine), unread, now) if unread else []
        except Exception as error:
            self._say_away(error)
            return
        for each, past in zip(unread, pasts, strict=True):
            self._restore(each, past, now)

    def take(self, window: WorkerWindow) -> None:
        """A window that the controller took in."""
        self._book.take(window)

    def tick(self, controller: Controlled, sheet: PriceSheet, now: float) -> tuple[str, ...]:
        """Before the controller's own: spending, alerts, and the cohorts that are to pursue cost from now on."""
        self._ticks += 1
        entry = self._book.tick(controller.policy, sheet, now, controller.alerts.active.values())
        self._named = {named.name: named for named in controller.policy.all_budgets}
        for name, why in entry.over:
            controller.clear_alert(name, by=CONTROLLER, why=why, now=now)
        for alert in entry.raised:
            controller.raise_alert(alert)
        self._since = {a.name: a.first_seen for a in controller.alerts.active.values() if a.kind == BUDGET}
        self._statuses, self._dialled = entry.statuses, entry.dialled
        unread = {each.named.name for each in self._book.unread()}  # what is on record says more
        for status in (*entry.statuses, *entry.ended):
            if status.name not in unread:
                self._unsaved[status.name, status.period.start] = status
        per_second, known_until = second_nano(sheet, self._book.sku, now), self._book.known_until(now)
        self._desk.update(entry.statuses, self._book.costs, per_second, now, known_until)
        self._sender.send(self._messages(entry.raised, (*entry.statuses, *entry.ended)))
        return entry.dialled

    @property
    def dialled(self) -> tuple[str, ...]:
        """What the last tick answered."""
        return self._dialled

    def admit(self, holder: str, ask: Ask, now: float) -> Answer:
        """An endpoint asks whether a request may still be paid for."""
        return self._desk.admit(holder, ask, now)

    def settle(self, holder: str, settled: Settled, now: float) -> None:
        """A request ended."""
        self._desk.settle(holder, settled, now)

    def hold(
        self,
        holder: str,
        asks: Iterable[Ask],
        now: float,
        refused: Mapping[str, int],
        unasked: int,
        asking: Collection[str] = (),
    ) -> None:
        """What an endpoint has under way, once a second."""
        self._desk.hold(holder, asks, now, refused, unasked, asking)

    async def follow(self, is_in_charge: Callable[[], bool]) -> None:
        """In the background, for ever: read what is unread, keep states on record, and deliver what was not."""
        saved_at, resumed = 0.0, False
        while is_in_charge():
            pause = LOOK_EVERY_S
            try:
                if not resumed:
                    await self._sender.resume()
                    resumed = True
                if self._book.unread():
                    await self._read_past()
                if self._untold:
                    await self._tell_again()
                if time.monotonic() - saved_at >= SAVE_EVERY_S:
                    saved_at = time.monotonic()
                    await self.save()
            except Exception as error:
                log.warning("budgets: the database cannot be used: %s", one_line(error))
                pause = RETRY_EVERY_S
            await asyncio.sleep(pause)

    async def save(self) -> None:
        """Put on record where budgets stand. Raises what the database raises."""
        unsaved, self._unsaved = self._unsaved, {}
        try:
            await asyncio.to_thread(save_states, self._engine, list(unsaved.values()))
        except Exception:
            self._unsaved = {**unsaved, **self._unsaved}
            raise

    async def close(self, *, is_in_charge: bool) -> None:
        """Stop delivering; what is pending is delivered by the next controller. is_in_charge: put states on record."""
        try:
            if is_in_charge:
                await self.save()
        except Exception as error:
            log.warning("budgets are not put on record: %s", one_line(error))
        await self._sender.close()

    async def _read_past(self) -> None:
        """Of budgets that are new, or that could not be read. Reading takes seconds where they are many."""
        await asyncio.to_thread(self._journal.flush)
        # Only when all that ticks took in is written does the ledger have it, and nothing twice.
        if self._journal.spooled:
            return
        unread = self._book.unread()
        try:
            pasts = await asyncio.to_thread(
                read_pasts, PastReader(self._engine), unread, time.time()
            )  # as it is at this very moment
        except Exception as error:
            self._say_away(error)
            return
        for each, past in zip(unread, pasts, strict=True):
            self._restore(each, past, time.time())
            await asyncio.sleep(0)  # pricing a month takes a millisecond

    def _restore(self, unread: Unread, past: Past, now: float) -> None:
        self._said_away = False
        self._book.restore(unread, past, now)
        if past.fired and unread.named.budget.notify is not None:
            self._untold[unread.named.name] = self._ticks

    def _say_away(self, error: Exception) -> None:
        if not self._said_away:
            log.warning("budgets are unknown until the ledger can be read: %s", one_line(error))
        self._said_away = True

    async def _tell_again(self) -> None:
        """Messages of alerts of before this start that were never put on record: the process ended in between."""
        due = {name for name, tick in self._untold.items() if tick < self._ticks}  # statuses know what was read
        if not due:
            return
        messages = [
            _message(self._named[status.name], share, status, self._since[alert.name])
            for status in self._statuses
            if status.name in due and self._named[status.name].budget.notify is not None
            for share, alert in _alerts(self._named[status.name], status)
            if alert.name in self._since
        ]
        self._sender.send(await asyncio.to_thread(unknown_messages, self._engine, messages))
        for name in due:
            self._untold.pop(name, None)

    def _messages(self, raised: Iterable[Alert], statuses: Iterable[BudgetStatus]) -> list[Message]:
        since = {alert.name: alert.first_seen for alert in raised}
        if not since:
            return []
        messages = []
        for status in statuses:
            named = self._named.get(status.name)
            if named is not None and named.budget.notify is not None:
                messages += [
                    _message(named, share, status, since[alert.name])
                    for share, alert in _alerts(named, status)
                    if alert.name in since
                ]
        return messages


def _alerts(named: NamedBudget, status: BudgetStatus) -> Iterator[tuple[float, Alert]]:
    return ((share, alert_of(named, share, status)) for share in status.fired)


def _message(named: NamedBudget, share: float, status: BudgetStatus, since: float) -> Message:
    """The message of one alert, which stands since then: one that is raised anew is another message."""
    alert = alert_of(named, share, status)
    body = {
        "type": "budget.unknown" if share == UNKNOWN else "budget.alert",
        "threshold": None if share == UNKNOWN else share,
        "alert": alert.name,
        "severity": alert.severity,
        "text": alert.detail,
        "budget": status.as_json(),
    }
    url, secret = named.budget.notify or "", named.budget.secret_env or ""
    return message((alert.name, since), url, secret, body, status.at)


def second_nano(sheet: PriceSheet, sku: str, now: float) -> float:
    """Nano-dollars of one second of a machine of that sku; of the dearest on the sheet where it has no price."""
    basis = sheet.default_basis
    price = sheet.price_at(sku, basis, now)
    known = [price] if price is not None else [p for p in sheet.prices if p.basis == basis and p.covers(now)]
    return float(max((p.per_hour for p in known), default=0) * NANO) / 3600.0
