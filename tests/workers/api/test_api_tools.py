"""Tools and answers in JSON: what the prompt says of them, the grammar asked for, and calls read from the text."""

import copy
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from tokenizers import AddedToken

from workers.api_calls import CallReader
from workers.grammar import Grammars
from workers.sequence import EngineRequest, GrammarSpec

Post = Callable[..., httpx.Response]
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
NOW = {"type": "function", "function": {"name": "now"}}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "R}\\"ö{me"}}\n</tool_call>'
SECOND = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
NAMED = {"type": "function", "function": {"name": "now"}}


def events(response: httpx.Response) -> list[dict[str, Any]]:
    assert response.status_code == 200, response.text
    *frames, done, rest = response.text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    return [json.loads(f.removeprefix("data: "))["choices"][0] for f in frames]


def prompt_of(backend: Any) -> str:
    return str(backend.tokenizer.decode(backend.requests[-1].prompt_token_ids))


def takes(backend: Any, spec: GrammarSpec | None, text: str) -> bool:
    """Whether `text` may be an answer, whole."""
    assert spec is not None
    tokenizer, end = backend.tokenizer, len(backend.tokenizer)
    state = Grammars(tokenizer, end + 1, [end]).start(spec)
    token_ids = [*tokenizer.encode(text), end]
    return state.valid(token_ids) == len(token_ids)


@pytest.fixture(autouse=True)
def roomy(backend: Any) -> None:
    """A preamble has more tokens than the context of the other tests, a byte each."""
    backend.max_context = 4000


# Answers in JSON


def test_a_schema_reaches_the_engine_with_its_properties_in_order(chat: Post, backend: Any) -> None:
    schema = {"type": "object", "properties": {"z": {"type": "string"}, "a": {"type": "integer"}}}
    for strict in (True, False, None):
        wish = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": strict}}
        assert chat(response_format=wish).status_code == 200
        assert backend.requests[-1].grammar == GrammarSpec("json_schema", json.dumps(schema))


def test_json_object_asks_for_any_object(chat: Post, backend: Any) -> None:
    chat(response_format={"type": "json_object"})
    assert backend.requests[-1].grammar == GrammarSpec("json_object")
    assert takes(backend, backend.requests[-1].grammar, '{"a": [1, {"b": null}]}')
    assert not takes(backend, backend.requests[-1].grammar, "[1]")


@pytest.mark.parametrize(
    ("schema", "param"),
    [
        ({"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}, ".properties.a"),
        ({"type": "object", "properties": {"a b": {"not": {}}}}, " (a part of it)"),
        ({"type": "string", "format": "no-such"}, ""),
        ({"$ref": "https://example.com/x"}, ""),
        ({"type": "integer", "minimum": 5, "maximum": 4}, ""),
        (None, ""),
    ],
)
def test_a_schema_that_cannot_be_honoured_is_refused_by_name(chat: Post, backend: Any, schema: Any, param: str) -> None:
    wish = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    response = chat(response_format=wish)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == f"response_format.json_schema.schema{param}"
    assert not backend.requests


# What the prompt says


def test_a_template_without_tools_gets_them_in_a_system_message(chat: Post, backend: Any) -> None:
    chat(tools=[WEATHER, NOW])
    said = prompt_of(backend)
    assert said.startswith("<system>You may call functions.")
    assert json.dumps(WEATHER) in said
    assert said.endswith("</tool_call><user>hi<assistant>")


def test_a_system_message_of_the_conversation_comes_first(chat: Post, backend: Any) -> None:
    chat(
        tools=[NOW], tool_choice=NAMED, messages=[{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    )
    assert prompt_of(backend).startswith("<system>s\n\nYou may call")
    assert "Answer with a call of now.<user>u" in prompt_of(backend)


def test_a_template_with_tools_lists_them_itself(chat: Post, backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    template = "{% for t in tools %}[{{ t.function.name }}]{% endfor %}<tool_call>{{ messages[0].content }}"
    monkeypatch.setattr(backend.tokenizer, "chat_template", template)
    chat(tools=[WEATHER, NOW])
    assert prompt_of(backend) == "[weather][now]<tool_call>hi"


def test_calls_and_results_are_text_to_a_template_without_them(chat: Post, backend: Any) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Rome"}'}}
    results = [{"role": "tool", "tool_call_id": "c1", "content": said} for said in ("sun", "rain")]
    chat(messages=[{"role": "user", "content": "u"}, {"role": "assistant", "tool_calls": [call]}, *results])
    assert prompt_of(backend) == (
        '<user>u<assistant><tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
        "<user><tool_response>\nsun\n</tool_response>\n<tool_response>\nrain\n</tool_response><assistant>"
    )


def test_tool_choice_none_is_as_if_there_were_no_tools(chat: Post, backend: Any) -> None:
    chat(tools=[WEATHER], tool_choice="none")
    assert prompt_of(backend) == "<user>hi<assistant>"
    assert backend.requests[-1].grammar is None


# What may be answered

SEVERAL = [WEATHER, NOW]
ANSWERS = {
    "text": "Sunny <tool_cal > it is.",
    "call": CALL,
    "text and call": f"Let me see.\n{CALL}",
    "two calls": f"{CALL}\n{SECOND}",
    "other function": SECOND,
    "wrong arguments": CALL.replace("city", "town"),
    "text behind": f"{CALL} so",
    "json": '{"a": 1}',
}
MAY: list[tuple[dict[str, Any], set[str]]] = [
    ({}, {"text", "call", "text and call", "two calls", "other function", "json"}),
    (
        {"tool_choice": "auto", "parallel_tool_calls": False},
        {"text", "call", "text and call", "other function", "json"},
    ),
    ({"tool_choice": "required"}, {"call", "two calls", "other function"}),
    ({"tool_choice": "required", "parallel_tool_calls": False}, {"call", "other function"}),
    ({"tool_choice": NAMED}, {"other function"}),
    ({"response_format": {"type": "json_object"}}, {"json", "call", "two calls", "other function"}),
]


@pytest.mark.parametrize(("fields", "may"), MAY)
def test_tool_choice_says_what_may_be_answered(chat: Post, backend: Any, fields: dict[str, Any], may: set[str]) -> None:
    assert chat(tools=SEVERAL, **fields).status_code == 200
    grammar = backend.requests[-1].grammar
    assert {name for name, text in ANSWERS.items() if takes(backend, grammar, text)} == may


@pytest.mark.parametrize(
    ("parameters", "path"),
    [
        ({"type": "string"}, ".type"),
        ({"type": "object", "properties": {"a": {"format": "no-such", "type": "string"}}}, ".properties.a"),
    ],
)
def test_parameters_that_cannot_be_honoured_are_refused_by_name(chat: Post, parameters: Any, path: str) -> None:
    response = chat(tools=[NOW, {"type": "function", "function": {"name": "f", "parameters": parameters}}])
    assert response.status_code == 400
    assert response.json()["error"]["param"] == f"tools[1].function.parameters{path}"


# Calls in the answer


def test_calls_are_taken_from_the_text(chat: Post, backend: Any) -> None:
    backend.reply = f"Let me see.\n{CALL}\n{SECOND}"
    (choice,) = chat(tools=SEVERAL).json()["choices"]
    message = choice["message"]
    assert message["content"] == "Let me see."
    assert [c["function"]["name"] for c in message["tool_calls"]] == ["weather", "now"]
    assert json.loads(message["tool_calls"][0]["function"]["arguments"]) == {"city": 'R}"ö{me'}
    assert len({c["id"] for c in message["tool_calls"]}) == 2
    assert choice["finish_reason"] == "tool_calls"


def test_an_answer_of_calls_alone_has_no_content(chat: Post, backend: Any) -> None:
    backend.reply = CALL
    assert chat(tools=SEVERAL).json()["choices"][0]["message"]["content"] is None


def test_an_answer_without_a_call_is_as_ever(chat: Post, backend: Any) -> None:
    backend.reply = "It is < 5 <tool "
    (choice,) = chat(tools=SEVERAL).json()["choices"]
    assert choice["message"] == {"role": "assistant", "content": backend.reply, "refusal": None}
    assert choice["finish_reason"] == "stop"


def test_what_max_tokens_cut_says_so(chat: Post, backend: Any) -> None:
    backend.reply = CALL
    (choice,) = chat(tools=SEVERAL, max_tokens=54).json()["choices"]
    assert choice["finish_reason"] == "length"
    assert CALL.split('"arguments": ')[1].startswith(choice["message"]["tool_calls"][0]["function"]["arguments"])


def test_without_tools_the_tags_are_text(chat: Post, backend: Any) -> None:
    backend.reply = CALL
    assert chat(tools=SEVERAL, tool_choice="none").json()["choices"][0]["message"]["content"] == CALL


def test_a_stream_names_a_call_before_its_arguments(chat: Post, backend: Any) -> None:
    backend.reply = f"Hm. {CALL}\n{SECOND}"
    choices = events(chat(tools=SEVERAL, stream=True, logprobs=True))
    deltas = [d for c in choices for d in c["delta"].get("tool_calls", ())]
    for index, name, arguments in ((0, "weather", '{"city": "R}\\"ö{me"}'), (1, "now", "{}")):
        first, *rest = [d for d in deltas if d["index"] == index]
        assert first["type"] == "function"
        assert first["id"].startswith("call_")
        assert first["function"] == {"name": name, "arguments": ""}
        assert all(d.keys() == {"index", "function"} for d in rest)
        assert "".join(d["function"]["arguments"] for d in rest) == arguments
    assert "".join(c["delta"].get("content", "") for c in choices) == "Hm."
    assert choices[-1]["finish_reason"] == "tool_calls"
    scored = [t for c in choices if c["logprobs"] for t in c["logprobs"]["content"]]
    assert bytes(b for t in scored for b in t["bytes"]).decode() == backend.reply


def test_each_of_several_choices_has_its_own_calls(chat: Post, backend: Any) -> None:
    def reply(request: EngineRequest) -> str:
        return CALL if len(backend.requests) == 1 else "no"

    backend.reply_to = reply
    choices = chat(tools=SEVERAL, n=2).json()["choices"]
    assert [c["finish_reason"] for c in choices] == ["tool_calls", "stop"]


def read(pieces: list[str]) -> tuple[str, list[tuple[str, str]], bool]:
    reader, content = CallReader(), ""
    for n, piece in enumerate(pieces):
        content += reader.read(piece, n == len(pieces) - 1)[0]
    return content, [(call.name, call.arguments) for call in reader.calls], reader.is_whole


@pytest.mark.parametrize(
    "text",
    [
        f"x <{CALL}\n{SECOND}",
        f"</think> x{CALL}",
        f"{CALL}{SECOND}",
        f"{CALL}\n{SECOND}",
        "a <tool_call",
        "  ",
        f"\n\n{SECOND}",
        CALL[:50],
        f"<<tool_{CALL}",
        "",
    ],
)
def test_row_24_several_tokens_a_chunk_break_the_parser_of_calls(text: str) -> None:
    """Several tokens a chunk broke parsers: the first call's arguments were dropped (vllm 41967)."""
    whole = read([text])
    for size in range(1, 12):
        assert read([text[i : i + size] for i in range(0, len(text), size)] or [""]) == whole
    for at in range(len(text)):
        assert read([text[:at], text[at:]]) == whole


@pytest.mark.parametrize(("is_special", "status"), [(True, 400), (False, 200)])
def test_a_model_whose_tags_never_show_in_a_text_takes_no_tools(
    is_special: bool, status: int, chat: Post, backend: Any
) -> None:
    backend.tokenizer = copy.deepcopy(backend.tokenizer)
    backend.tokenizer.add_tokens(AddedToken("<tool_call>", special=is_special))
    answer = chat(tools=[NOW])
    assert answer.status_code == status
    if is_special:
        assert answer.json()["error"]["code"] == "unsupported_parameter"
