"""The main job, end to end: real Ray Serve, the real model, K by policy, the ledger, and the page in a browser."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import time
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from dashboard.screenshot import chromium, find_chromium, open_page, read_figures, read_tables, save

pytestmark = [pytest.mark.e2e, pytest.mark.model, pytest.mark.timeout(600)]

JSON_PROMPT = (
    "Write a JSON array of six objects, one for each planet from Mercury to Saturn, with the keys name, moons, rings "
    "and order. Answer with the JSON only."
)
POEM_PROMPT = "Write a short poem about a lighthouse keeper who has never seen the sea."


class Ledger:
    """What the clients of this module received, to hold the ledger against."""

    def __init__(self) -> None:
        self.requests: dict[str, int] = {}
        self.prompt: dict[str, int] = {}
        self.completion: dict[str, int] = {}

    def add(self, cohort: str, usage: Any) -> None:
        self.requests[cohort] = self.requests.get(cohort, 0) + 1
        self.prompt[cohort] = self.prompt.get(cohort, 0) + usage.prompt_tokens
        self.completion[cohort] = self.completion.get(cohort, 0) + usage.completion_tokens


@pytest.fixture(scope="module")
def received() -> Ledger:
    return Ledger()


@pytest.fixture(scope="module")
def ask(kadence, received):
    """One chat completion of a cohort through the openai client; what it used is remembered."""

    def chat(cohort: str, prompt: str, **options: Any) -> Any:
        options = {"max_tokens": 48, "temperature": 0.0, **options}
        messages = [{"role": "user", "content": prompt}]
        answer = kadence.client(cohort).chat.completions.create(
            model="smollm2-135m-instruct", messages=messages, **options
        )
        received.add(cohort, answer.usage)
        return answer

    return chat


def block_of(answer: Any) -> dict[str, Any] | None:
    metrics = answer.model_extra.get("metrics") or {}
    return metrics.get("speculative_decoding")


def counts_of(usage: Any) -> tuple[int, int, int]:
    """Without how much of the prompt was still in the prefix cache: that is another request's doing."""
    return usage.prompt_tokens, usage.completion_tokens, usage.total_tokens


def test_k_differs_by_the_policys_cohorts(ask) -> None:
    assert block_of(ask("repetitive", JSON_PROMPT))["num_spec_tokens"] == 4
    assert block_of(ask("free", JSON_PROMPT)) is None


def test_greedy_text_is_the_same_at_k_4_and_k_0(ask) -> None:
    texts = {c: ask(c, JSON_PROMPT, max_tokens=96).choices[0].message.content for c in ("repetitive", "free", "tuned")}
    assert len(set(texts.values())) == 1, texts


def test_seeded_text_is_the_same_at_k_4_and_k_0(ask) -> None:
    texts = {c: ask(c, POEM_PROMPT, temperature=0.7, seed=5).choices[0].message.content for c in ("repetitive", "free")}
    assert texts["repetitive"] == texts["free"]


