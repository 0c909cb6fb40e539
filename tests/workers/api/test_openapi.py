"""The OpenAPI document: complete, valid, and true: every answer of the tests in this folder is held against it."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from jsonschema import Draft202012Validator

from workers.api_models import ChatRequest, CompletionRequest
from workers.api_neutral import NEUTRAL_CHAT, NEUTRAL_COMPLETION

Ask = Callable[..., httpx.Response]


@pytest.fixture
def document(ask: Ask) -> dict[str, Any]:
    found: dict[str, Any] = ask("GET", "/openapi.json").json()
    return found


def operations(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, by_method in document["paths"].items():
        for method, operation in by_method.items():
            yield f"{method} {path}", operation


def check(document: dict[str, Any], schema: dict[str, Any], value: Any) -> None:
    Draft202012Validator({**schema, "components": document["components"]}).validate(value)


def test_every_reference_leads_somewhere(document: dict[str, Any]) -> None:
    text = json.dumps(document)
    for kind in ("schemas", "headers"):
        used = {part.split('"')[0] for part in text.split(f'"#/components/{kind}/')[1:]}
        assert used
        assert used <= document["components"][kind].keys()
    assert "$defs" not in text


def test_every_schema_is_one(document: dict[str, Any]) -> None:
    for schema in document["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)
    for _, operation in operations(document):
        for answer in operation["responses"].values():
            for content in answer["content"].values():
                Draft202012Validator.check_schema(content["schema"])


def test_every_example_is_valid(document: dict[str, Any]) -> None:
    examples = [
        (content["schema"], content["example"])
        for _, operation in operations(document)
        for answer in operation["responses"].values()
        for content in answer["content"].values()
        if "example" in content
    ]
    examples += [(s, e) for s in document["components"]["schemas"].values() for e in s.get("examples", ())]
    assert len(examples) > 20
    for schema, example in examples:
        check(document, schema, example)


def test_the_document_has_what_version_3_1_demands(document: dict[str, Any]) -> None:
    assert document["openapi"].startswith("3.1")
    assert document["info"].keys() >= {"title", "version"}
    identities = [operation["operationId"] for _, operation in operations(document)]
    assert len(set(identities)) == len(identities)
    for name, operation in operations(document):
        assert all(answer["description"] for answer in operation["responses"].values()), name
        in_path = {p["name"] for p in operation.get("parameters", ()) if p["in"] == "path"}
        assert all(f"{{{parameter}}}" in name for parameter in in_path), name


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_a_generating_route_documents_every_status_it_may_answer_with(document: dict[str, Any], path: str) -> None:
    operation = document["paths"][path]["post"]
    statuses = {"200", "400", "401", "403", "404", "408", "413", "415", "429", "503"}
    assert operation["responses"].keys() == statuses
    assert operation["responses"]["200"]["content"].keys() == {"application/json", "text/event-stream"}


def test_no_route_documents_what_never_comes(document: dict[str, Any]) -> None:
    for name, operation in operations(document):
        assert not {"422", "500", "default"} & operation["responses"].keys(), name


@pytest.mark.parametrize(
    ("model", "neutral", "path"),
    [
        (ChatRequest, NEUTRAL_CHAT, "/v1/chat/completions"),
        (CompletionRequest, NEUTRAL_COMPLETION, "/v1/completions"),
    ],
)
def test_the_document_has_every_field_that_is_taken_and_no_other(
    document: dict[str, Any], model: Any, neutral: Any, path: str
) -> None:
    (content,) = document["paths"][path]["post"]["requestBody"]["content"].values()
    schema = document["components"]["schemas"][content["schema"]["$ref"].rpartition("/")[2]]
    assert schema["properties"].keys() == model.model_fields.keys() | neutral.keys()
    assert schema["additionalProperties"] is False


def test_the_documents_own_request_examples_are_served(ask: Ask, document: dict[str, Any], backend: Any) -> None:
    served = 0
    for name, operation in operations(document):
        method, path = name.split()
        for content in operation.get("requestBody", {"content": {}})["content"].values():
            schema = document["components"]["schemas"].get(content["schema"].get("$ref", "").rpartition("/")[2], {})
            for example in schema.get("examples", ()):
                backend.model_id = example.get("model", backend.model_id)
                assert ask(method, path, json=example).status_code == 200
                served += 1
    assert served >= 4


@pytest.mark.parametrize(
    ("path", "neutral", "body"),
    [
        ("/v1/chat/completions", NEUTRAL_CHAT, {"messages": [{"role": "user", "content": "a"}]}),
        ("/v1/completions", NEUTRAL_COMPLETION, {"prompt": "a"}),
    ],
)
def test_every_unsupported_field_is_taken_at_each_of_its_documented_values_and_refused_at_others(
    ask: Ask, backend: Any, path: str, neutral: Any, body: dict[str, Any]
) -> None:
    for name, allowed in neutral.items():
        for value in (*allowed, None):
            assert ask("POST", path, json={"model": "tiny", **body, name: value}).status_code == 200, name
        refused = ask("POST", path, json={"model": "tiny", **body, name: "something else"})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, name)
