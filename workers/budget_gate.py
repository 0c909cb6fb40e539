"""An endpoint's side of the budget desk: asks before a request is admitted, tells when it has ended.

Only requests that a refusing budget counts pay for the question. A desk that does not answer stops nothing: the last
word known of each budget holds until its reset, and such decisions are counted.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from controlplane.budgets.desk import Answer, Ask, Refusal, Settled
from controlplane.finops.budget import BudgetStatus, refusal
from controlplane.policy import Policy

ANSWER_WITHIN_S = 1.0
AWAY_S = 1.0
"""After an unanswered question nobody is asked for so long: clients do not wait for a controller that is gone."""


class BudgetGate:
    """One per endpoint. call: asks the controller's actor, by method name; whatever it raises means no answer."""

    def __init__(
        self, call: Callable[..., Awaitable[Any]], now: Callable[[], float] = time.time, away_s: float = AWAY_S
    ) -> None:
        self._call, self._now, self._away_s = call, now, away_s
        self._holder = f"endpoint-{uuid.uuid4().hex[:12]}"
        self._open: dict[str, Ask] = {}
        self._asking: set[str] = set()
        self._last: dict[str, Refusal | None] = {}
        self._refused: Counter[str] = Counter()
        self._unasked = 0
        self._ask_again_at = 0.0
        self._has_said = False
        self._background: set[asyncio.Task[None]] = set()

    async def admit(self, policy: Policy, ask: Ask) -> Refusal | None:
        """Why a budget refuses the request; None where it may go on, and is to be settled."""
        names = refusing(policy, ask.cohort, ask.tenant)
        if not names:
            return None
        self._open[ask.id] = ask
        said: Refusal | None
        if self._now() < self._ask_again_at:
            said = self._by_last(names)
        else:
            self._asking.add(ask.id)  # what is held meanwhile leaves it as the desk has it
            self._has_said = True
            try:
                answer: Answer = await asyncio.wait_for(self._call("budget_admit", self._holder, ask), ANSWER_WITHIN_S)
            except asyncio.CancelledError:
                self.settle(Settled(ask.id, 0, 0))  # the client left while it waited
                raise
            except Exception:
                self._ask_again_at = self._now() + self._away_s
                said = self._by_last(names)
            else:
                said = answer.refusal
                if said is None:
                    self._last.update(dict.fromkeys(answer.budgets))
                elif said.is_spent:
                    self._last[said.budget] = said
            finally:
                self._asking.discard(ask.id)
        if said is not None:
            self._open.pop(ask.id, None)
        return said

    def settle(self, settled: Settled) -> None:
        """The request has ended; one that nobody was asked about is none of the desk's business."""
        if self._open.pop(settled.id, None) is not None:
            task = asyncio.get_running_loop().create_task(self._tell("budget_settle", settled))
            self._background.add(task)
            task.add_done_callback(self._background.discard)

    def note(self, statuses: Iterable[BudgetStatus]) -> None:
        """Where budgets stand, as the controller says once a second: the last word known of each."""
        for status in statuses:
            if status.on_exceeded == "reject":
                is_over = status.standing == "exceeded"
                self._last[status.name] = Refusal(status.name, refusal(status), status.period.end) if is_over else None

    async def hold(self) -> None:
        """Say what is under way, and what was decided here; nothing is said where nothing changed from nothing."""
        asks = [ask for ask in self._open.values() if ask.id not in self._asking]
        asking, refused, unasked = sorted(self._asking), dict(self._refused), self._unasked
        if not asks and not asking and not unasked and not self._has_said:
            return
        self._has_said = bool(asks or asking)
        try:
            said = self._call("budget_hold", self._holder, asks, refused, unasked, asking)
            await asyncio.wait_for(said, ANSWER_WITHIN_S)
        except Exception:
            self._has_said = True
            return
        self._refused.subtract(refused)
        self._unasked -= unasked

    def _by_last(self, names: Iterable[str]) -> Refusal | None:
        self._unasked += 1
        for name in names:
            said = self._last.get(name)
            if said is not None and self._now() < said.resets_at:
                self._refused[name] += 1
                return said
        return None

    async def _tell(self, method: str, settled: Settled) -> None:
        try:
            await asyncio.wait_for(self._call(method, self._holder, settled), ANSWER_WITHIN_S)
        except Exception:
            return  # the next `hold` no longer has it


def refusing(policy: Policy, cohort: str, tenant: str | None) -> tuple[str, ...]:
    """The budgets that refuse which a request counts against."""
    return tuple(
        named.name
        for named in policy.all_budgets
        if named.budget.on_exceeded == "reject" and named.cohort in (None, cohort) and named.tenant in (None, tenant)
    )
