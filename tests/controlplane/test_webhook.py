"""Messages to a real HTTP server on the loopback interface: signed, tried again, and not lost with a process."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import sqlalchemy as sa
from tenacity import wait_fixed

from controlplane import webhook
from controlplane.store.engine import open_database
from controlplane.store.webhooks import last_attempt, pending_messages, save_messages, unknown_messages
from controlplane.webhook import WebhookSender
from controlplane.webhook_message import OLDEST_S, Message, is_signed, message

SECRET = "s3cret"


class Receiver:
    """Answers with the statuses of `answers`, then 200; keeps what it was sent.

    endless: its bodies never end. drips: its status line comes byte by byte, and never ends.
    """

    endless = drips = False

    def __init__(self) -> None:
        self.got: list[tuple[dict[str, str], str]] = []
        self.answers: list[int] = []
        self.dripped = 0
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"])).decode()
                receiver.got.append(({name.lower(): value for name, value in self.headers.items()}, body))
                status = receiver.answers.pop(0) if receiver.answers else 200
                with contextlib.suppress(OSError):  # until the sender has gone
                    while receiver.drips:
                        self.wfile.write(b"H" if not receiver.dripped else b" ")
                        receiver.dripped += 1
                        time.sleep(0.02)
                    if receiver.endless:
                        self.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
                        while True:
                            self.wfile.write(b"x" * 65536)
                if receiver.drips or receiver.endless:
                    return
                self.send_response(status)
                if status == 302:
                    self.send_header("location", "/elsewhere")
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/hook?token=private"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    found = Receiver()
    thread = threading.Thread(target=found.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield found
    found.server.shutdown()
    found.server.server_close()
    thread.join()


@pytest.fixture
def engine(sqlite_ledger_url: str) -> Iterator[sa.Engine]:
    engine = open_database(sqlite_ledger_url)
    yield engine
    engine.dispose()


def told(url: str, subject: str = "code/80%/2026-11", at: float | None = None) -> Message:
    return message((subject, 1), url, "HOOK", {"text": "80 % reached"}, time.time() if at is None else at)


def run(engine: sa.Engine, act: Callable[[WebhookSender], Awaitable[None]], **changes: Any) -> None:
    """Give `act` a sender that tries again at once, and wait until it has nothing under way."""

    async def life() -> None:
        values = {"secret_of": lambda name: SECRET if name == "HOOK" else None, "pauses": wait_fixed(0.01)}
        sender = WebhookSender(engine, **{**values, **changes})
        await act(sender)
        async with asyncio.timeout(10):
            while sender.under_way:
                await asyncio.sleep(0.005)
        await sender.close()

    asyncio.run(life())


def sending(*messages: Message) -> Callable[[WebhookSender], Awaitable[None]]:
    async def act(sender: WebhookSender) -> None:
        sender.send(messages)

    return act


def test_a_message_arrives_signed_and_is_on_record_as_delivered(engine: sa.Engine, receiver: Receiver) -> None:
    sent = told(receiver.url)
    run(engine, sending(sent))
    ((headers, body),) = receiver.got
    assert json.loads(body) == {"id": sent.id, "text": "80 % reached"}
    assert (headers["x-kadence-id"], headers["content-type"]) == (sent.id, "application/json")
    assert is_signed(headers, body, SECRET, time.time())
    assert last_attempt(engine, sent.id) == ("delivered", 1, "")


@pytest.mark.parametrize(
    ("changed", "secret", "later_s"), [("", "other", 0), ("x", SECRET, 0), ("", SECRET, OLDEST_S + 5)]
)
def test_a_forged_changed_or_replayed_message_is_not_taken(changed: str, secret: str, later_s: float) -> None:
    sent = told("http://x")
    headers = sent.headers(SECRET, 1_790_000_000.0)
    assert is_signed(headers, sent.body, SECRET, 1_790_000_000.0)
    assert not is_signed(headers, sent.body + changed, secret, 1_790_000_000.0 + later_s)


def test_a_receiver_that_fails_is_tried_again_with_the_same_id(engine: sa.Engine, receiver: Receiver) -> None:
    receiver.answers = [500, 404, 302, 429]
    sent = told(receiver.url)
    run(engine, sending(sent))
    assert {headers["x-kadence-id"] for headers, _ in receiver.got} == {sent.id}
    assert (len(receiver.got), last_attempt(engine, sent.id)) == (5, ("delivered", 5, ""))


def test_a_receiver_that_is_down_holds_up_no_other_and_its_message_stays_pending(
    engine: sa.Engine, receiver: Receiver
) -> None:
    down, up = told("http://127.0.0.1:9/hook"), told(receiver.url)

    async def act(sender: WebhookSender) -> None:
        sender.send([down, up])
        async with asyncio.timeout(10):
            while [(last_attempt(engine, each.id) or ("", 0))[1] > 0 for each in (down, up)] != [True, True]:
                await asyncio.sleep(0.02)
        await sender.close()

    run(engine, act)
    state, tries, error = last_attempt(engine, down.id) or ("", 0, "")
    assert (state, tries >= 1, error) == ("pending", True, "127.0.0.1: ConnectError")
    assert pending_messages(engine) == [down]


def test_a_receiver_whose_answer_drips_has_its_time_and_no_more(
    engine: sa.Engine, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    monkeypatch.setattr(webhook, "ANSWER_WITHIN_S", 0.3)
    receiver.drips = True
    sent = told(receiver.url)
    run(engine, sending(sent), give_up_after_s=0.05)
    assert last_attempt(engine, sent.id) == ("given_up", 1, "127.0.0.1: TimeoutError")
    assert receiver.dripped > 2


def test_a_receiver_that_never_stops_talking_is_not_listened_to(engine: sa.Engine, receiver: Receiver) -> None:
    receiver.endless = True
    sent = told(receiver.url)
    run(engine, sending(sent))
    assert last_attempt(engine, sent.id) == ("delivered", 1, "")


def test_no_log_repeats_a_url(engine: sa.Engine, receiver: Receiver, caplog: pytest.LogCaptureFixture) -> None:
    receiver.answers = [500]
    with caplog.at_level(logging.INFO):
        run(engine, sending(told(receiver.url)))
    assert "answered 500" in caplog.text
    assert "private" not in caplog.text


def test_a_secret_that_cannot_be_used_is_a_failed_try_like_any_other(
    engine: sa.Engine, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    sent = told(receiver.url)
    run(engine, sending(sent), secret_of=lambda name: "\udcff", give_up_after_s=0.05)
    state, _, error = last_attempt(engine, sent.id) or ("", 0, "")
    assert (state, error) == ("given_up", "127.0.0.1: UnicodeEncodeError")


def test_a_signature_is_that_of_rfc_2104_over_timestamp_dot_body() -> None:
    """Computed as the RFC spells it: H((K xor opad) + H((K xor ipad) + text)), with K padded to a block of 64 bytes."""
    sent = told("http://127.0.0.1/hook")
    headers = sent.headers(SECRET, 1_790_000_000.5)
    key = SECRET.encode().ljust(64, b"\0")
    inner = hashlib.sha256(bytes(b ^ 0x36 for b in key) + b"1790000000." + sent.body.encode()).digest()
    assert headers["x-kadence-signature"] == "v1=" + hashlib.sha256(bytes(b ^ 0x5C for b in key) + inner).hexdigest()


def test_what_was_not_delivered_is_delivered_after_a_restart(engine: sa.Engine, receiver: Receiver) -> None:
    pending = told(receiver.url)
    save_messages(engine, [pending])
    run(engine, WebhookSender.resume)
    assert (len(receiver.got), pending_messages(engine)) == (1, [])


def test_a_message_said_twice_is_one_message(engine: sa.Engine, receiver: Receiver) -> None:
    first, again = told(receiver.url, at=1.0), told(receiver.url, at=2.0)
    save_messages(engine, [first])
    save_messages(engine, [again])
    assert (first.id, pending_messages(engine)) == (again.id, [first])
    other = told(receiver.url, "code/100%/2026-11")
    assert unknown_messages(engine, [again, other]) == [other]


def test_without_its_secret_nothing_is_sent_unsigned(
    engine: sa.Engine, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    sent = told(receiver.url)
    run(engine, sending(sent), secret_of=lambda name: None, give_up_after_s=0.05)
    assert receiver.got == []
    state, _, error = last_attempt(engine, sent.id) or ("", 0, "")
    assert (state, "HOOK is not set" in error) == ("given_up", True)


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://x/y", "http://", "http://[", "gopher://127.0.0.1"])
def test_only_http_urls_are_sent_to(engine: sa.Engine, url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    sent = told(url)
    assert sent.problem is not None
    run(engine, sending(sent), give_up_after_s=0.05)
    assert (last_attempt(engine, sent.id) or ("",))[0] == "given_up"


def test_a_message_to_nobody_for_three_days_is_given_up(
    engine: sa.Engine, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    receiver.answers = [500] * 100
    old = told(receiver.url, at=time.time() - 4 * 86400)
    with caplog.at_level(logging.ERROR):
        run(engine, sending(old))
    assert (last_attempt(engine, old.id) or ("",))[0] == "given_up"
    assert "is given up after 1 tries: 127.0.0.1: answered 500" in caplog.text
    assert "private" not in caplog.text  # a URL's query is often a secret


def test_a_database_that_is_away_keeps_no_message_from_its_receiver(
    receiver: Receiver, tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    run(open_database(f"sqlite:///{tmp_path}/no/such/folder.db"), sending(told(receiver.url)))
    assert len(receiver.got) == 1
