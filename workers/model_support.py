"""Which models can be served: those whose whole state is attention over keys and values that can be overwritten."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from transformers import PretrainedConfig

KNOWN_LAYERS = {"full_attention", "sliding_attention"}


class UnsupportedModel(ValueError):
    """The model cannot be served: its state cannot be rolled back, or its attention is not one that we compute."""


def check_config(config: PretrainedConfig, name: str) -> None:
    """Raise UnsupportedModel where the configuration alone says that the model cannot be served."""
    config = config.get_text_config()
    special = sorted(set(getattr(config, "layer_types", None) or ()) - KNOWN_LAYERS)
    # A recurrent or convolutional layer keeps rejected tokens in its state; an unknown mask would be ignored.
    if special or getattr(config, "num_attention_heads", None) is None:
        kinds = ", ".join(special) or "no attention"
        raise UnsupportedModel(
            f"model {name!r} ({config.model_type}) has layers of kind {kinds}; Kadence serves models of "
            "full and sliding-window attention, whose state can be rolled back when a draft is rejected"
        )


def check_windows(windows: Mapping[int, int | None], config: PretrainedConfig, name: str) -> None:
    """Raise UnsupportedModel unless every layer asked for attention over the slots, and for the window it should.

    windows: layer -> sliding window of its attention call, tokens.
    """
    config = config.get_text_config()
    if len(windows) != config.num_hidden_layers:
        raise UnsupportedModel(
            f"model {name!r} ({config.model_type}) computes attention of its own in "
            f"{config.num_hidden_layers - len(windows)} of {config.num_hidden_layers} layers"
        )
    for layer, window in windows.items():
        expected = _window(config, layer)
        if window != expected:
            raise UnsupportedModel(
                f"model {name!r} ({config.model_type}) asks for an attention window of {window} in layer {layer}, "
                f"where its configuration says {expected}"
            )


def _window(config: PretrainedConfig, layer: int) -> int | None:
    """Sliding window of a layer by the configuration, tokens; None is full attention."""
    types = getattr(config, "layer_types", None)
    if types and types[layer] == "full_attention":
        return None
    window: int | None = getattr(config, "sliding_window", None)
    return window


def context_limit(config: PretrainedConfig, wanted: int) -> int:
    """Tokens of prompt and completion together: as `wanted`, or as many as the model was made for.

    Some models turn their position angles differently once any text in the batch is long (longrope). That would change
    the text of the others, so such a model stays within the length where it does not.
    """
    config = config.get_text_config()
    limits = [getattr(config, "max_position_embeddings", None)]
    for rope in _rotary(getattr(config, "rope_parameters", None) or {}):
        if rope.get("rope_type") == "longrope":
            limits.append(rope.get("original_max_position_embeddings"))
    return min(wanted, *(limit for limit in limits if limit), wanted)


def _rotary(parameters: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The rotary settings, of which a model may have one or one per kind of layer."""
    nested = [value for value in parameters.values() if isinstance(value, Mapping)]
    return nested or [parameters]


def end_token_ids(eos: int | list[int] | None) -> frozenset[int]:
    return frozenset([] if eos is None else [eos] if isinstance(eos, int) else eos)


def cache_argument(model_class: type) -> str:
    """What its forward calls the cache: transformers 5.17 says past_key_values, 5.24 says cache."""
    forward: Any = model_class.forward  # type: ignore[attr-defined]
    while hasattr(forward, "__wrapped__"):
        forward = forward.__wrapped__
    return "cache" if "cache" in inspect.signature(forward).parameters else "past_key_values"
