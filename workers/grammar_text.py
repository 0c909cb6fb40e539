"""A GrammarSpec in the library's notation, and what is wrong with a JSON schema, without any tokenizer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from workers.sequence import GrammarSpec

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

WHITESPACE = r"[\x20\t]{1,40}|\r?\n[\x20\t]{0,40}"
"""Between two parts of JSON, at most: small models would go on with blanks until their tokens are used up."""
SUBSCHEMAS_MOST = 500
"""Parts of a schema that are looked at to say which one is at fault."""
NOTHING_VALID = "no finite value is valid"
_LIMITS = LLParserLimits(verbose_errors=False)
_BYTES = LLTokenizer("byte")
# Named in full: a schema could have options of its own in "x-guidance", and ask to have parts of it ignored.
JSON_OPTIONS: JsonCompileOptions = {
    "whitespace_flexible": True,
    "whitespace_pattern": WHITESPACE,
    "item_separator": ",",
    "key_separator": ":",
    "coerce_one_of": False,
    "lenient": False,
}


def grammar_text(spec: GrammarSpec) -> str:
    """Raises ValueError for text that is no JSON where it should be."""
    match spec.kind:
        case "json_object":
            return schema_text({"type": "object"})
        case "json_schema":
            return schema_text(json.loads(spec.text))
        case "regex":
            return str(LLMatcher.grammar_from_regex(spec.text))
        case "grammar":
            return str(LLMatcher.grammar_from_lark(spec.text))


def schema_text(schema: Any) -> str:
    """The grammar of a JSON schema, by itself."""
    if isinstance(schema, bool):  # the library wants an object
        schema = {} if schema else {"not": {}}
    return str(LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=JSON_OPTIONS))


def embedded_schema(schema: Any) -> str:
    """A JSON schema within a grammar in Lark's notation."""
    return f"%json {json.dumps({**schema, 'x-guidance': JSON_OPTIONS})}"


def schema_fault(schema: Any) -> tuple[str, str] | None:
    """Where in a schema, as `.properties.a` (empty: all of it), and what cannot be honoured there; None: nothing.

    The path is that of the innermost part that is refused by itself for the same reason.
    """
    reason = _fault(schema, {})
    if reason is None:
        return _start_fault(schema)
    definitions = {name: schema[name] for name in ("$defs", "definitions") if name in schema}
    path, at, looked = "", schema, 0
    while True:
        for step, part in _parts(at):
            looked += 1
            if looked > SUBSCHEMAS_MOST:
                return path, reason
            if _fault(part, definitions) == reason:
                path, at = path + step, part
                break
        else:
            return path, reason


def _fault(schema: Any, definitions: dict[str, Any]) -> str | None:
    whole = {**definitions, **schema} if isinstance(schema, dict) else schema
    is_error, messages = LLMatcher.validate_grammar_with_warnings(schema_text(whole), limits=_LIMITS)
    return " ".join(messages[0].split()) if is_error else None


def _start_fault(schema: Any) -> tuple[str, str] | None:
    """What compiling tells beyond the schema's own faults: that it is too large, or that nothing is valid."""
    matcher = LLMatcher(_BYTES, schema_text(schema), log_level=0, limits=_LIMITS)
    has_any = any(matcher.compute_bitmask())
    if not has_any or matcher.get_error().startswith("NoExtension"):
        return "", NOTHING_VALID
    return ("", " ".join(matcher.get_error().splitlines()[0].split())) if matcher.is_error() else None


def _parts(schema: Any) -> Iterator[tuple[str, Any]]:
    """The schemas directly within one, by their paths."""
    if not isinstance(schema, dict):
        return
    for key, value in schema.items():
        if key in ("properties", "patternProperties", "$defs", "definitions") and isinstance(value, dict):
            yield from ((f".{key}.{name}", part) for name, part in value.items() if isinstance(part, dict))
        elif key in ("anyOf", "oneOf", "allOf", "prefixItems") and isinstance(value, list):
            yield from ((f".{key}[{i}]", part) for i, part in enumerate(value) if isinstance(part, dict))
        elif key in ("items", "additionalProperties", "additionalItems", "not") and isinstance(value, dict):
            yield f".{key}", value
