"""What each route takes and answers, for the OpenAPI document: bodies are read by hand, so FastAPI cannot know."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from workers.api_bodies import (
    ChatCompletion,
    ChatCompletionChunk,
    Completion,
    Detokenized,
    ModelCard,
    ModelList,
    Tokens,
)
from workers.api_models import (
    AlertOrder,
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    KillSwitchRequest,
    TokenizeRequest,
)

JSON = "application/json"
_GENERATES = (400, 401, 403, 404, 408, 413, 415, 429, 503)
_READS_JSON = (400, 401, 403, 404, 408, 413, 415)
_ADMIN = (401, 403, 503)
_ADMIN_ORDER = (400, *_ADMIN, 408, 413, 415)


@dataclass(frozen=True, slots=True)
class Documented:
    """One route.

    takes, gives: a model or a schema, of bodies in takes_media and media. errors: statuses beside 200. event: of a
    stream. example: an answer. query: schemas of parameters that are read as text.
    """

    gives: Any
    errors: tuple[int, ...] = ()
    takes: type[BaseModel] | dict[str, Any] | None = None
    event: Any = None
    media: tuple[str, ...] = (JSON,)
    takes_media: str = JSON
    example: Any = None
    query: dict[str, dict[str, Any]] = field(default_factory=dict)


def _object(*required: str) -> dict[str, Any]:
    return {"type": "object", "required": list(required)}


_HEAD = {"created": 1790000000, "model": "smollm2-135m-instruct"}
_USAGE = {
    "prompt_tokens": 12,
    "completion_tokens": 2,
    "total_tokens": 14,
    "prompt_tokens_details": {"cached_tokens": 0},
}
_CHAT = {
    "id": "chatcmpl-5d1f",
    "object": "chat.completion",
    **_HEAD,
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Rain falls.", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ],
    "usage": _USAGE,
}
_TEXT = {
    "id": "cmpl-5d1f",
    "object": "text_completion",
    **_HEAD,
    "choices": [{"index": 0, "text": " there was", "logprobs": None, "finish_reason": "length"}],
    "usage": _USAGE,
}
_CARD = {
    "id": "smollm2-135m-instruct",
    "object": "model",
    "created": 1790000000,
    "owned_by": "kadence",
    "max_model_len": 8192,
}
_COUNT = {"type": ["integer", "null"], "minimum": 1}
_EXPERIMENT = {
    "type": "object",
    "properties": {
        "unit": {"type": "string"},
        "holdout": {"type": "number"},
        "window_s": {"type": "number"},
        "burn_in_s": {"type": "number"},
        "pairs": _COUNT,
        "seed": {"type": ["integer", "null"], "minimum": 0},
        "why": {"type": "string"},
    },
}
_YAML = {"type": "string", "description": "A policy, as in policies.yaml."}

ROUTES: dict[tuple[str, str], Documented] = {
    ("/v1/chat/completions", "post"): Documented(
        ChatCompletion, _GENERATES, ChatRequest, ChatCompletionChunk, example=_CHAT
    ),
    ("/v1/completions", "post"): Documented(Completion, _GENERATES, CompletionRequest, Completion, example=_TEXT),
    ("/v1/models", "get"): Documented(ModelList, (401, 403), example={"object": "list", "data": [_CARD]}),
    ("/v1/models/{model_id}", "get"): Documented(ModelCard, (401, 403, 404), example=_CARD),
    ("/tokenize", "post"): Documented(
        Tokens,
        _READS_JSON,
        TokenizeRequest,
        example={"count": 2, "max_model_len": 8192, "tokens": [19556, 905], "token_strs": None},
    ),
    ("/detokenize", "post"): Documented(Detokenized, _READS_JSON, DetokenizeRequest, example={"prompt": "Hello world"}),
    ("/health", "get"): Documented(_object("status"), (503,), example={"status": "ok"}),
    ("/version", "get"): Documented(
        _object("version", "model", "drafters"),
        example={"version": "0.1.0", "model": "smollm2-135m-instruct", "drafters": ["ngram@1"]},
    ),
    ("/metrics", "get"): Documented({"type": "string"}, _ADMIN, media=("text/plain",)),
    ("/admin/plan", "get"): Documented(_object("epoch", "version", "k", "fallback", "kill_switch"), _ADMIN),
    ("/admin/policy", "get"): Documented(
        {}, (400, *_ADMIN), media=("application/yaml", JSON), query={"format": {"enum": ["yaml", "json"]}}
    ),
    ("/admin/policy", "put"): Documented(
        _object("revision", "staged"),
        (400, *_ADMIN, 408, 413),
        _YAML,
        takes_media="application/yaml",
        example={"revision": "3f2a9c", "staged": False},
        query={
            "stage": {"type": "string", "pattern": r"^0?\.[0-9]{1,4}$"},
            "unit": {"enum": ["replicas", "cohorts"]},
            "min_windows": {"type": "string", "pattern": "^[1-9][0-9]{0,4}$"},
            "max_s": {"type": "string", "pattern": "^[1-9][0-9]{0,4}$"},
        },
    ),
    ("/admin/policy/history", "get"): Documented(
        _object("history"), (400, *_ADMIN), query={"limit": {"type": "string", "pattern": "^[1-9][0-9]{0,3}$"}}
    ),
    ("/admin/policy/rollout", "get"): Documented(_object("rollout"), _ADMIN, example={"rollout": None}),
    ("/admin/policy/rollout", "delete"): Documented(_object("aborted"), (*_ADMIN, 409), example={"aborted": True}),
    ("/admin/kill-switch", "put"): Documented(
        _object("mode", "reason"),
        _ADMIN_ORDER,
        KillSwitchRequest,
        example={"mode": "zero", "reason": "wrong text"},
    ),
    ("/admin/alerts", "get"): Documented(
        _object("alerts"),
        (400, *_ADMIN),
        example={"alerts": []},
        query={"state": {"enum": ["active", "cleared", "all"]}},
    ),
    ("/admin/alerts", "put"): Documented(
        _object("name", "severity", "state", "first_seen", "last_seen"), (*_ADMIN_ORDER, 404), AlertOrder
    ),
    ("/admin/budgets", "get"): Documented(_object("budgets"), _ADMIN, example={"budgets": []}),
    ("/admin/experiment", "get"): Documented(_object("experiment"), _ADMIN, example={"experiment": None}),
    ("/admin/experiment", "put"): Documented(_object("experiment"), (*_ADMIN_ORDER, 409), _EXPERIMENT),
    ("/admin/experiment", "delete"): Documented(_object("experiment"), (*_ADMIN, 409)),
}


def _error(message: str, kind: str, param: str | None, code: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


_INVALID = "invalid_request_error"
ERRORS: dict[int, tuple[str, dict[str, Any]]] = {
    400: (
        "A field is wrong, missing, unknown or not supported, or the prompt is over the context.",
        _error("temperature must be at most 2.", _INVALID, "temperature", "invalid_value"),
    ),
    401: (
        "No API key, or one that does not hold.",
        _error("Incorrect API key provided.", _INVALID, None, "invalid_api_key"),
    ),
    403: (
        "The key, or the client's address, may not do this.",
        _error("This key is not the admin key.", "permission_error", None, "admin_key_required"),
    ),
    404: (
        "There is no such model, or nothing of that name.",
        _error("There is no such model here; this server has tiny.", _INVALID, "model", "model_not_found"),
    ),
    408: (
        "The body came too slowly, or the request's deadline passed before its first token.",
        _error("The deadline of this request has passed.", "timeout_error", None, "deadline_exceeded"),
    ),
    409: (
        "There is nothing to end, or something of the kind is running already.",
        _error("no policy is being tried", _INVALID, None, "no_rollout"),
    ),
    413: (
        "The body is over the limit.",
        _error("The body is larger than the limit.", _INVALID, None, "request_too_large"),
    ),
    415: (
        "The body does not say that it is JSON.",
        _error("The content-type header must be application/json.", _INVALID, "content-type", "unsupported_media_type"),
    ),
    429: (
        "Overload, a key's rate limit, or an exhausted budget.",
        _error("The server is overloaded; try again later.", "rate_limit_error", None, "rate_limit_exceeded"),
    ),
    503: (
        "The worker or the controller failed, or is not ready.",
        _error("The server is not ready yet.", "server_error", None, "service_unavailable"),
    ),
}
