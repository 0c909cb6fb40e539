"""The seam between the HTTP dialect (workers/api.py) and whatever serves it: Ray workers, or a script in a test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from controlplane.decision.plan import KillSwitch, Plan
from workers.sequence import Chunk, EngineRequest

if TYPE_CHECKING:
    from controlplane.alerts import Alert, AlertState
    from controlplane.budgets.desk import Ask, Refusal, Settled
    from controlplane.finops.budget import BudgetStatus
    from controlplane.finops.pricing.current import MachinePrices
    from controlplane.keys.ring import KeyRing
    from controlplane.policy import Policy
    from controlplane.policy_control import PolicyStatus
    from controlplane.rollout import StageOrder
    from controlplane.store.policies import PolicyEntry
    from workers.worker_totals import MetricsSnapshot


class Overloaded(Exception):
    """No room for the request now; the client may try again in `retry_after_s` seconds."""

    def __init__(self, retry_after_s: float, message: str = "the server is at its limit of waiting requests") -> None:
        super().__init__(retry_after_s, message)  # both in args, so that it survives pickling between processes
        self.retry_after_s = retry_after_s
        self.message = message


class DeadlineExceeded(Exception):
    """The request's time was up before its answer was complete."""


class Draining(Exception):
    """The server takes nothing more in: it stops, or another one takes over."""


class WorkerError(Exception):
    """The worker failed or went away; the message may be shown to the client."""


@dataclass(frozen=True, slots=True)
class JournalCounts:
    """What the controller has decided and written since it started.

    decisions: by (cohort, reason). ledger_spooled: rows not yet in the database; ledger_lost: rows given up.
    reports_refused: reports not used, by reason. stepped_down: whether it found a later controller in its database.
    alerts: names of the active ones. budgets: where each stands; budgets_unasked: requests that endpoints decided on by
    themselves, because the controller did not answer whether they may be paid for. prices: what machines cost now, None
    while no controller said. silence_s: seconds since the controller said all this, None where it never did.
    """

    decisions: Mapping[tuple[str, str], int] = field(default_factory=dict)
    ledger_spooled: int = 0
    ledger_lost: int = 0
    reports_refused: Mapping[str, int] = field(default_factory=dict)
    stepped_down: bool = False
    alerts: tuple[str, ...] = ()
    budgets: tuple[BudgetStatus, ...] = ()
    budgets_unasked: int = 0
    prices: MachinePrices | None = None
    silence_s: float | None = None


class Backend(Protocol):
    """All that the endpoint asks of the rest of Kadence.

    tokenizer: a transformers tokenizer of the model. max_context: tokens of prompt and completion together.
    max_prompts: of one request; more could never be taken in at once.
    admin_key: None, with no admin key on record, leaves the admin routes open to loopback clients only.
    keys_demanded: whether inference wants a key also of loopback clients; None: once a key is on record.
    endpoints: replicas of the endpoint, each of which has its part of a key's limits.
    request_timeout_s: that an answer may take.
    """

    model_id: str
    max_context: int
    max_prompts: int
    tokenizer: Any
    has_chat_template: bool
    admin_key: str | None
    keys_demanded: bool | None
    endpoints: int
    request_timeout_s: float

    def keys(self) -> KeyRing:
        """The API keys, as known last; must not block."""
        ...

    async def learn_keys(self) -> None:
        """Return once the controller was asked for the keys, or does not answer soon. Never raises."""
        ...

    def policy(self) -> Policy:
        """The policy in force; must not block."""
        ...

    async def admit(self, ask: Ask) -> Refusal | None:
        """Why a budget refuses the request; None where none does, and then it is to be settled when it has ended.

        Never raises: where nobody answers, the last word known holds.
        """
        ...

    def settle(self, settled: Settled) -> None:
        """The request that was admitted has ended, however it did. Must not block."""
        ...

    async def budgets(self) -> list[BudgetStatus]: ...

    def generate(self, request: EngineRequest) -> AsyncIterator[Chunk]:
        """An async generator of the request's chunks, one a step; the last one carries finish_reason and record.

        Raises Overloaded, Draining or WorkerError, before the first chunk wherever it can.
        """
        ...

    async def cancel(self, request_id: str) -> None:
        """Ends a request within a step; an unknown or finished one is no error."""
        ...

    async def snapshots(self) -> list[MetricsSnapshot]: ...
    async def journal_counts(self) -> JournalCounts: ...
    async def ready(self) -> bool:
        """Whether requests can be served. Raises Draining where no more are taken in."""
        ...

    async def plan(self) -> Plan: ...
    async def set_kill_switch(self, mode: KillSwitch, reason: str, by: str) -> None: ...

    async def alerts(self, state: AlertState | None) -> list[Alert]:
        """Alerts in that state (None: all), newest first."""
        ...

    async def clear_alert(self, name: str, by: str, why: str) -> Alert | None:
        """The alert as it ended, or None where none of that name is active; its drafter may draft again."""
        ...

    async def experiment(self) -> dict[str, Any] | None:
        """The savings experiment that is running, or the last one, as it is shown."""
        ...

    async def start_experiment(self, asked: dict[str, Any], by: str, why: str, seed: int | None) -> dict[str, Any]:
        """Begin one, the policy's settings where none were asked for. Raises ExperimentError."""
        ...

    async def stop_experiment(self, by: str, why: str) -> dict[str, Any]:
        """End it. Raises ExperimentError where none is running."""
        ...

    async def policy_status(self) -> PolicyStatus: ...
    async def policy_history(self, limit: int) -> list[PolicyEntry]: ...

    async def apply_policy(self, text: str, by: str, why: str, stage: StageOrder | None = None) -> str:
        """Put a policy in force, with `stage` on a part first, and return its revision.

        Raises PolicyError for one that is not valid, RolloutError for one that cannot be tried on that part.
        """
        ...

    async def abort_rollout(self, by: str, why: str) -> None:
        """All back to the policy in force; raises RolloutError where no other one is being tried."""
        ...
