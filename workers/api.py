"""The HTTP endpoint: the OpenAI dialect for chat and completions, and what operators need beside it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING

from fastapi import FastAPI, Request
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from controlplane.budgets.desk import Ask, Settled
from controlplane.decision.cohort import RequestAttributes, match_cohort
from workers.api_admin import admin_router, authorize, is_loopback
from workers.api_body import read_json
from workers.api_calls import CallReader
from workers.api_choice import ChoiceReader
from workers.api_deadline import deadline_of
from workers.api_errors import ApiError, from_exception, from_status, over_budget, unavailable
from workers.api_experiment import experiment_router
from workers.api_keys import KeyGate
from workers.api_middleware import RequestIdentity
from workers.api_models import GenerationRequest
from workers.api_order import Prompt, best_of, order_for, wants_details
from workers.api_prompts import aside, chat_prompt, check_model, check_template, completion_prompts
from workers.api_responses import Envelope
from workers.api_schema import describe
from workers.api_stream import frames
from workers.api_tokenize import tokenize_router
from workers.api_tools import offered
from workers.api_validation import parse_chat, parse_completion
from workers.backend import Backend, Draining, JournalCounts
from workers.generation import Generation
from workers.key_use import Caller, KeyUse
from workers.metrics import MetricsAggregator
from workers.request_facts import RequestFacts
from workers.sequence import EngineRequest
from workers.sse import ClientGone, EventStream, while_connected
from workers.token_bound import token_bound
from workers.token_text import token_text

if TYPE_CHECKING:
    from workers.otel_requests import RequestTelemetry

CHAT_ROUTE = "/v1/chat/completions"
COMPLETION_ROUTE = "/v1/completions"
_SECRET_HEADERS = {"authorization", "cookie", "proxy-authorization", "api-key", "x-api-key"}

_log = logging.getLogger(__name__)


def create_app(backend: Backend, telemetry: RequestTelemetry | None = None) -> FastAPI:
    """The ASGI application in front of `backend`; telemetry: makes spans and gen_ai metrics, None makes none."""
    started_at = int(time.time())
    aggregator = MetricsAggregator(started_at)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        with contextlib.suppress(Exception):  # they tell by their age, too, that they have counted before
            aggregator.begin(await backend.snapshots())
        yield
        if telemetry is not None:
            await asyncio.to_thread(telemetry.close)

    app = FastAPI(
        title="Kadence",
        version=version("kadence"),
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
    )
    token_bound(backend.tokenizer)  # half a second for a large vocabulary, before any client waits
    key_use = KeyUse(backend.endpoints)
    card = {
        "id": backend.model_id,
        "object": "model",
        "created": started_at,
        "owned_by": "kadence",
        "max_model_len": backend.max_context,
    }

    @app.post(CHAT_ROUTE)
    async def chat(request: Request) -> Response:
        body = await read_json(request)
        asked = await aside(len(body), lambda: parse_chat(body))
        check_model(backend, asked.model)
        check_template(backend)
        prompts = [Prompt(await chat_prompt(backend, asked.messages, offered(asked), asked.tool_choice))]
        return await answer(backend, request, asked, prompts, CHAT_ROUTE)

    @app.post(COMPLETION_ROUTE)
    async def complete(request: Request) -> Response:
        body = await read_json(request)
        asked = await aside(len(body), lambda: parse_completion(body))
        check_model(backend, asked.model)
        prompts = await completion_prompts(backend, asked.prompt)
        return await answer(backend, request, asked, prompts, COMPLETION_ROUTE)

    @app.get("/v1/models")
    async def models() -> Response:
        return JSONResponse({"object": "list", "data": [card]})

    @app.get("/v1/models/{model_id:path}")
    async def model(model_id: str) -> Response:
        check_model(backend, model_id)
        return JSONResponse(card)

    @app.get("/health")
    async def health() -> Response:
        try:
            if await backend.ready():
                return JSONResponse({"status": "ok"})
        except Draining as error:
            raise from_exception(error) from error
        except Exception:
            _log.exception("the backend could not say whether it is ready")
        raise unavailable("The server is not ready yet.")

    @app.get("/version")
    async def show_version() -> Response:
        """Of Kadence, and which model and drafters it serves; drafters is empty while no worker answers."""
        try:
            drafters = sorted({snapshot.drafter for snapshot in await backend.snapshots()})
        except Exception:
            _log.exception("the backend could not say which drafters it has")
            drafters = []
        return JSONResponse({"version": app.version, "model": backend.model_id, "drafters": drafters})

    @app.get("/metrics")
    async def metrics(request: Request) -> Response:
        if not is_loopback(request):
            authorize(backend, request)
        try:
            aggregator.observe(await backend.snapshots(), [c.name for c in backend.policy().cohorts])
        except Exception as error:
            raise from_exception(error) from error
        try:
            counts = await backend.journal_counts()
        except Exception:  # without a controller the workers' figures still count
            _log.warning("the controller did not answer with its counts")
            counts = JournalCounts()
        shown = aggregator.render(counts, backend.policy(), key_use.families())
        return Response(shown, headers={"content-type": CONTENT_TYPE_LATEST})

    app.include_router(tokenize_router(backend))
    app.include_router(admin_router(backend))
    app.include_router(experiment_router(backend))
    app.add_exception_handler(ApiError, _answer_api_error)
    app.add_exception_handler(HTTPException, _answer_http_error)
    app.add_exception_handler(ClientGone, _answer_nobody)
    app.add_middleware(KeyGate, backend=backend, use=key_use)
    app.add_middleware(RequestIdentity, telemetry=telemetry)
    describe(app)
    return app


async def answer(
    backend: Backend, request: Request, asked: GenerationRequest, prompts: Sequence[Prompt], route: str
) -> Response:
    """Generate for every prompt and answer at once or as a stream; raises ApiError or ClientGone."""
    is_detailed = wants_details(request)
    deadline_at = deadline_of(request, backend.request_timeout_s)
    order = await order_for(backend, asked, prompts)
    identity = f"{'chatcmpl' if route == CHAT_ROUTE else 'cmpl'}-{uuid.uuid4().hex}"
    cohort, tenant = cohort_of(backend, request, asked, route)
    facts: RequestFacts = request.state.facts
    facts.completion_id, facts.cohort, facts.tenant, facts.key = identity, cohort, tenant, request.state.caller.name
    facts.stream, facts.choices = bool(asked.stream), len(order.candidates)
    facts.sampling = order.candidates[0].sampling
    requests = [
        EngineRequest(
            request_id=identity if len(order.candidates) == 1 else f"{identity}-{index}",
            prompt_token_ids=candidate.prompt.token_ids,
            sampling=candidate.sampling,
            cohort=cohort,
            tenant=tenant,
            route=route,
            stream=bool(asked.stream),
            created_at=request.state.received_at,
            prediction=order.prediction,
            grammar=order.grammar,
            deadline_at=deadline_at,
            service_tier=asked.service_tier,
            traceparent=facts.traceparent,
        )
        for index, candidate in enumerate(order.candidates)
    ]
    shows_logprobs = asked.alternatives is not None
    readers = [
        ChoiceReader(
            backend.tokenizer,
            engine_request,
            shows_logprobs,
            candidate.echo,
            CallReader() if order.has_calls else None,
        )
        for engine_request, candidate in zip(requests, order.candidates, strict=True)
    ]
    envelope = Envelope(
        identity,
        int(time.time()),
        backend.model_id,
        is_chat=route == CHAT_ROUTE,
        service_tier="default" if asked.service_tier == "auto" else asked.service_tier,
        prompt_tokens=sum(len(prompt.token_ids) for prompt in prompts),
        has_prediction=bool(order.prediction),
        is_detailed=is_detailed,
        text=token_text(backend.tokenizer) if shows_logprobs else None,
    )
    use: KeyUse = request.state.key_use
    reservation = use.reserve(request.state.caller, order.input_tokens + order.output_tokens)
    try:
        refusal = await backend.admit(Ask(identity, cohort, tenant, order.input_tokens, order.output_tokens))
        if refusal is not None:
            raise over_budget(refusal)
    except BaseException:
        reservation.settle(0)
        raise

    def settle(taken: int, given: int) -> None:
        facts.end(generation, taken, given, request.state.received_at)
        reservation.settle(taken + given)
        backend.settle(Settled(identity, taken, given))

    generation = Generation(backend, requests, readers, settle)
    work = generation.start() if asked.stream else generation.collect()
    try:
        await while_connected(request.receive, work)
    except BaseException as error:
        generation.abandon()  # also where it never got to start
        if isinstance(error, ClientGone) or not isinstance(error, Exception):
            raise
        raise from_exception(error) from error
    if asked.stream:
        events = frames(generation, envelope, asked.include_usage, asked.counts_as_it_goes)
        return EventStream(events, generation.abandon)
    return JSONResponse(envelope.complete(best_of(generation.outcomes, asked), generation.outcomes))


def cohort_of(backend: Backend, request: Request, asked: GenerationRequest, route: str) -> tuple[str, str | None]:
    """Cohort and tenant: those that the caller's key is bound to, or what the policy matches."""
    caller: Caller = request.state.caller
    attributes = RequestAttributes(
        api_key=caller.name,
        route=route,
        model=asked.model,
        headers={name: value for name, value in request.headers.items() if name not in _SECRET_HEADERS},
        user=asked.who,
        metadata=asked.metadata,
        service_tier=asked.service_tier,
        bound_to=caller.cohort,
    )
    return match_cohort(backend.policy(), attributes).name, caller.tenant


async def _answer_api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    request.state.facts.error = error.code or error.type
    return error.response()


async def _answer_http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return from_status(error.status_code, error.headers).response()


async def _answer_nobody(_: Request, error: Exception) -> Response:
    return Response(status_code=499)  # the client has gone; the status is for the log
