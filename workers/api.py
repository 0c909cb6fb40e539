"""The HTTP endpoint: the OpenAI dialect for chat and completions, and what operators need beside it."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncGenerator, Callable
from importlib.metadata import version
from typing import Any, TypeVar

from fastapi import FastAPI, Request
from jinja2 import TemplateError
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from controlplane.budgets.desk import Ask, Settled
from controlplane.decision.cohort import RequestAttributes, match_cohort
from workers.api_admin import admin_router, authorize, is_admin_key, is_loopback
from workers.api_body import bearer_token, read_json
from workers.api_errors import ApiError, from_exception, from_status, invalid, over_budget, unavailable
from workers.api_experiment import experiment_router
from workers.api_middleware import RequestIdentity
from workers.api_models import ChatRequest, GenerationRequest, Prompt
from workers.api_responses import Envelope
from workers.api_schema import describe
from workers.api_validation import parse_chat, parse_completion
from workers.backend import Backend, JournalCounts
from workers.generation import Generation
from workers.metrics import MetricsAggregator
from workers.sequence import EngineRequest, SamplingParams
from workers.sse import DONE, ClientGone, EventStream, frame, while_connected

CHAT_ROUTE = "/v1/chat/completions"
COMPLETION_ROUTE = "/v1/completions"
DEFAULT_COMPLETION_TOKENS = 16  # as in the OpenAI API
_LONG_TEXT = 4096  # characters from which reading or tokenising them would hold up the event loop
_MESSAGE_COST = 64  # characters that one more message costs a template about as much as
_SECRET_HEADERS = {"authorization", "cookie", "proxy-authorization"}

_log = logging.getLogger(__name__)

T = TypeVar("T")


def create_app(backend: Backend) -> FastAPI:
    """The ASGI application in front of `backend`."""
    app = FastAPI(title="Kadence", version=version("kadence"), docs_url=None, redoc_url=None, redirect_slashes=False)
    started_at = int(time.time())
    aggregator = MetricsAggregator()
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
        if not backend.has_chat_template:
            message = f"This model has no chat template; use {COMPLETION_ROUTE}."
            raise ApiError(400, message, param="model", code="no_chat_template")
        prompt = await chat_prompt(backend, asked)
        return await answer(backend, request, asked, [prompt], CHAT_ROUTE)

    @app.post(COMPLETION_ROUTE)
    async def complete(request: Request) -> Response:
        body = await read_json(request)
        asked = await aside(len(body), lambda: parse_completion(body))
        check_model(backend, asked.model)
        if len(asked.prompt) > backend.max_prompts:
            raise invalid(
                "prompt",
                f"{len(asked.prompt)} prompts in one request; this server takes at most {backend.max_prompts}.",
            )
        prompts = [await completion_prompt(backend, prompt) for prompt in asked.prompt]
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
        return Response(aggregator.render(counts, backend.policy()), headers={"content-type": CONTENT_TYPE_LATEST})

    app.include_router(admin_router(backend))
    app.include_router(experiment_router(backend))
    app.add_exception_handler(ApiError, _answer_api_error)
    app.add_exception_handler(HTTPException, _answer_http_error)
    app.add_exception_handler(ClientGone, _answer_nobody)
    app.add_middleware(RequestIdentity)
    describe(app)
    return app


async def answer(
    backend: Backend, request: Request, asked: GenerationRequest, prompts: list[tuple[int, ...]], route: str
) -> Response:
    """Generate for every prompt and answer at once or as a stream; raises ApiError or ClientGone."""
    is_chat = route == CHAT_ROUTE
    identity = f"{'chatcmpl' if is_chat else 'cmpl'}-{uuid.uuid4().hex}"
    # Every prompt is checked before the first one is sent.
    sampling = [sampling_for(asked, len(prompt), backend.max_context, is_chat) for prompt in prompts]
    cohort, tenant = cohort_of(backend, request, asked, route)
    requests = [
        EngineRequest(
            request_id=identity if len(prompts) == 1 else f"{identity}-{index}",
            prompt_token_ids=prompt,
            sampling=params,
            cohort=cohort,
            tenant=tenant,
            route=route,
            stream=bool(asked.stream),
            created_at=request.state.received_at,
        )
        for index, (prompt, params) in enumerate(zip(prompts, sampling, strict=True))
    ]
    envelope = Envelope(identity, int(time.time()), backend.model_id, is_chat, asked.service_tier)
    ask = Ask(identity, cohort, tenant, sum(map(len, prompts)), sum(params.max_tokens for params in sampling))
    refusal = await backend.admit(ask)
    if refusal is not None:
        raise over_budget(refusal)
    generation = Generation(backend, requests, lambda taken, given: backend.settle(Settled(identity, taken, given)))
    work = generation.start() if asked.stream else generation.collect()
    try:
        await while_connected(request.receive, work)
    except BaseException as error:
        generation.abandon()  # also where it never got to start
        if isinstance(error, ClientGone) or not isinstance(error, Exception):
            raise
        raise from_exception(error) from error
    if asked.stream:
        return EventStream(frames(generation, envelope, asked.include_usage), generation.abandon)
    return JSONResponse(envelope.complete(generation.outcomes))


async def frames(generation: Generation, envelope: Envelope, include_usage: bool) -> AsyncGenerator[bytes, None]:
    """One event per step and choice, then usage if asked for, then [DONE]."""
    usage: dict[str, Any] = {"usage": None} if include_usage else {}
    begun: set[int] = set()
    try:
        async for index, chunk in generation.chunks():
            if envelope.is_chat and index not in begun:
                begun.add(index)
                yield frame(envelope.role(index) | usage)
            if chunk.text:
                yield frame(envelope.text(index, chunk.text) | usage)
            if chunk.finish_reason is not None:
                yield frame(envelope.finish(index, chunk.finish_reason) | usage)
        if include_usage:
            yield frame(envelope.totals(generation.outcomes))
        yield DONE
    except Exception as error:
        yield frame(from_exception(error).body)
        yield DONE


def sampling_for(asked: GenerationRequest, prompt_tokens: int, max_context: int, is_chat: bool) -> SamplingParams:
    """Raises ApiError where the prompt and the tokens asked for do not fit the context."""
    room = max_context - prompt_tokens
    limit = asked.limit
    if room < 1:
        message = (
            f"The prompt has {prompt_tokens} tokens and the context of this model {max_context}; shorten the prompt."
        )
        raise invalid("messages" if is_chat else "prompt", message, "context_length_exceeded")
    if limit is not None and limit > room:
        message = (
            f"The prompt has {prompt_tokens} tokens, so that of the {max_context} of the context {room} are left; "
            f"lower max_tokens from {limit}."
        )
        raise invalid("max_tokens", message, "context_length_exceeded")
    if limit is None:
        limit = room if is_chat else min(room, DEFAULT_COMPLETION_TOKENS)
    if (asked.min_tokens or 0) > limit:
        raise invalid("min_tokens", f"min_tokens must not be more than max_tokens, which is {limit} here.")
    return SamplingParams(
        max_tokens=limit,
        temperature=1.0 if asked.temperature is None else asked.temperature,
        top_p=1.0 if asked.top_p is None else asked.top_p,
        top_k=asked.top_k or 0,
        stop=asked.stop,
        seed=asked.seed,
        ignore_eos=bool(asked.ignore_eos),
        min_tokens=asked.min_tokens or 0,
    )


def cohort_of(backend: Backend, request: Request, asked: GenerationRequest, route: str) -> tuple[str, str | None]:
    """Cohort and tenant. In this release a bearer token is the name of a key; one that the policy does not name may be
    a real secret, so it goes no further than the comparison.
    """
    policy = backend.policy()
    token = bearer_token(request)
    key = token if token in policy.key_names else None
    if key is not None and is_admin_key(backend, key):
        key = None
    attributes = RequestAttributes(
        api_key=key,
        route=route,
        model=asked.model,
        headers={name: value for name, value in request.headers.items() if name not in _SECRET_HEADERS},
        user=asked.user,
        metadata=asked.metadata,
        service_tier=asked.service_tier,
    )
    return match_cohort(policy, attributes).name, key


def check_model(backend: Backend, model: str) -> None:
    if model != backend.model_id:
        message = f"There is no such model here; this server has {backend.model_id}."
        raise ApiError(404, message, param="model", code="model_not_found")


async def chat_prompt(backend: Backend, asked: ChatRequest) -> tuple[int, ...]:
    messages = [{"role": m.role, "content": m.content} for m in asked.messages]

    def render() -> str:
        return str(backend.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))

    try:
        text = await aside(sum(_MESSAGE_COST + len(m["content"]) for m in messages), render)
    except TemplateError:
        raise invalid("messages", "The chat template of this model refuses this order of roles.") from None
    return await tokenise(backend, text, is_chat=True)


async def completion_prompt(backend: Backend, prompt: Prompt) -> tuple[int, ...]:
    if isinstance(prompt, str):
        return await tokenise(backend, prompt, is_chat=False)
    vocabulary = len(backend.tokenizer)
    if max(prompt) >= vocabulary:
        raise invalid("prompt", f"prompt has a token id over the last one of this model, {vocabulary - 1}.")
    return prompt


async def aside(size: int, work: Callable[[], T]) -> T:
    """The result of `work`, on another thread where its input of `size` characters would hold up all other clients."""
    return work() if size < _LONG_TEXT else await asyncio.to_thread(work)


async def tokenise(backend: Backend, text: str, *, is_chat: bool) -> tuple[int, ...]:
    """Token ids of a prompt; a chat template has written its special tokens itself."""

    def encode() -> list[int]:
        return list(backend.tokenizer.encode(text, add_special_tokens=not is_chat, verbose=False))

    token_ids = await aside(len(text), encode)
    if not token_ids:
        raise invalid("messages" if is_chat else "prompt", "The prompt has no tokens; send some text.")
    return tuple(token_ids)


async def _answer_api_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error.response()


async def _answer_http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return from_status(error.status_code, error.headers).response()


async def _answer_nobody(_: Request, error: Exception) -> Response:
    return Response(status_code=499)  # the client has gone; the status is for the log
