"""What the ledger calls a model: its name, and how its weights are held where that is not as they came."""

from __future__ import annotations

from typing import Literal, get_args

Quantization = Literal["none", "int8"]


def labelled(model: str, quantization: Quantization) -> str:
    """Weights that are held otherwise say other things at another cost: they have another name in windows and bills."""
    return model if quantization == "none" else f"{model}:{quantization}"


def asked_for(label: str) -> str:
    """The name by which clients ask for it."""
    for quantization in get_args(Quantization):
        label = label.removesuffix(labelled("", quantization))
    return label
