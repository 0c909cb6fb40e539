"""A backend in memory: real tokenizer, real detokeniser, scripted tokens. All that lies over the seam is real."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import cycle
from typing import Any

import httpx
import pytest
import uvicorn
from jsonschema import Draft202012Validator
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from controlplane.alerts import Alert, AlertState
from controlplane.budgets.desk import Ask, Refusal, Settled
from controlplane.decision.plan import Plan, StagedPlan
from controlplane.finops.budget import BudgetStatus
from controlplane.keys.ring import KeyRing
from controlplane.policy import Policy, parse_policy
from controlplane.policy_control import PolicyStatus
from controlplane.rollout import Rollout, RolloutError, StageOrder, begin, end, rollout_json
from controlplane.store.policies import PolicyEntry
from controlplane.telemetry import LOAD_BUCKETS, RequestRecord
from workers.api import create_app
from workers.backend import JournalCounts
from workers.detokenizer import Detokenizer
from workers.sequence import Chunk, EngineRequest, TokenLogprob
from workers.worker_totals import MetricsSnapshot

POLICY = """\
version: 1
cohorts:
  - name: code
    match: {api_key: [team-ide]}
    speculation: {tuner: threshold, acceptance_floor: 50%, ladder: [0, 2, 4], start: 2, fallback: 0}
  - name: flex
    match: {service_tier: [flex]}
    speculation: {tuner: threshold, acceptance_floor: 50%, ladder: [0, 2, 4], start: 2, fallback: 0}
  - name: trusted
    match: {headers: {x-kadence-cohort: [trusted]}}
    speculation: {tuner: threshold, acceptance_floor: 50%, ladder: [0, 2, 4], start: 2, fallback: 0}
  - name: default
    match: {}
    speculation: {tuner: threshold, acceptance_floor: 50%, ladder: [0, 2, 4], start: 2, fallback: 0}
"""
TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('no') }}{% endif %}"
    "<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
)


@cache
def byte_tokenizer() -> PreTrainedTokenizerFast:
    """One token per byte."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend, chat_template=TEMPLATE)


def made_up_logprob(token_id: int, alternatives: int | None) -> TokenLogprob:
    """A function of the token alone; of the tokens 65, 66, 67 ... the likeliest comes first."""
    top = tuple((65 + i, -0.5 - i) for i in range(alternatives or 0))
    return TokenLogprob(token_id, -(token_id % 16) / 8, top)


def score_prompt(request: EngineRequest) -> tuple[TokenLogprob | None, ...]:
    wish = request.sampling.prompt_logprobs
    if wish is None:
        return ()
    return (None, *(made_up_logprob(i, wish) for i in request.prompt_token_ids[1:]))


