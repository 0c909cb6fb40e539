"""The OpenAPI document: bodies are read and checked by hand, so they are described here."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import models_json_schema

from workers.api_models import ChatRequest, CompletionRequest, KillSwitchRequest
from workers.api_responses import ChatCompletion, Completion, ErrorBody, ModelCard, ModelList

_REF = "#/components/schemas/{model}"
_REQUESTS: dict[tuple[str, str], type[BaseModel]] = {
    ("/v1/chat/completions", "post"): ChatRequest,
    ("/v1/completions", "post"): CompletionRequest,
    ("/admin/kill-switch", "put"): KillSwitchRequest,
}
_ANSWERS: dict[tuple[str, str], Any] = {
    ("/v1/chat/completions", "post"): ChatCompletion,
    ("/v1/completions", "post"): Completion,
    ("/v1/models", "get"): ModelList,
    ("/v1/models/{model_id}", "get"): ModelCard,
}
_STREAMED = {("/v1/chat/completions", "post"), ("/v1/completions", "post")}


def describe(app: FastAPI) -> None:
    """Replace the generated document by one that names what the handlers really take and give."""
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _completed(generate())
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _completed(document: dict[str, Any]) -> dict[str, Any]:
    _, requests = models_json_schema(_in_requests(), ref_template=_REF)
    _, answers = TypeAdapter.json_schemas(
        [(m.__name__, "serialization", TypeAdapter(m)) for m in (*_ANSWERS.values(), ErrorBody)], ref_template=_REF
    )
    document["components"] = {"schemas": requests["$defs"] | answers["$defs"]}
    paths = {path.replace(":path", ""): operations for path, operations in document["paths"].items()}
    for path, operations in paths.items():
        for method, operation in operations.items():
            route = (path, method)
            responses: dict[str, Any] = operation["responses"]
            responses.pop("422", None)
            responses["default"] = _json(ErrorBody.__name__, "An OpenAI error object.")
            if route in _REQUESTS:
                operation["requestBody"] = {"required": True, **_json(_REQUESTS[route].__name__)}
            if route in _ANSWERS:
                responses["200"] = _json(_ANSWERS[route].__name__, "The answer.")
            if route in _STREAMED:
                responses["200"]["content"]["text/event-stream"] = {"schema": {"type": "string"}}
    text = {"required": True, "content": {"application/yaml": {"schema": {"type": "string"}}}}
    paths["/admin/policy"]["put"]["requestBody"] = text
    document["paths"] = paths
    return document


def _in_requests() -> Any:
    return [(model, "validation") for model in _REQUESTS.values()]


def _json(model: str, description: str | None = None) -> dict[str, Any]:
    content = {"content": {"application/json": {"schema": {"$ref": _REF.format(model=model)}}}}
    return content if description is None else {"description": description, **content}
