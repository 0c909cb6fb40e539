"""A ledger small enough to work out by hand. Two windows of ten seconds on one machine at 3.60 USD an hour.

3.60 USD an hour is 0.001 USD (1,000,000 nano-units) a second.

window 1, counter energy 100 J: json 6 s (60 J), fiction 2 s (20 J), idle 2 s (20 J)
window 2, the same again
json    12 s = 0.012 USD for 4,000 tokens -> 3.00 USD per million; 120 J -> 0.03 J a token
fiction  4 s = 0.004 USD for 1,000 tokens -> 4.00 USD per million;  40 J -> 0.04 J a token
idle     4 s = 0.004 USD, 40 J; 20 % of the machine's time
total   20 s = 0.020 USD for 5,000 tokens -> 4.00 USD per million; 200 J -> 0.04 J a token
5,000 tokens in 20 s of work -> 250 tokens/s; json 200, fiction 50
json: 1,000 spec steps, 4,000 drafted, 3,000 accepted -> acceptance length 4; fiction: 400 spec steps, 100 of them
accepted -> 1.25; both: 1,400 spec steps, 3,100 accepted -> 3.214
"""

from __future__ import annotations

import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.orm import Session

from controlplane.settings import Settings
from controlplane.store.engine import open_database
from controlplane.store.migrate import upgrade
from controlplane.store.models import Base, DecisionEntry, PlanEntry, Request, Window, WindowCohort
from controlplane.store.rollup import IDLE, Amounts, Part, add_to_rollups
from dashboard import screenshot
from dashboard.launch import dashboard_command, run_dashboard
from tests.dashboard.looks import pointed_at

PRICES = """version: 1
prices:
  - {sku: test-machine, basis: on_demand, currency: USD, per_hour: "3.60", source: by hand, as_of: %s,
     effective_from: 2020-01-01}
"""
NS = 10**9
BY_LOAD = 9
SENTENCE = "json 2 -> 4 at load 2: position 2 accepted 83 % (floor 50 %), 100 samples"