@dataclass
class ScriptedBackend:
    """Says `reply`, in rounds of (drafted, accepted) as in `rounds`, up to its end or max_tokens.

    reply_to: what one request is told instead. slow: indexes of the requests that wait for ever. Log-probabilities are
    made up (`made_up_logprob`). refusal: raised instead of the first chunk. failure: raised (or, as a string, sent as a
    chunk's error) after `chunks_before`; stalls: waits for ever there instead. cached_tokens: of each
    request's prompt, in their order.
    """

    reply: str = "Hello 🎉 wörld, this is a reply."
    rounds: tuple[tuple[int, int], ...] = ((4, 3), (2, 0), (0, 0), (3, 3))
    reply_to: Callable[[EngineRequest], str] | None = None
    slow: tuple[int, ...] = ()
    refusal: Exception | None = None
    failure: Exception | str | None = None
    stalls: bool = False
    cached_tokens: list[int] = field(default_factory=list)
    chunks_before: int = 2
    model_id: str = "tiny"
    max_context: int = 200
    max_prompts: int = 16
    admin_key: str | None = None
    ring: KeyRing = field(default_factory=KeyRing)
    keys_demanded: bool | None = None
    endpoints: int = 1
    request_timeout_s: float = 600.0
    has_chat_template: bool = True
    is_ready: bool = True
    controller_is_gone: bool = False
    tokenizer: Any = field(default_factory=byte_tokenizer)
    requests: list[EngineRequest] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    orders: list[tuple[str, ...]] = field(default_factory=list)
    policy_now: Policy = field(default_factory=lambda: parse_policy(POLICY))
    shown: list[MetricsSnapshot] = field(default_factory=list)
    raised: list[Alert] = field(default_factory=list)
    status: PolicyStatus = field(default_factory=PolicyStatus)
    history: list[PolicyEntry] = field(default_factory=list)
    replicas: int = 2
    rollout: Rollout | None = None
    staged: StagedPlan | None = None
    over_budget: Refusal | None = None
    asked: list[Ask] = field(default_factory=list)
    settled: list[Settled] = field(default_factory=list)
    spent: list[BudgetStatus] = field(default_factory=list)

    def policy(self) -> Policy:
        return self.policy_now

    def keys(self) -> KeyRing:
        return self.ring

    async def learn_keys(self) -> None:
        pass

    async def generate(self, request: EngineRequest) -> AsyncIterator[Chunk]:
        cached = self.cached_tokens[len(self.requests)] if self.cached_tokens else 0
        self.requests.append(request)
        if self.refusal is not None:
            raise self.refusal
        if len(self.requests) - 1 in self.slow:
            await asyncio.Event().wait()
        reply = self.reply if self.reply_to is None else self.reply_to(request)
        ids = self.tokenizer.encode(reply)[: request.sampling.max_tokens]
        detokenizer = Detokenizer(self.tokenizer, request.sampling.stop, request.prompt_token_ids)
        prompt_logprobs = score_prompt(request)
        rounds, at, sent = cycle(((0, 0), *self.rounds)), 0, 0
        steps: list[tuple[int, int]] = []
        while True:
            drafted, accepted = next(rounds) if at else (0, 0)
            pushed = detokenizer.push(ids[at : at + accepted + 1])
            this_step = ((drafted, accepted),) if at else ()
            steps += this_step
            at += pushed.kept
            is_last = pushed.stopped or at >= len(ids)
            text = pushed.text + (detokenizer.flush() if is_last else "")
            if sent >= self.chunks_before and (self.failure or self.stalls):
                if self.stalls:
                    await asyncio.Event().wait()
                if isinstance(self.failure, Exception):
                    raise self.failure
                yield Chunk(request.request_id, (), "", (), "error", None, self.failure)
                return
            reason = ("stop" if pushed.stopped or at < request.sampling.max_tokens else "length") if is_last else None
            record = self._record(request, at, steps) if is_last else None
            new = tuple(ids[at - pushed.kept : at])
            scores = tuple(made_up_logprob(i, request.sampling.logprobs) for i in new)
            if request.sampling.logprobs is None:
                scores = ()
            yield Chunk(
                request.request_id, new, text, this_step, reason, record,
                logprobs=scores, prompt_logprobs=() if sent else prompt_logprobs, cached_tokens=cached,
            )  # fmt: skip
            if is_last:
                return
            sent += 1
            await asyncio.sleep(0)

    @staticmethod
    def _record(request: EngineRequest, tokens: int, steps: list[tuple[int, int]]) -> RequestRecord:
        spec = [s for s in steps if s[0]]
        return RequestRecord(
            request.request_id, "w", "tiny", "none", request.cohort, request.tenant, request.route, request.stream,
            0.0, 1.0, len(request.prompt_token_ids), tokens, len(spec), len(steps) - len(spec),
            sum(d for d, _ in spec), sum(a for _, a in spec), 0, 0, 0, 4, 0.1, 0.1, "stop", 1,
        )  # fmt: skip

    async def admit(self, ask: Ask) -> Refusal | None:
        self.asked.append(ask)
        return self.over_budget

    def settle(self, settled: Settled) -> None:
        self.settled.append(settled)

    async def budgets(self) -> list[BudgetStatus]:
        if self.controller_is_gone:
            raise ConnectionError("controller")
        return self.spent

    async def cancel(self, request_id: str) -> None:
        self.cancelled.append(request_id)

    async def snapshots(self) -> list[MetricsSnapshot]:
        return self.shown

    async def journal_counts(self) -> JournalCounts:
        if self.controller_is_gone:
            raise ConnectionError("controller")
        return JournalCounts({("code", "hold"): 2}, 1, 0)

    async def ready(self) -> bool:
        return self.is_ready

    async def plan(self) -> Plan:
        if self.controller_is_gone:
            raise ConnectionError("controller")
        k = {"code": (2,) * len(LOAD_BUCKETS)}
        return Plan(1, 7, 10.0, 20.0, k, {"code": 0}, self.policy_now.revision, staged=self.staged)

    async def alerts(self, state: AlertState | None) -> list[Alert]:
        if self.controller_is_gone:
            raise ConnectionError("controller")
        return [alert for alert in self.raised if state in (None, alert.state)]

    async def clear_alert(self, name: str, by: str, why: str) -> Alert | None:
        self.orders.append(("alert", name, why, by))
        found = [alert for alert in self.raised if alert.name == name and alert.state == "active"]
        self.raised = [replace(a, state="cleared", cleared_by=by, why=why) if a in found else a for a in self.raised]
        return next((alert for alert in self.raised if alert.name == name and found), None)

    async def set_kill_switch(self, mode: str, reason: str, by: str) -> None:
        self.orders.append(("kill-switch", mode, reason, by))

    async def policy_status(self) -> PolicyStatus:
        return self.status

    async def policy_history(self, limit: int) -> list[PolicyEntry]:
        if self.controller_is_gone:
            raise ConnectionError("controller")
        return self.history[:limit]

    async def apply_policy(self, text: str, by: str, why: str, stage: StageOrder | None = None) -> str:
        policy = parse_policy(text)
        if stage is None:
            self.policy_now = policy
            self.orders.append(("policy", by, why))
        else:
            now = 1_790_000_000.0
            heard = {f"worker-{i}": now for i in range(self.replicas)}
            self.rollout = begin(policy, self.policy_now, stage, workers=heard, by=by, why=why, now=now)
            self.status = PolicyStatus(rollout=rollout_json(self.rollout))
        return policy.revision

    async def abort_rollout(self, by: str, why: str) -> None:
        if self.rollout is None:
            raise RolloutError("no policy is being tried")
        self.rollout = end(self.rollout, "aborted", f"aborted by {by}: {why}", 1_790_000_001.0)
        self.status = PolicyStatus(rollout=rollout_json(self.rollout))


