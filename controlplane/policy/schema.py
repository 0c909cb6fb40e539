"""The policy file as a JSON Schema (draft 2020-12), for editors that complete and check YAML while it is typed.

The parser stays the judge: a schema knows neither units' ranges nor what must hold between two fields or two cohorts
(a rung of the ladder, a cohort that can be reached). It never refuses a file that the parser takes.
"""

from __future__ import annotations

from typing import Any

from controlplane.policy.budgets import BUDGET_ACTIONS, BUDGET_PERIODS, MAX_TENANT
from controlplane.policy.model import MAX_K, Guard
from controlplane.policy.sections import (
    EXPERIMENT_UNITS,
    MAX_SAMPLES,
    OBJECTIVES,
    SERVICE_TIERS,
    SLOTS,
    TUNERS,
)

DRAFT = "https://json-schema.org/draft/2020-12/schema"

Schema = dict[str, Any]


def policy_schema() -> Schema:
    """The schema; a new mapping at every call."""
    schema = _fields(
        "A Kadence policy: who is in which cohort, and how K is chosen for it.",
        {
            "version": {"description": "Version of this format.", "enum": [1, "1"]},
            "cohorts": {
                "description": "The first cohort that matches takes a request; the last must have `match: {}`.",
                "type": "array",
                "minItems": 1,
                "items": {"$ref": "#/$defs/cohort"},
            },
            "budgets": {
                "description": "Budgets of tenants, of cohorts, and of tenants in a cohort.",
                "type": "array",
                "items": {"$ref": "#/$defs/named_budget"},
            },
            "experiment": {"$ref": "#/$defs/experiment"},
        },
        required=("version", "cohorts"),
    )
    definitions = {
        "cohort": _cohort(),
        "match": _match(),
        "speculation": _speculation(),
        "slo": _slo(),
        "guard": _guard(),
        "budget": _budget(),
        "named_budget": _named_budget(),
        "experiment": _experiment(),
        "scalar": {"type": ["string", "number", "boolean"]},
        "words": {
            "anyOf": [
                {"$ref": "#/$defs/scalar"},
                {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/scalar"}},
            ]
        },
        "duration": {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)?(ms|s|m|h|d)$"},
        "percent": {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)?\s?%$"},
    }
    return {"$schema": DRAFT, "title": "Kadence policy", **schema, "$defs": definitions}


def _fields(description: str, properties: Schema, required: tuple[str, ...] = ()) -> Schema:
    """A mapping of exactly these fields."""
    needed = {"required": list(required)} if required else {}
    return {
        "description": description,
        "type": "object",
        "additionalProperties": False,
        **needed,
        "properties": properties,
    }


def _cohort() -> Schema:
    fields = _fields(
        "Requests that belong together.",
        {
            "name": _name("Appears in metrics, in the ledger and on the dashboard; once in a file."),
            "match": {"$ref": "#/$defs/match"},
            "speculation": {"$ref": "#/$defs/speculation"},
            "slo": {"$ref": "#/$defs/slo"},
            "guard": {"$ref": "#/$defs/guard"},
            "budget": {"$ref": "#/$defs/budget"},
        },
        required=("name", "match", "speculation"),
    )
    for_latency = {"type": "object", "properties": {"objective": {"const": "latency"}}, "required": ["objective"]}
    return {
        **fields,
        "if": {"properties": {"speculation": for_latency}, "required": ["speculation"]},
        "then": {"required": ["slo"], "properties": {"slo": {"required": ["tpot_p95"]}}},
    }


def _match() -> Schema:
    def words(description: str) -> Schema:
        return {"description": description, "$ref": "#/$defs/words"}

    def by_name(description: str, names: Schema) -> Schema:
        allowed = {"$ref": "#/$defs/words"}
        return {"description": description, "type": "object", "propertyNames": names, "additionalProperties": allowed}

    tier = {"enum": list(SERVICE_TIERS)}
    return _fields(
        "Which requests: every field that is given must allow the request. `{}` takes all.",
        {
            "api_key": words("Names of API keys, compared literally."),
            "route": words("Patterns of the path, such as /v1/chat/completions or /v1/*."),
            "model": words("Patterns of the model's name."),
            "headers": by_name("Header name to patterns of its value.", {"pattern": r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+$"}),
            "user": words("Patterns of the request's `user`."),
            "metadata": by_name("Metadata key to patterns of its value.", {"type": "string"}),
            "service_tier": {
                "description": "Service tiers, compared literally.",
                "anyOf": [tier, {"type": "array", "minItems": 1, "items": tier}],
            },
        },
    )


def _speculation() -> Schema:
    rung = _whole(0, MAX_K)
    fields = _fields(
        "How K, the number of tokens drafted per sequence and step, is chosen.",
        {
            "tuner": {
                "description": "goodput: the best rung by what was measured; threshold: the deepest rung accepted"
                " often enough; fixed: always `start`.",
                "enum": list(TUNERS),
            },
            "ladder": {
                "description": "The only K this cohort may use, rising; 0 is no speculation.",
                "type": "array",
                "minItems": 1,
                "uniqueItems": True,
                "items": rung,
            },
            "start": {"description": "K before anything was measured: a rung.", **rung},
            "fallback": {"description": "K when the controller is gone and its last plan expired: a rung.", **rung},
            "acceptance_floor": {
                "description": "threshold only: 0% to 100%, conditional acceptance of a rung's last position.",
                "default": "50%",
                "$ref": "#/$defs/percent",
            },
            "objective": {
                "description": "goodput only: what the best rung is best at. latency needs slo.tpot_p95.",
                "default": "throughput",
                "enum": list(OBJECTIVES),
            },
            "slots": {
                "description": "goodput only: one K for all of a step (uniform), or positions that do not pay are"
                " dropped from it (ragged).",
                "default": "uniform",
                "enum": list(SLOTS),
            },
        },
        required=("tuner", "ladder", "start", "fallback"),
    )

    def with_tuner(*names: str) -> Schema:
        return {"properties": {"tuner": {"enum": list(names)}}, "required": ["tuner"]}

    without_floor: Schema = {"properties": {"acceptance_floor": False}}
    without_goodput: Schema = {"properties": {"objective": {"const": "throughput"}, "slots": False}}
    return {
        **fields,
        "allOf": [
            {"if": with_tuner("fixed", "goodput"), "then": without_floor},
            {"if": with_tuner("fixed", "threshold"), "then": without_goodput},
        ],
    }


def _slo() -> Schema:
    return _fields(
        "Latency objectives at the 95th percentile.",
        {
            "tpot_p95": _duration("Time per output token, 0.1ms to 60s: a K expected to be over it is not taken."),
            "ttft_p95": _duration("Time to the first token, 0.1ms to 1h: reported."),
        },
    )


def _guard() -> Schema:
    default = Guard()
    return _fields(
        "Limits on how K may move.",
        {
            "tolerance": _percent("Dead band, 0% to 50%.", f"{default.tolerance:.0%}"),
            "hold": _duration("Least time between two changes of K, 0s to 1h.", f"{default.hold_s:g}s"),
            "min_samples": {
                "description": "Examined drafts without which nothing is decided; after a drift alarm 20 do.",
                "default": default.min_samples,
                **_whole(1, MAX_SAMPLES),
            },
            "probe_every": _duration(
                "Time between two probes of a rung that was given up, 5s to 1d.", f"{default.probe_every_s:g}s"
            ),
        },
    )


def _budget() -> Schema:
    return _fields("Money for a period.", _money_for_a_period(), required=("usd", "period"))


def _named_budget() -> Schema:
    fields = _fields(
        "Money for a period, for a tenant, a cohort, or a tenant in a cohort.",
        {
            "name": _name("Appears in alerts, in metrics and in the answer to a refused request; once in a file."),
            "cohort": _name("Whose use counts: requests of this cohort."),
            "tenant": {
                "description": "Whose use counts: requests with the API key of this name.",
                "type": ["string", "number", "boolean"],
                "maxLength": MAX_TENANT,
            },
            **_money_for_a_period(),
        },
        required=("name", "usd", "period"),
    )
    return {**fields, "anyOf": [{"required": ["cohort"]}, {"required": ["tenant"]}]}


def _money_for_a_period() -> Schema:
    share = {"$ref": "#/$defs/percent"}
    return {
        "usd": {
            "description": "Dollars, over 0 and at most 1000000000.",
            "anyOf": [
                {"type": "number", "exclusiveMinimum": 0, "maximum": 10**9},
                {"type": "string", "pattern": r"^[+]?[0-9]+(\.[0-9]+)?$"},
            ],
        },
        "period": {"description": "Weeks begin on Monday.", "enum": list(BUDGET_PERIODS)},
        "timezone": {
            "description": "Where midnight is at which a period begins, such as Europe/Berlin.",
            "default": "UTC",
            "type": "string",
        },
        "soft": {
            "description": "Shares at which to alert, 1% to 100%, rising.",
            "default": "80%",
            "anyOf": [share, {"type": "array", "minItems": 1, "items": share}],
        },
        "on_exceeded": {
            "description": "warn: alert; reject: refuse requests with a 429; dial: pursue cost until the reset.",
            "enum": list(BUDGET_ACTIONS),
            "default": "warn",
        },
        "notify": {"description": "URL that is told of every alert.", "type": "string", "pattern": "^https?://"},
        "secret_env": {
            "description": "The environment variable that holds the secret by which those messages are signed.",
            "type": "string",
            "pattern": "^[A-Za-z_][A-Za-z0-9_]{0,127}$",
        },
    }


def _name(description: str) -> Schema:
    # YAML reads a name such as 007 as a number.
    pattern = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$"
    return {"description": description, "type": ["string", "number", "boolean"], "pattern": pattern}


def _experiment() -> Schema:
    return _fields(
        "The savings experiment: a share of time without speculation.",
        {
            "holdout": _percent("Share of time without speculation, 0.1% to 50%."),
            "unit": {"enum": list(EXPERIMENT_UNITS)},
            "window": _duration("Length of a window, 1m to 1d."),
            "burn_in": _duration("Time at a window's beginning that is not measured; shorter than it.", "0s"),
        },
        required=("holdout", "unit", "window"),
    )


def _whole(least: int, most: int) -> Schema:
    """A whole number, or one in quotes, which the parser takes too."""
    quoted = {"type": "string", "pattern": r"^[-+]?[0-9]{1,18}$"}
    return {"anyOf": [{"type": "integer", "minimum": least, "maximum": most}, quoted]}


def _duration(description: str, default: str | None = None) -> Schema:
    return {"description": description, **_default(default), "$ref": "#/$defs/duration"}


def _percent(description: str, default: str | None = None) -> Schema:
    return {"description": description, **_default(default), "$ref": "#/$defs/percent"}


def _default(value: str | None) -> Schema:
    return {} if value is None else {"default": value}
