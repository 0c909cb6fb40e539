"""Schemathesis on the OpenAPI document: no 500, and no answer that the document does not have."""

import json
import os
from pathlib import Path
from typing import Any

import httpx
import pytest

MODEL = "smollm2-135m-instruct"
SECONDS = int(os.environ.get("KADENCE_SCHEMATHESIS_S", "180"))
CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,"
    "response_schema_conformance"
)


def narrowed(document: dict[str, Any]) -> dict[str, Any]:
    """The document with the one model that there is, and few tokens: most requests are then served, each in little
    time. What its answers must be is untouched.
    """
    schemas = document["components"]["schemas"]
    for name in ("ChatRequest", "CompletionRequest"):
        schema = schemas[name]
        schema["properties"]["model"] = {"const": MODEL}
        schema["properties"]["max_tokens"] = {"type": "integer", "minimum": 1, "maximum": 4}
        schema["properties"]["n"] = {"type": "integer", "minimum": 1, "maximum": 2}
        schema["properties"].pop("max_completion_tokens", None)
        schema["required"] = [*schema["required"], "max_tokens"]
    return document


@pytest.mark.schemathesis
def test_schemathesis_finds_no_server_error_and_no_undocumented_answer(endpoint: Any, run: Any, tmp_path: Path) -> None:
    file = tmp_path / "openapi.json"
    file.write_text(json.dumps(narrowed(httpx.get(f"{endpoint.url}/openapi.json").json())))
    done = run(
        "clients", "schemathesis", "run", file, "--url", endpoint.url, "--checks", CHECKS, "--continue-on-failure",
        "--max-time", str(SECONDS), "--request-timeout", "60", "--phases", "examples,coverage,fuzzing",
        "--suppress-health-check", "all", "--seed", "1", "--generation-database", "none", "--no-color",
        "--output-truncate", "true",
        within_s=SECONDS + 240,
    )  # fmt: skip
    print(done.stdout[-3000:])
    assert httpx.get(f"{endpoint.url}/health").status_code == 200
    assert " failed" not in done.stdout.splitlines()[-1]