def test_a_stream_gives_the_text_and_usage_of_the_whole_answer(kadence, ask, received) -> None:
    whole = ask("repetitive", JSON_PROMPT)
    chunks = list(
        kadence.client("repetitive").chat.completions.create(
            model="smollm2-135m-instruct",
            messages=[{"role": "user", "content": JSON_PROMPT}],
            max_tokens=48,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    received.add("repetitive", chunks[-1].usage)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == whole.choices[0].message.content
    assert counts_of(chunks[-1].usage) == counts_of(whole.usage)
    assert block_of(chunks[-1]) == block_of(whole)


def test_completions_work_streaming_and_not(kadence, received) -> None:
    client = kadence.client("free")
    options = {
        "model": "smollm2-135m-instruct",
        "prompt": "The capital of France is",
        "max_tokens": 8,
        "temperature": 0,
    }
    whole = client.completions.create(**options)
    received.add("free", whole.usage)
    parts = list(client.completions.create(**options, stream=True, stream_options={"include_usage": True}))
    received.add("free", parts[-1].usage)
    assert "Paris" in whole.choices[0].text
    assert "".join(p.choices[0].text for p in parts if p.choices) == whole.choices[0].text


@pytest.mark.parametrize(
    ("body", "status", "word"),
    [
        ({"model": "gpt-99"}, 404, "no such model"),
        ({"messages": "hello"}, 400, "messages"),
        ({"max_tokens": "many"}, 400, "max_tokens"),
        ({"temperature": -1}, 400, "temperature"),
        ({"messages": [{"role": "user", "content": "word " * 2000}]}, 400, "context"),
        ({"frequency_penalty": 2.5}, 400, "frequency_penalty"),
        ({"no_such_field": 1}, 400, "no_such_field"),
    ],
)
def test_bad_input_is_an_error_object_that_names_it(kadence, body, status, word) -> None:
    good = {"model": "smollm2-135m-instruct", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
    answer = httpx.post(f"{kadence.url}/v1/chat/completions", json={**good, **body}, timeout=30)
    assert answer.status_code == status
    assert word in answer.json()["error"]["message"]
    assert len(answer.headers.get_list("x-request-id")) == 1


def test_overload_is_a_clean_429_and_nothing_admitted_is_lost(kadence, eventually, received) -> None:
    async def burst() -> list[httpx.Response]:
        body = {
            "model": "smollm2-135m-instruct",
            "messages": [{"role": "user", "content": POEM_PROMPT}],
            "max_tokens": 24,
            "temperature": 0.7,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        async with httpx.AsyncClient(timeout=120, headers={"x-kadence-cohort": "free"}) as client:
            return await asyncio.gather(
                *(client.post(f"{kadence.url}/v1/chat/completions", json=body) for _ in range(24))
            )

    answers = asyncio.run(burst())
    served = [a for a in answers if a.status_code == 200]
    refused = [a for a in answers if a.status_code == 429]
    assert len(served) + len(refused) == 24
    assert len(served) >= 8
    assert refused
    assert all(float(a.headers["retry-after"]) > 0 and a.json()["error"]["message"] for a in refused)
    for answer in served:
        events = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
        assert events[-1] == "[DONE]"
        received.add("free", openai.types.CompletionUsage(**json.loads(events[-2])["usage"]))


def test_a_client_that_leaves_frees_its_place(kadence, eventually) -> None:
    body = {
        "model": "smollm2-135m-instruct",
        "messages": [{"role": "user", "content": POEM_PROMPT}],
        "max_tokens": 400,
        "ignore_eos": True,
        "stream": True,
    }
    with httpx.stream("POST", f"{kadence.url}/v1/chat/completions", json=body, timeout=60) as answer:
        lines = answer.iter_lines()  # kept: the stream closes with its iterator
        next(lines)
        eventually(lambda: kadence.metric("kadence_running_sequences") == 1)
    eventually(lambda: kadence.metric("kadence_running_sequences") == 0, within=10)


def test_the_ledger_has_what_the_clients_received(kadence, eventually, received) -> None:
    def emitted() -> dict[str, int]:
        report = json.loads(kadence.run("cost", "report", "--by", "cohort", "--since", "1d", "--json").stdout)
        return {row["cohort"]: (row["input_tokens"], row["emitted_tokens"]) for row in report["rows"]}

    wanted = {c: (received.prompt[c], received.completion[c]) for c in ("repetitive", "free", "tuned")}
    eventually(lambda: {c: emitted().get(c) for c in wanted} == wanted, within=30)


def test_rows_and_idle_make_the_bill(kadence) -> None:
    report = json.loads(kadence.run("cost", "report", "--by", "cohort", "--since", "1d", "--json").stdout)
    from decimal import Decimal

    parts = [Decimal(row["cost"]) for row in [*report["rows"], report["idle"]]]
    assert sum(parts) == Decimal(report["total"]["cost"]) > 0


def test_the_page_shows_the_reports_numbers(kadence) -> None:
    if find_chromium() is None:
        pytest.skip("needs Debian's chromium")
    artifacts = Path(os.environ.get("KADENCE_ARTIFACTS", Path(__file__).parents[2] / "artifacts"))
    report = json.loads(kadence.run("cost", "report", "--by", "cohort", "--since", "24h", "--json").stdout)
    with chromium() as browser:
        page = open_page(browser, f"{kadence.dashboard_url}/?range=24h", size=(1600, 1000))
        shown, tables = read_figures(page), read_tables(page)
        save(page, artifacts / "first-light-overview.png")
    emitted = {row["cohort"]: f"{row['emitted_tokens']:,}" for row in [*report["rows"]]}
    assert shown["Emitted tokens"] == f"{report['total']['emitted_tokens']:,}"
    bill = {row["Cohort"]: row for table in tables for row in table if "Per million tokens" in row}
    assert emitted == {cohort: bill[cohort]["Emitted tokens"] for cohort in emitted}
    units = {row["cohort"]: float(row["cost_per_million_tokens"]) for row in report["rows"]}
    on_page = {cohort: float(bill[cohort]["Per million tokens"].strip("$").replace(",", "")) for cohort in units}
    assert on_page == pytest.approx(units, rel=1e-3)  # shown to four figures


def test_a_locked_database_changes_nothing_for_a_client_and_loses_nothing(kadence, ask, eventually, received) -> None:
    lock = sqlite3.connect(kadence.home / "kadence.db", isolation_level=None)
    lock.execute("BEGIN EXCLUSIVE")
    try:
        assert ask("free", "Say hello.", max_tokens=8).choices[0].message.content
        time.sleep(2.5)
        assert ask("free", "Say hello again.", max_tokens=8).choices[0].message.content
    finally:
        lock.execute("ROLLBACK")
        lock.close()

    def emitted() -> int:
        report = json.loads(kadence.run("cost", "report", "--by", "cohort", "--since", "1d", "--json").stdout)
        return next(row["emitted_tokens"] for row in report["rows"] if row["cohort"] == "free")

    eventually(lambda: emitted() == received.completion["free"], within=40)


def test_workers_run_at_the_priority_of_the_command_that_started_them(kadence) -> None:
    worker = kadence.pid_of("ray::ServeReplica:kadence:Worker")
    assert os.getpriority(os.PRIO_PROCESS, worker) == os.getpriority(os.PRIO_PROCESS, kadence.process.pid)


def test_a_killed_dashboard_changes_nothing_for_a_client_and_comes_back(kadence, ask, eventually) -> None:
    os.kill(kadence.pid_of("dashboard.serve"), signal.SIGKILL)
    assert ask("free", "Say hello.", max_tokens=8).choices[0].message.content

    def answers() -> bool:
        try:
            return httpx.get(kadence.dashboard_url, timeout=5).status_code == 200
        except httpx.HTTPError:
            return False

    eventually(answers, within=40)


def test_the_kill_switch_sets_k_to_zero_within_a_second(kadence, ask) -> None:
    def switch(mode: str) -> None:
        body = {"mode": mode, "reason": "test"}
        assert httpx.put(f"{kadence.url}/admin/kill-switch", json=body, timeout=10).status_code == 200

    started = time.monotonic()
    switch("zero")
    took = time.monotonic() - started
    try:
        assert block_of(ask("repetitive", JSON_PROMPT)) is None
    finally:
        switch("off")
    assert took < 1.0
    assert block_of(ask("repetitive", JSON_PROMPT))["num_spec_tokens"] == 4


def test_a_policy_put_over_http_is_obeyed_without_a_restart(kadence, ask) -> None:
    before = httpx.get(f"{kadence.url}/admin/policy", timeout=10)
    text = before.json()["policy"] if before.headers["content-type"].startswith("application/json") else before.text
    changed = text.replace("start: 4, fallback: 2", "start: 2, fallback: 2")
    assert changed != text
    try:
        assert httpx.put(f"{kadence.url}/admin/policy", content=changed, timeout=10).status_code == 200
        assert block_of(ask("repetitive", JSON_PROMPT))["num_spec_tokens"] == 2
        bad = httpx.put(f"{kadence.url}/admin/policy", content="version: 1\ncohorts: []\n", timeout=10)
        assert bad.status_code == 400
    finally:
        assert httpx.put(f"{kadence.url}/admin/policy", content=text, timeout=10).status_code == 200


def test_policy_apply_puts_a_file_in_force(kadence, ask, tmp_path) -> None:
    text = httpx.get(f"{kadence.url}/admin/policy", timeout=10).text
    changed = tmp_path / "policies.yaml"
    changed.write_text(text.replace("start: 4, fallback: 2", "start: 2, fallback: 2"))
    applied = kadence.run("policy", "apply", str(changed), "--url", kadence.url, "--why", "a test")
    try:
        assert (applied.returncode, applied.stderr) == (0, "")
        assert block_of(ask("repetitive", JSON_PROMPT))["num_spec_tokens"] == 2
    finally:
        httpx.put(f"{kadence.url}/admin/policy", content=text, timeout=10)


def test_a_saved_policy_file_is_obeyed_within_two_seconds_and_a_running_stream_goes_on(
    kadence, ask, eventually
) -> None:
    file = kadence.home / "policies.yaml"
    text = file.read_text()
    stream = kadence.client("default").chat.completions.create(
        model="smollm2-135m-instruct",
        messages=[{"role": "user", "content": POEM_PROMPT}],
        max_tokens=200,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
    )
    next(stream)

    def planned() -> int:
        return int(httpx.get(f"{kadence.url}/admin/plan", timeout=10).json()["k"]["repetitive"][0])

    def view() -> Any:
        return httpx.get(f"{kadence.url}/admin/policy?format=json", timeout=10).json()

    try:
        file.write_text(text.replace("start: 4, fallback: 2", "start: 2, fallback: 2"))
        started = time.monotonic()
        eventually(lambda: planned() == 2, within=10)
        assert time.monotonic() - started < 2
        version = httpx.get(f"{kadence.url}/admin/plan", timeout=10).json()["version"]
        eventually(lambda: kadence.metric("kadence_plan_version") >= version, within=5)
        assert block_of(ask("repetitive", JSON_PROMPT))["num_spec_tokens"] == 2
        assert (view()["applied_by"], view()["file_problems"]) == ("policy file", [])
        file.write_text(text.replace("start: 4, fallback: 2", "start: 3, fallback: 2"))
        eventually(lambda: view()["file_problems"], within=10)
        assert planned() == 2
    finally:
        file.write_text(text)
    assert list(stream)[-1].usage.completion_tokens == 200
    eventually(lambda: planned() == 4, within=10)


def test_a_policy_is_tried_on_a_part_and_aborted(kadence, tmp_path) -> None:
    text = httpx.get(f"{kadence.url}/admin/policy", timeout=10).text
    changed = tmp_path / "policies.yaml"
    changed.write_text(text.replace("start: 4, fallback: 2", "start: 2, fallback: 2"))
    arguments = ("policy", "apply", str(changed), "--url", kadence.url, "--why", "a test", "--stage", "50%")
    refused = kadence.run(*arguments)
    assert (refused.returncode, "choose unit cohorts" in refused.stderr) == (1, True)
    staged = kadence.run(*arguments, "--unit", "cohorts")
    assert (staged.returncode, staged.stderr) == (0, "")
    shown = json.loads(kadence.run("policy", "rollout", "--url", kadence.url, "--json").stdout)["rollout"]
    assert (shown["stage"], shown["members"], shown["why"]) == ("staged", ["repetitive"], "a test")
    assert httpx.get(f"{kadence.url}/admin/policy", timeout=10).text == text
    aborted = kadence.run("policy", "rollout", "--abort", "--why", "enough", "--url", kadence.url)
    assert "aborted by" in aborted.stdout
    history = json.loads(kadence.run("policy", "history", "--json").stdout)["history"]
    assert {"staged", "applied"} <= {entry["what"] for entry in history}


def test_a_frozen_controller_leaves_serving_up_on_the_fallback_k(kadence, ask, eventually) -> None:
    pid = kadence.pid_of("ray::ControllerActor")
    os.kill(pid, signal.SIGSTOP)
    try:
        eventually(lambda: kadence.metric("kadence_plan_expired") == 1, within=20)
        assert block_of(ask("repetitive", JSON_PROMPT))["num_spec_tokens"] == 2
    finally:
        os.kill(pid, signal.SIGCONT)
    eventually(lambda: kadence.metric("kadence_plan_expired") == 0, within=20)
    assert block_of(ask("repetitive", JSON_PROMPT))["num_spec_tokens"] == 4


def test_a_killed_controller_comes_back_with_a_newer_plan(kadence, ask, eventually) -> None:
    before = httpx.get(f"{kadence.url}/admin/plan", timeout=10).json()
    os.kill(kadence.pid_of("ray::ControllerActor"), signal.SIGKILL)
    assert ask("repetitive", JSON_PROMPT).choices[0].message.content

    def newer() -> bool:
        plan = httpx.get(f"{kadence.url}/admin/plan", timeout=10).json()
        return plan["epoch"] > before["epoch"] and plan["version"] >= before["version"]

    eventually(newer, within=60)
    eventually(lambda: kadence.metric("kadence_plan_expired") == 0, within=30)


def test_every_decision_is_in_the_journal_with_its_reason(kadence, ask, eventually) -> None:
    for _ in range(3):
        ask("tuned", JSON_PROMPT, max_tokens=160)

    def reasons() -> list[tuple[str, str]]:
        with sqlite3.connect(kadence.home / "kadence.db") as database:
            return database.execute("SELECT reason, sentence FROM decision WHERE cohort = 'tuned'").fetchall()

    eventually(reasons, within=20)
    assert all(reason and sentence.startswith("tuned") for reason, sentence in reasons())


def test_the_canary_checked_what_was_served_and_found_it_right(kadence, ask, eventually) -> None:
    ask("repetitive", JSON_PROMPT)
    eventually(lambda: kadence.metric("kadence_canary_checked_total", drafter="ngram@2") > 0, within=60)
    assert kadence.metric("kadence_canary_mismatch_total") == 0
    assert kadence.run("alerts", "list", "--url", kadence.url).stdout == "no active alerts\n"


def test_a_key_opens_its_cohort_until_it_is_revoked(kadence, eventually) -> None:
    def status() -> tuple[int, str]:
        body = {"model": "smollm2-135m-instruct", "prompt": "a", "max_tokens": 1}
        headers = {"authorization": f"Bearer {secret}", "x-kadence-cohort": "free"}
        answer = httpx.post(f"{kadence.url}/v1/completions", json=body, headers=headers, timeout=60)
        return answer.status_code, answer.headers.get("x-ratelimit-limit-requests", "")

    secret = kadence.run("keys", "create", "e2e", "--cohort", "tuned", "--requests-per-minute", "1000").stdout.strip()
    eventually(lambda: status() == (200, "1000"), within=5)
    with sqlite3.connect(kadence.home / "kadence.db") as database:
        cohorts = "SELECT DISTINCT cohort FROM request WHERE tenant = 'e2e'"
        eventually(lambda: database.execute(cohorts).fetchall() == [("tuned",)])
    assert kadence.run("keys", "revoke", "e2e").returncode == 0
    eventually(lambda: status() == (401, ""), within=5)
    found = [path for path in kadence.home.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()]
    assert found == []


# Rightly without data in a healthy run; every other query of a rule or panel must find some.
EMPTY_IN_HEALTH = {
    "Alerts A",
    "The controller's own alerts A",
    "Windows without a reading A",
    "Refused, by reason A",
    "Expected at the reset A",
}


def test_prometheus_can_ask_all_that_deploy_asks(kadence, prometheus, ask, deployed_queries, eventually) -> None:
    # A rate is of two scrapes: the second answer is counted beside what the first one left.
    counted, priced = 'kadence_emitted_tokens_total{cohort="free"}', "kadence:busy_cost_usd_per_million_tokens:rate30m"
    for told in (counted, f"sum({priced}) > 0"):
        for cohort in ("repetitive", "free"):
            ask(cohort, JSON_PROMPT, max_tokens=24)
        eventually(lambda told=told: prometheus.query(told))

    known = set(prometheus.get("metadata"))
    parts = {f"{name}{end}" for name in known for end in ("_bucket", "_sum", "_count")}
    unknown = {q.where: q.metrics - known - parts for q in deployed_queries}
    assert {where: names for where, names in unknown.items() if names} == {}

    def outcome(query: Any) -> str:
        try:
            return "" if prometheus.query(query.expr) else "no data"
        except ValueError as error:
            return str(error)

    refused = {q.where: said for q in deployed_queries if (said := outcome(q)) not in ("", "no data")}
    assert refused == {}
    asked = [q for q in deployed_queries if q.kind in ("recording", "panel", "variable")]
    # Not all at one moment: some gauges are of a window with work in it, and a scrape that took too long leaves a gap.
    waiting = {q.where: q for q in asked if q.where not in EMPTY_IN_HEALTH}

    def still_empty() -> list[str]:
        for where in [where for where, query in waiting.items() if not outcome(query)]:
            del waiting[where]
        return list(waiting)

    ends = time.monotonic() + 30
    while still_empty() and time.monotonic() < ends:
        ask("repetitive", JSON_PROMPT)
    assert list(waiting) == []


def test_prometheus_evaluates_every_rule_and_finds_the_system_healthy(prometheus, eventually) -> None:
    def rules() -> list[dict[str, Any]]:
        return [rule for group in prometheus.get("rules")["groups"] for rule in group["rules"]]

    eventually(lambda: all(rule["health"] != "unknown" for rule in rules()))
    assert {rule["name"]: rule["lastError"] for rule in rules() if rule["health"] != "ok"} == {}
    calm = ("EndpointDown", "ControllerDown", "ControllerSteppedDown", "NoWorkers", "PlanStale", "ReportsLost",
            "LedgerRowsLost", "LedgerBehind", "WrongText", "MachineUnpriced", "EnergySourceMissing")  # fmt: skip

    def alarmed() -> dict[str, str]:
        states = {rule["name"].removeprefix("Kadence"): rule["state"] for rule in rules() if rule["type"] == "alerting"}
        return {name: states[name] for name in calm if states[name] != "inactive"}

    eventually(lambda: not alarmed())


def test_a_second_start_on_the_same_port_says_so_in_one_line(kadence) -> None:
    again = subprocess.run(kadence.arguments, capture_output=True, text=True, timeout=120, check=False)
    assert again.returncode == 1
    assert "Traceback" not in again.stderr
    assert "--port" in again.stderr.splitlines()[-1]


def test_doctor_finds_a_running_system_healthy(kadence) -> None:
    config = kadence.arguments[kadence.arguments.index("--config") + 1]
    report = kadence.run("doctor", "--config", config, "--json")
    checks = {c["name"]: c for c in json.loads(report.stdout)["checks"]}
    assert [c for c in checks.values() if not c["ok"]] == []


def test_a_flood_of_one_cohort_does_not_keep_another_out(kadence) -> None:
    """Slots and queue are full of the flood's: the other's request displaces one, and does not wait for them all."""

    async def race() -> tuple[list[int], int, float, float]:
        body = {"model": "smollm2-135m-instruct", "prompt": "One, two, three", "max_tokens": 24, "ignore_eos": True}
        async with httpx.AsyncClient(timeout=120, base_url=kadence.url) as client:

            async def send(cohort: str) -> tuple[int, float]:
                headers = {"x-kadence-cohort": cohort}
                answer = await client.post("/v1/completions", json=body, headers=headers)
                return answer.status_code, time.monotonic()

            flood = [asyncio.create_task(send("free")) for _ in range(8)]
            await asyncio.sleep(0.3)
            quiet = await send("repetitive")
            ended = [await task for task in flood]
        return [status for status, _ in ended], quiet[0], quiet[1], max(at for _, at in ended)

    statuses, quiet, quiet_at, flood_at = asyncio.run(race())
    assert quiet == 200
    assert set(statuses) <= {200, 429}
    assert quiet_at <= flood_at + 1.0


def test_a_deadline_is_a_408(kadence) -> None:
    body = {"model": "smollm2-135m-instruct", "prompt": "One, two", "max_tokens": 400, "ignore_eos": True}
    headers = {"x-kadence-timeout": "0.5"}
    answer = httpx.post(f"{kadence.url}/v1/completions", json=body, headers=headers, timeout=60)
    assert (answer.status_code, answer.json()["error"]["code"]) == (408, "deadline_exceeded")


def test_no_log_of_any_process_has_text_of_clients_or_secrets(kadence, eventually) -> None:
    """Of its own requests, good and bad, and whatever the other tests of this module have made be logged."""
    canary = "CANARYzq7"
    headers = {"x-kadence-cohort": "free", "x-note": canary, "x-request-id": f"{canary} x"}
    good = {"model": "smollm2-135m-instruct", "max_tokens": 12, "temperature": 0, "user": canary, "stop": canary}
    messages = [{"role": "user", "content": f"{canary}: {JSON_PROMPT}"}]
    asked = {**good, "messages": messages, "metadata": {canary: canary}}
    with httpx.Client(base_url=kadence.url, headers=headers, timeout=60) as http:
        answer = http.post("/v1/chat/completions", json=asked).json()
        http.post("/v1/chat/completions", json={**asked, "stream": True})
        http.post("/v1/chat/completions", json={**asked, canary: 1})
        broken = {"content": f'{{"model": "{canary}'.encode(), "headers": {"content-type": "application/json"}}
        http.post("/v1/completions", **broken)
        http.post("/v1/completions", json={**good, "prompt": canary * 2000})
        http.get(f"/v1/models/{canary}?{canary}={canary}")
        http.get("/v1/models", headers={"authorization": f"Bearer kad_{canary}"})
        request_id = http.post("/v1/completions", json={**good, "prompt": canary}).headers["x-request-id"]
    log = kadence.home / "logs" / "kadence.log"
    eventually(lambda: request_id in log.read_text())
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert {"endpoint", "worker", "controller"} <= {line["component"] for line in lines}
    (ended,) = [line for line in lines if line["event"] == "request" and line["request_id"] == request_id]
    assert (ended["status"], ended["cohort"], ended["completion_tokens"] > 0) == (200, "free", True)
    assert [line["event"] for line in lines if line.get("completion_id") == ended["completion_id"]] == [
        "request ended",
        "request",
    ]
    session = [path for path in Path("/tmp/ray").glob("session_*") if path.name.endswith(f"_{kadence.process.pid}")]
    written = [path for folder in (kadence.home, *session) for path in folder.rglob("*") if is_log(path)]
    assert len(written) > 3
    secret = answer["choices"][0]["message"]["content"][:40]
    for path in written:
        text = path.read_text(errors="replace")
        assert canary not in text, path
        assert secret not in text, path


def is_log(path: Path) -> bool:
    return path.is_file() and (path.suffix in (".log", ".out", ".err", ".1") or "log" in path.parts[-2])


LONG = {"model": "smollm2-135m-instruct", "prompt": "One, two", "max_tokens": 400, "ignore_eos": True}


def serves(kadence) -> bool:
    try:
        return httpx.post(f"{kadence.url}/v1/completions", json={**LONG, "max_tokens": 1}, timeout=60).is_success
    except httpx.HTTPError:
        return False


def test_a_killed_worker_ends_its_streams_with_an_error_and_another_one_comes(kadence, eventually) -> None:
    with httpx.stream("POST", f"{kadence.url}/v1/completions", json={**LONG, "stream": True}, timeout=60) as stream:
        lines = stream.iter_lines()
        next(lines)
        os.kill(kadence.pid_of("ray::ServeReplica:kadence:Worker"), signal.SIGKILL)
        *_, error, done = [line for line in lines if line]
    assert done == "data: [DONE]"
    assert json.loads(error.removeprefix("data: "))["error"]["code"] == "service_unavailable"
    eventually(lambda: serves(kadence), within=120)


def test_a_killed_endpoint_leaves_no_request_running_and_comes_back_on_its_port(kadence, eventually) -> None:
    with httpx.stream("POST", f"{kadence.url}/v1/completions", json={**LONG, "stream": True}, timeout=60) as stream:
        lines = stream.iter_lines()
        next(lines)
        os.kill(kadence.pid_of("ray::ServeReplica:kadence:Endpoint"), signal.SIGKILL)
        with pytest.raises(httpx.HTTPError):
            list(lines)
    eventually(lambda: serves(kadence), within=120)
    eventually(lambda: kadence.metric("kadence_running_sequences") == 0)
    records = [json.loads(line) for line in (kadence.home / "logs" / "kadence.log").read_text().splitlines()]
    ended = [line for line in records if line["event"] == "request ended" and line["finish_reason"] == "cancelled"]
    assert ended[-1]["completion_tokens"] < LONG["max_tokens"]


def test_ctrl_c_lets_a_stream_end_stops_everything_it_started_and_keeps_the_last_request(
    kadence, ask, eventually
) -> None:
    """Last: it ends the module's system."""
    started = kadence.descendants()
    last = ask("free", "Say goodbye.", max_tokens=8)
    body = {"model": "smollm2-135m-instruct", "prompt": "One, two", "max_tokens": 200, "ignore_eos": True}
    with httpx.stream("POST", f"{kadence.url}/v1/completions", json={**body, "stream": True}, timeout=60) as stream:
        lines = stream.iter_lines()
        next(lines)
        kadence.process.send_signal(signal.SIGINT)
        late = {**body, "max_tokens": 1}
        eventually(lambda: httpx.post(f"{kadence.url}/v1/completions", json=late, timeout=60).status_code == 503)
        *_, finish, done = [line for line in lines if line]
    assert done == "data: [DONE]"
    assert '"finish_reason":"length"' in finish
    assert kadence.process.wait(60) == 0
    with sqlite3.connect(kadence.home / "kadence.db") as database:
        assert database.execute("SELECT 1 FROM request WHERE request_id = ?", (last.id,)).fetchone()
    left = [line for pid, line in started.items() if Path(f"/proc/{pid}").exists() and not _is_zombie(pid)]
    assert left == []
    assert "Traceback" not in kadence.log.read_text()


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