@pytest.fixture
def backend() -> ScriptedBackend:
    return ScriptedBackend()


Ask = Callable[..., httpx.Response]


@cache
def openapi() -> dict[str, Any]:
    return create_app(ScriptedBackend()).openapi()


@cache
def validator(reference: str) -> Draft202012Validator:
    """Of a schema of the OpenAPI document, as JSON text."""
    return Draft202012Validator({**json.loads(reference), "components": openapi()["components"]})


def documented(method: str, path: str) -> dict[str, Any] | None:
    """The document's operation for a request; None where it has none."""
    path = path.partition("?")[0]
    if path.startswith("/v1/models/"):
        path = "/v1/models/{model_id}"
    operation: dict[str, Any] | None = openapi()["paths"].get(path, {}).get(method.lower())
    return operation


def check_is_documented(method: str, path: str, response: httpx.Response) -> None:
    """Fails for an answer whose status, media type, headers or body the document does not have.

    Internal errors are not in it, nor what has no route.
    """
    operation = documented(method, path)
    if operation is None or response.status_code == 500:
        return
    said = operation["responses"].get(str(response.status_code))
    assert said is not None, f"{method} {path} does not document {response.status_code}"
    assert {"x-request-id", "openai-processing-ms"} <= said["headers"].keys() & response.headers.keys()
    media = response.headers["content-type"].partition(";")[0]
    content = said["content"][media]
    schema = json.dumps(content["schema"])
    if media == "text/event-stream":
        for line in response.text.split("\n\n"):
            if line not in ("", "data: [DONE]"):
                event = json.loads(line.removeprefix("data: "))
                error = {"$ref": "#/components/schemas/ErrorBody"}
                validator(json.dumps(error if "error" in event else content["x-event-schema"])).validate(event)
    elif media == "application/json":
        validator(schema).validate(response.json())


@pytest.fixture
def ask(backend: ScriptedBackend) -> Ask:
    """One HTTP request to the application over `backend`; `client` is the address it comes from.

    Whatever a test asks for, the answer must be one that the OpenAPI document has.
    """

    def request(method: str, path: str, *, client: str = "127.0.0.1", **arguments: Any) -> httpx.Response:
        async def send() -> httpx.Response:
            transport = httpx.ASGITransport(create_app(backend), client=(client, 1))
            async with httpx.AsyncClient(transport=transport, base_url="http://kadence") as http:
                return await http.request(method, path, **arguments)

        response = asyncio.run(send())
        check_is_documented(method, path, response)
        return response

    return request


@pytest.fixture
def chat(ask: Ask) -> Ask:
    """POST to chat completions with one user message and these fields."""

    def post(**fields: Any) -> httpx.Response:
        body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], **fields}
        return ask("POST", "/v1/chat/completions", json=body)

    return post


@pytest.fixture
def complete(ask: Ask) -> Ask:
    """POST to completions with a prompt and these fields."""

    def post(**fields: Any) -> httpx.Response:
        return ask("POST", "/v1/completions", json={"model": "tiny", "prompt": "hi", "max_tokens": 50, **fields})

    return post


@pytest.fixture
def base_url(backend: ScriptedBackend) -> Iterator[str]:
    """A real server over `backend` on a free port of the loopback interface."""
    config = uvicorn.Config(create_app(backend), port=0, log_level="warning", ws="none", lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        thread.join(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join(10)
    assert not thread.is_alive()
