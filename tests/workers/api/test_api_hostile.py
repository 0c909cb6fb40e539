"""Values that are JSON and no number, text or list that anything can use: a 400 that names them, soon, and no 500."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

Ask = Callable[..., httpx.Response]
HI = [{"role": "user", "content": "hi"}]
HUGE = "1" + "0" * 400


def post(ask: Ask, path: str, text: str) -> httpx.Response:
    """A body as it is written: httpx would not write these."""
    return ask("POST", path, content=text.encode(), headers={"content-type": "application/json"})


def with_schema(number: str) -> str:
    schema = f'{{"type": "number", "maximum": {number}}}'
    return f'{{"type": "json_schema", "json_schema": {{"name": "a", "schema": {schema}}}}}'


@pytest.mark.parametrize("number", ["1e400", HUGE])
def test_a_number_that_no_float_holds_is_refused_in_a_schema(ask: Ask, backend: Any, number: str) -> None:
    body = f'{{"model": "tiny", "messages": {json.dumps(HI)}, "response_format": {with_schema(number)}}}'
    answer = post(ask, "/v1/chat/completions", body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "unsupported_schema")
    assert answer.json()["error"]["param"] == "response_format.json_schema.schema"
    assert not backend.requests


@pytest.mark.parametrize("number", ["1e400", HUGE, f"-{HUGE}", "true", "null", '"1"'])
def test_a_bias_that_is_no_number_in_range_is_named(ask: Ask, backend: Any, number: str) -> None:
    answer = post(ask, "/v1/completions", f'{{"model": "tiny", "prompt": "hi", "logit_bias": {{"1": {number}}}}}')
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "logit_bias")
    assert not backend.requests


def test_a_name_that_is_there_twice_is_found_at_once_among_very_many(ask: Ask) -> None:
    """Counting each of them took time by the square of their number: a minute for a body."""
    names = ",".join(f'"f{n}":1' for n in [*range(100_000), 99_999])
    began = time.process_time()
    answer = post(ask, "/v1/completions", f"{{{names}}}")
    assert (answer.json()["error"]["code"], answer.json()["error"]["param"]) == ("duplicate_key", "f99999")
    assert time.process_time() - began < 1


@pytest.mark.parametrize("number", ["1e400", HUGE])
def test_a_number_that_no_float_holds_is_refused_in_a_tool(ask: Ask, backend: Any, number: str) -> None:
    backend.max_context = 4000
    tool = f'{{"name": "f", "parameters": {{"properties": {{"a": {{"type": "number", "maximum": {number}}}}}}}}}'
    tools = f'[{{"type": "function", "function": {tool}}}]'
    answer = post(ask, "/v1/chat/completions", f'{{"model": "tiny", "messages": {json.dumps(HI)}, "tools": {tools}}}')
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tools[0].function.parameters")


@pytest.mark.parametrize("arguments", [r'"\ud800"', "[NaN]", "{", "[" * 10_000])
def test_arguments_that_no_template_could_write_are_named(chat: Ask, backend: Any, arguments: str) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    answer = chat(messages=[*HI, {"role": "assistant", "tool_calls": [call]}])
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "messages[1].tool_calls[0].function.arguments"
    assert not backend.requests


WRONG = "[" + "1," * 400_000 + "1]"


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/v1/chat/completions", f'"messages": {WRONG}', "messages[0]"),
        ("/tokenize", f'"messages": {WRONG}', "messages[0]"),
        (
            "/v1/chat/completions",
            f'"messages": [{{"role": "assistant", "tool_calls": {WRONG}}}]',
            "messages[0].tool_calls[0]",
        ),
        ("/detokenize", f'"tokens": {WRONG.replace("1", chr(34) * 2)}', "tokens[0]"),
    ],
)
def test_of_a_million_wrong_entries_only_the_first_costs_anything(ask: Ask, path: str, fields: str, param: str) -> None:
    """An error each took 40 s on a busy machine."""
    began = time.process_time()
    answer = post(ask, path, f'{{"model": "tiny", {fields}}}')
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert time.process_time() - began < 1


@pytest.mark.parametrize("value", [0, 0.009, -1, 1e-300, 101])
def test_a_repetition_penalty_that_would_make_logits_infinite_is_refused(complete: Ask, value: float) -> None:
    answer = complete(repetition_penalty=value)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "repetition_penalty")
