"""The OpenAPI document: the routes as FastAPI knows them, completed by what `api_documented` says of each."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import models_json_schema

from workers.api_bodies import ErrorBody
from workers.api_documented import ERRORS, JSON, ROUTES, Documented
from workers.api_neutral import (
    NEUTRAL_CHAT,
    NEUTRAL_COMPLETION,
    NEUTRAL_MESSAGE,
    NEUTRAL_STREAM_OPTIONS,
    neutral_schemas,
)
from workers.api_order import DETAILS, DETAILS_HEADER

_REF = "#/components/schemas/{model}"
_STREAM = "text/event-stream"
_EVENT = {
    "type": "object",
    "description": "One event of the stream, as OpenAPI 3.2 has it; its data is JSON, or `[DONE]` at the end.",
    "properties": {"data": {"type": "string"}},
    "required": ["data"],
}
"""Tools that check a stream check each event."""
_HEADERS: dict[str, Any] = {
    "x-request-id": {
        "description": "The client's own id where it is sane, else one of the server's.",
        "schema": {"type": "string", "pattern": r"^[A-Za-z0-9._:\-]{1,128}$"},
    },
    "openai-processing-ms": {
        "description": "Milliseconds until the answer began.",
        "schema": {"type": "string", "pattern": "^[0-9]+$"},
    },
}
_WISHES: list[dict[str, Any]] = [
    {
        "name": "x-request-id",
        "in": "header",
        "required": False,
        "description": "Up to 128 letters, digits, `.`, `_`, `:` and `-`; anything else is replaced.",
        "schema": {"type": "string"},
    },
    {
        "name": DETAILS_HEADER,
        "in": "header",
        "required": False,
        "description": "detailed: the speculation block lists every step.",
        "schema": {"enum": list(DETAILS)},
    },
]
_NEUTRAL = {
    "ChatRequest": NEUTRAL_CHAT,
    "CompletionRequest": NEUTRAL_COMPLETION,
    "Message": NEUTRAL_MESSAGE,
    "StreamOptions": NEUTRAL_STREAM_OPTIONS,
}
_RETRY = {
    name: {"description": text, "schema": {"type": "string"}}
    for name, text in {
        "retry-after": "Seconds to wait, where waiting helps.",
        "retry-after-ms": "The same in milliseconds.",
        "x-should-retry": "false where it does not.",
    }.items()
}


def describe(app: FastAPI) -> None:
    """Replace the generated document by one that names what the handlers really take and give."""
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _completed(generate())
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _completed(document: dict[str, Any]) -> dict[str, Any]:
    document["info"]["description"] = "The OpenAI API for chat and completions, and what operators need beside it."
    document["components"] = {
        "schemas": _schemas(),
        "headers": _HEADERS,
        "securitySchemes": {"key": {"type": "http", "scheme": "bearer", "description": "An API key or an admin key."}},
    }
    document["security"] = [{}, {"key": []}]  # keyless from this machine, while no key is on record
    document["paths"] = {path.replace(":path", ""): operations for path, operations in document["paths"].items()}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            _complete(operation, ROUTES[path, method])
    return document


def _complete(operation: dict[str, Any], route: Documented) -> None:
    if route.takes is not None:
        takes = route.takes if isinstance(route.takes, dict) else _ref(route.takes)
        operation["requestBody"] = {"required": True, "content": {route.takes_media: {"schema": takes}}}
    for parameter in operation.get("parameters", ()):
        if parameter["name"] in route.query:
            parameter["schema"] = route.query[parameter["name"]]
    if route.event is not None:
        operation["parameters"] = [*operation.get("parameters", ()), *_WISHES]
    gives = route.gives if isinstance(route.gives, dict) else _ref(route.gives)
    content: dict[str, Any] = {media: {"schema": gives} for media in route.media}
    if route.example is not None:
        content[JSON]["example"] = route.example
    if route.event is not None:
        content[_STREAM] = {"schema": _EVENT, "x-event-schema": _ref(route.event)}
    operation["responses"] = {"200": {"description": "The answer.", "headers": _header_refs(), "content": content}}
    for status in sorted(route.errors):
        description, example = ERRORS[status]
        operation["responses"][str(status)] = {
            "description": description,
            "headers": _header_refs() | (_RETRY if status == 429 else {}),
            "content": {JSON: {"schema": _ref(ErrorBody), "example": example}},
        }


def _schemas() -> dict[str, Any]:
    taken: Any = [(route.takes, "validation") for route in ROUTES.values() if _is_model(route.takes)]
    _, requests = models_json_schema(taken, ref_template=_REF)
    given = {m.__name__: m for r in ROUTES.values() for m in (r.gives, r.event) if isinstance(m, type)}
    named: Any = [(n, "serialization", TypeAdapter(m)) for n, m in {**given, ErrorBody.__name__: ErrorBody}.items()]
    _, answers = TypeAdapter.json_schemas(named, ref_template=_REF)
    schemas: dict[str, Any] = requests["$defs"] | answers["$defs"]
    for name, neutral in _NEUTRAL.items():
        schemas[name]["properties"] = neutral_schemas(neutral) | schemas[name]["properties"]
    return schemas


def _is_model(taken: Any) -> bool:
    return isinstance(taken, type) and issubclass(taken, BaseModel)


def _ref(model: type) -> dict[str, str]:
    return {"$ref": _REF.format(model=model.__name__)}


def _header_refs() -> dict[str, Any]:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in _HEADERS}
