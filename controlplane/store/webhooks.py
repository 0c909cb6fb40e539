"""Messages to other systems that are to be delivered, so that none is lost with a process."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from controlplane.store.engine import writing
from controlplane.store.models import Base
from controlplane.store.write import insert
from controlplane.webhook_message import Message


class WebhookDelivery(Base):
    """One message to one URL. state: pending, delivered, or given_up. last_error: "" where none was met.

    The secret itself is never stored: secret_env names the environment variable of the controller that holds it.
    """

    __tablename__ = "webhook_delivery"

    id: Mapped[str] = mapped_column(primary_key=True)
    url: Mapped[str]
    secret_env: Mapped[str]
    body: Mapped[str]
    created_at: Mapped[float]
    state: Mapped[str]
    attempts: Mapped[int]
    ended_at: Mapped[float | None]
    last_error: Mapped[str]


def save_messages(engine: sa.Engine, messages: Sequence[Message]) -> None:
    """Put messages on record as pending; one that is there already, delivered or not, stays as it is."""
    if not messages:
        return
    rows = [
        {
            "id": each.id,
            "url": each.url,
            "secret_env": each.secret_env,
            "body": each.body,
            "created_at": each.created_at,
            "state": "pending",
            "attempts": 0,
            "last_error": "",
        }
        for each in messages
    ]
    with writing(engine).begin() as connection:
        connection.execute(insert(connection, WebhookDelivery).on_conflict_do_nothing(), rows)


def pending_messages(engine: sa.Engine) -> list[Message]:
    """Those that are not delivered yet, oldest first."""
    table = WebhookDelivery
    query = sa.select(table.id, table.url, table.secret_env, table.body, table.created_at)
    query = query.where(table.state == "pending").order_by(table.created_at, table.id)
    with engine.connect() as connection:
        return [Message(*row) for row in connection.execute(query)]


def unknown_messages(engine: sa.Engine, messages: Iterable[Message]) -> list[Message]:
    """Those of the messages that were never put on record."""
    wanted = {each.id: each for each in messages}
    with engine.connect() as connection:
        known = set(connection.scalars(sa.select(WebhookDelivery.id).where(WebhookDelivery.id.in_(list(wanted)))))
    return [each for id, each in wanted.items() if id not in known]


def note_attempt(engine: sa.Engine, id: str, *, state: str, attempts: int, at: float | None, error: str) -> None:
    """What came of trying to deliver. at: when it ended, None while it is pending."""
    change = sa.update(WebhookDelivery).where(WebhookDelivery.id == id, WebhookDelivery.state == "pending")
    with writing(engine).begin() as connection:
        connection.execute(change.values(state=state, attempts=attempts, ended_at=at, last_error=error))


def last_attempt(engine: sa.Engine, id: str) -> tuple[str, int, str] | None:
    """State, attempts and last error of a message; None where it is not on record."""
    table = WebhookDelivery
    with engine.connect() as connection:
        row = connection.execute(sa.select(table.state, table.attempts, table.last_error).where(table.id == id)).first()
    return None if row is None else (row[0], row[1], row[2])