def window(at: float, sequence: int, *, measured: bool = True) -> Window:
    return Window(
        worker="w0",
        epoch=1,
        sequence=sequence,
        model="smollm2-135m-instruct",
        drafter="ngram",
        device="test-machine",
        hour=int(at // 3600),
        started_at=at,
        ended_at=at + 10,
        seconds_ns=10 * NS,
        busy_ns=8 * NS,
        idle_ns=2 * NS,
        energy_uj=100_000_000 if measured else None,
        idle_uj=20_000_000 if measured else None,
        energy_source="counter" if measured else "none",
        plan_version=7,
        plan_expired=False,
        plan_age_s=0.5,
        running=2,
        waiting=0,
        kv_used=100,
        kv_total=1000,
        latency=[],
    )


def cohort(sequence: int, name: str, seconds: int, *, measured: bool = True, **counts: int) -> WindowCohort:
    names = ["wasted_ns", "prefill_positions", "verify_positions", "draft_positions", "first_tokens", "plain_steps"]
    names += ["requests_started", "requests_finished", "requests_failed", "input_tokens"]
    zeros = dict.fromkeys(names, 0)
    return WindowCohort(
        worker="w0",
        epoch=1,
        sequence=sequence,
        cohort=name,
        attributed_ns=seconds * NS,
        attributed_uj=seconds * 10_000_000 if measured else None,
        wasted_uj=0 if measured else None,
        input_ns=0,
        input_uj=0 if measured else None,
        step_seconds=float(seconds),
        cells=[],
        ttft={"counts": [], "sum_s": 0.0},
        tpot={"counts": [], "sum_s": 0.0},
        **{**zeros, **counts},
    )


def parts(of_window: Window, cohorts: list[WindowCohort]) -> list[Part]:
    """What the window's rows add to the bill."""
    found = []
    for row in cohorts:
        measured = row.emitted_tokens if row.attributed_uj is not None else 0
        amounts = Amounts(
            row.attributed_ns, row.wasted_ns, row.attributed_uj, row.wasted_uj, row.emitted_tokens, measured,
            row.spec_steps + row.plain_steps, row.planned_k_steps, row.draft_tokens, row.accepted_tokens,
            row.requests_finished, row.spec_steps,
        )  # fmt: skip
        found.append(Part(row.cohort, None, "output", amounts))
        found.append(Part(row.cohort, None, "input", Amounts(uj=row.input_uj, tokens=row.input_tokens)))
    return [*found, Part("", None, IDLE, Amounts(of_window.idle_ns, uj=of_window.idle_uj))]


def decision(at: float, name: str, old_k: int, new_k: int, reason: str, sentence: str) -> DecisionEntry:
    return DecisionEntry(
        at=at,
        cohort=name,
        load_bucket=1,
        old_k=old_k,
        new_k=new_k,
        reason=reason,
        sentence=sentence,
        samples=100,
        accept_at=[0.9, 0.8],
        plan_version=7,
        policy_revision="0123456789ab",
    )


def request(at: float, number: int, name: str) -> Request:
    return Request(
        request_id=f"r{number}-{at:.0f}",
        worker="w0",
        model="smollm2-135m-instruct",
        drafter="ngram",
        cohort=name,
        tenant=None,
        route="/v1/completions",
        stream=True,
        hour=int(at // 3600),
        started_at=at - 5,
        finished_at=at,
        prompt_tokens=50,
        completion_tokens=2000,
        spec_steps=500,
        plain_steps=0,
        draft_tokens=2000,
        accepted_tokens=1500,
        prefill_positions=50,
        verify_positions=2500,
        draft_positions=0,
        max_k=4,
        ttft_s=0.1,
        tpot_s=0.01,
        finish_reason="length",
        plan_version=7,
    )


@cache
def _migrated() -> bytes:
    """A migrated database file: made once, as all revisions take longer than most tests."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kadence.db"
        upgrade(f"sqlite:///{path}")
        return path.read_bytes()


class Ledger:
    """A database file and a price sheet, and the environment that points the dashboard at them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "kadence.db"
        self.url = f"sqlite:///{self.path}"
        self.prices = folder / "prices.yaml"

    def migrate(self) -> None:
        for left in (f"{self.path}-wal", f"{self.path}-shm"):  # of a database that was here before
            Path(left).unlink(missing_ok=True)
        self.path.write_bytes(_migrated())

    def price(self, text: str | None = None) -> None:
        self.prices.write_text(text or PRICES % time.strftime("%Y-%m-%d"))

    def add(self, found: list[Base]) -> None:
        engine = open_database(self.url)
        with Session(engine) as session:
            session.add_all(found)
            session.commit()
        engine.dispose()

    def fill(
        self,
        *,
        first: str = "json",
        second: str = "fiction",
        measured: bool = True,
        sequence: int = 0,
        age_s: float = 0,
    ) -> None:
        """The hand-made ledger, ended `age_s` seconds ago. sequence: of the first window, and added to the plan's."""
        now = time.time() - age_s
        found: list[Base] = []
        bill: list[tuple[Any, list[Part]]] = []
        for i, at in enumerate((now - 60, now - 30), sequence):
            one = window(at, i, measured=measured)
            cohorts = [
                cohort(
                    i, first, 6, measured=measured, emitted_tokens=2000, spec_steps=500, draft_tokens=2000,
                    accepted_tokens=1500, planned_k_steps=2000, requests_finished=1, input_tokens=50,
                ),
                cohort(
                    i, second, 2, measured=measured, emitted_tokens=500, spec_steps=200, plain_steps=200,
                    draft_tokens=200, accepted_tokens=50, planned_k_steps=200,
                ),
            ]  # fmt: skip
            bill.append((one, parts(one, cohorts)))
            found += [one, *cohorts, request(at + 9, i, first)]
        found += [
            decision(now - 45, first, 2, 4, "step_up", SENTENCE),
            decision(
                now - 40,
                second,
                2,
                1,
                "below_floor",
                f"{second} 2 -> 1 at load 2: position 1 accepted 25 % (floor 50 %), 100 samples",
            ),
            decision(now - 35, second, 1, 1, "hold", f"{second} stays at 1 at load 2: changed 5.0 s ago, hold 10 s"),
        ]
        engine = open_database(self.url)
        with engine.begin() as connection:
            add_to_rollups(connection, bill)
        engine.dispose()
        self.add(found)
        self.add(
            [
                PlanEntry(
                    version=7 + sequence,
                    epoch=1,
                    issued_at=now - 45,
                    expires_at=now + 3600,
                    k={first: [4] * BY_LOAD, second: [1] * BY_LOAD},
                    fallback={first: 2, second: 0},
                    policy_revision="0123456789ab",
                    kill_switch="off",
                )
            ]
        )


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    """An unmigrated ledger in a folder of its own, and a dashboard that reads it."""
    made = Ledger(tmp_path)
    with pointed_at(made):
        yield made


@pytest.fixture
def filled(ledger: Ledger) -> Ledger:
    ledger.migrate()
    ledger.price()
    ledger.fill()
    return ledger


@pytest.fixture(scope="session")
def make_ledger() -> type[Ledger]:
    return Ledger


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_until_healthy(url: str, process: subprocess.Popen[bytes], timeout_s: float = 60) -> None:
    until = time.monotonic() + timeout_s
    while time.monotonic() < until:
        assert process.poll() is None, "the dashboard ended"
        try:
            with urllib.request.urlopen(f"{url}/_stcore/health", timeout=2) as answer:
                if answer.status == 200:
                    return
        except OSError:
            time.sleep(0.1)
    raise AssertionError(f"no dashboard at {url} after {timeout_s} s")


@contextmanager
def served(ledger: Any, home: Path, **changes: Any) -> Iterator[str]:
    """A running dashboard on that ledger: where it is."""
    settings = Settings(
        home=home,
        database_url=ledger.url,
        prices=ledger.prices,
        port=free_port(),
        dashboard_port=free_port(),
        **changes,
    )
    with (home / "dashboard.log").open("wb") as log:
        process = run_dashboard(settings, stdout=log.fileno(), stderr=subprocess.STDOUT)
        try:
            where = dashboard_command(settings).url
            wait_until_healthy(where, process)
            yield where
        finally:
            process.terminate()
            process.communicate(timeout=10)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A headless Chromium for the pages of a module."""
    with screenshot.chromium() as running:
        yield running


@pytest.fixture(scope="session")
def serving() -> Callable[..., AbstractContextManager[str]]:
    """What starts a dashboard for the time of a `with`; it gives the address."""
    return served
