"""Delivers messages: at least once, signed, again after a failure with growing pauses, and never in anyone's way.

A message is on record before it is sent and stays pending until its receiver says 2xx, so it outlives the process.
Each has a task of its own: a receiver that is down holds up nobody else.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import cache

import httpx
import sqlalchemy as sa
from tenacity import AsyncRetrying, RetryCallState, RetryError, retry_if_exception_type, stop_after_delay
from tenacity.wait import wait_base, wait_exponential_jitter

from controlplane.store import webhooks
from controlplane.store.engine import one_line
from controlplane.webhook_message import Message

log = logging.getLogger(__name__)

ANSWER_WITHIN_S = 10.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 300.0
GIVE_UP_AFTER_S = 3 * 86400.0
AT_ONCE = 8
"""Messages that are under way to one host at the same time; the others wait for their turn."""


class DeliveryError(Exception):
    """One try failed; the message is one line and does not repeat the URL."""


class WebhookSender:
    """Sends on the running event loop. secret_of: the value of an environment variable, None where it is not set."""

    def __init__(
        self,
        engine: sa.Engine,
        *,
        secret_of: Callable[[str], str | None] = os.environ.get,
        pauses: wait_base | None = None,
        give_up_after_s: float = GIVE_UP_AFTER_S,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._engine, self._secret_of, self._give_up_after_s = engine, secret_of, give_up_after_s
        self._pauses = pauses or wait_exponential_jitter(FIRST_PAUSE_S, LONGEST_PAUSE_S, jitter=FIRST_PAUSE_S)
        # What an operator's environment says of proxies holds; where a receiver redirects to is not where we were told.
        self._client = cache(
            lambda: httpx.AsyncClient(timeout=ANSWER_WITHIN_S, follow_redirects=False, transport=transport)
        )
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._turns: defaultdict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(AT_ONCE))
        logging.getLogger("httpx").setLevel(
            logging.WARNING
        )  # below that it logs whole URLs, with what is secret in them

    @property
    def under_way(self) -> int:
        """Messages that are neither delivered nor given up."""
        return len(self._tasks)

    async def resume(self) -> None:
        """Go on with what an earlier process did not deliver. Raises what the database raises."""
        self.send(await asyncio.to_thread(webhooks.pending_messages, self._engine), on_record=True)

    def send(self, messages: Iterable[Message], *, on_record: bool = False) -> None:
        """Put messages on record and deliver them, in the background; one that is under way already is left alone."""
        new = [each for each in messages if each.id not in self._tasks]
        if not new:
            return
        recorded = None if on_record else asyncio.create_task(self._record(new))
        for each in new:
            task = asyncio.create_task(self._deliver(each, recorded))
            self._tasks[each.id] = task
            task.add_done_callback(self._ended(each.id))

    def _ended(self, id: str) -> Callable[[asyncio.Task[None]], None]:
        def forget(_: asyncio.Task[None]) -> None:
            self._tasks.pop(id, None)

        return forget

    async def close(self) -> None:
        """Stop; what is not delivered stays pending."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._client.cache_info().currsize:
            await self._client().aclose()

    async def _record(self, messages: Sequence[Message]) -> None:
        try:
            await asyncio.to_thread(webhooks.save_messages, self._engine, messages)
        except Exception as error:  # a database that is away must not keep an alert from its receiver
            log.warning("messages cannot be put on record: %s", one_line(error))

    async def _deliver(self, message: Message, recorded: asyncio.Task[None] | None) -> None:
        if recorded is not None:
            await asyncio.wait([recorded])
        left_s = max(message.created_at + self._give_up_after_s - time.time(), 0.0)
        retrying = AsyncRetrying(
            stop=stop_after_delay(left_s),
            wait=self._pauses,
            retry=retry_if_exception_type(DeliveryError),
            after=self._say,
        )
        tries, error = 0, ""
        try:
            async for attempt in retrying:
                with attempt:
                    tries = attempt.retry_state.attempt_number
                    try:
                        await self._try(message)
                        error = ""
                    except DeliveryError as failure:
                        error = str(failure)
                        await self._note(message, "pending", tries, error)
                        raise
        except RetryError:
            log.error("webhook to %s: %s is given up after %d tries: %s", message.host, message.id, tries, error)
        await self._note(message, "given_up" if error else "delivered", tries, error)

    @staticmethod
    def _say(state: RetryCallState) -> None:
        if state.attempt_number == 1 and state.outcome is not None and state.outcome.failed:
            log.warning("webhook: a first try failed, will go on trying: %s", state.outcome.exception())

    async def _try(self, message: Message) -> None:
        problem, secret = message.problem, self._secret_of(message.secret_env)
        if problem is not None:
            raise DeliveryError(problem)
        if not secret:
            raise DeliveryError(f"the environment variable {message.secret_env} is not set, so nothing can be signed")
        async with self._turns[message.host]:
            try:
                headers = message.headers(secret, time.time())
                # The client's own limits are for each read; a receiver that drips would never reach them.
                async with (
                    asyncio.timeout(ANSWER_WITHIN_S),
                    self._client().stream("POST", message.url, content=message.body, headers=headers) as answer,
                ):
                    status = answer.status_code  # what else it says, and how much, is not read
            except Exception as error:
                raise DeliveryError(f"{message.host}: {type(error).__name__}") from error
        if not 200 <= status < 300:
            raise DeliveryError(f"{message.host}: answered {status}")

    async def _note(self, message: Message, state: str, tries: int, error: str) -> None:
        at = None if state == "pending" else time.time()
        with contextlib.suppress(Exception):  # it stays pending, and is sent once more after a restart
            await asyncio.to_thread(
                webhooks.note_attempt, self._engine, message.id, state=state, attempts=tries, at=at, error=error
            )
