"""Int8 weights of a target on a CPU: its linear layers read them from a bank, eagerly and compiled alike.

A weight is held as int8 by output channel beside a scale in float32; rows stay in bfloat16. Embeddings and norms stay
as they are.
"""

from __future__ import annotations

import torch
from torch import nn
from transformers import PreTrainedModel

from controlplane.settings import Settings
from kernels.packed_linear import BackendUnavailable, WeightBank, quantise
from workers.compiled.compiler import obstacle
from workers.compiled.form import PackedLinear, linears, weight_of
from workers.compiled.skeleton import BAKED_BYTES_MOST

INT8 = "int8"


class QuantizationError(ValueError):
    """Weights cannot be held as `quantization` asks; one line with the fix."""


def check_quantization(settings: Settings, device: torch.device) -> None:
    """What can be told without the model. Raises QuantizationError."""
    if settings.quantization == "none":
        return
    asked = f"quantization: {settings.quantization}"
    if device.type != "cpu":
        raise QuantizationError(f"{asked} is for the CPU alone: set device: cpu, or quantization: none")
    if settings.dtype not in ("auto", "bfloat16"):
        raise QuantizationError(f"{asked} needs rows in bfloat16, not {settings.dtype}: set dtype: auto")
    if (reason := obstacle()) is not None:
        raise QuantizationError(
            f"{asked} needs a C++ compiler, and {reason}: install g++ (Debian, Ubuntu: apt-get install g++), "
            "or set quantization: none"
        )


def in_int8(model: PreTrainedModel, name: str) -> WeightBank:
    """Replace the model's linear layers by such that read int8 weights of the bank that is returned.

    One after the other, so that no second copy of all weights is there at any time. Raises QuantizationError where the
    operation cannot be built, or much of the model is no plain product.
    """
    layers = linears(model)
    left = _bytes_beside(model, layers)
    if left > BAKED_BYTES_MOST:
        raise QuantizationError(
            f"model {name!r} has {left >> 20} MB of weights in layers that are no plain products, which stay as they "
            "are: set quantization: none"
        )
    try:
        bank = WeightBank()
    except BackendUnavailable as error:
        raise QuantizationError(f"quantization: int8 cannot be had: {error}; set quantization: none") from error
    for layer in layers:
        weight, scale = quantise(weight_of(layer))
        number = bank.add(weight, layer.bias, scale)
        _replace(model, layer, PackedLinear(number, len(weight), INT8))
    return bank


def _bytes_beside(model: PreTrainedModel, layers: list[nn.Module]) -> int:
    """Of weights that belong neither to these layers nor to the embedding of tokens."""
    counted = {id(weight) for layer in (*layers, model.get_input_embeddings()) for weight in layer.parameters()}
    return sum(weight.nbytes for weight in model.parameters() if id(weight) not in counted)


def _replace(model: nn.Module, layer: nn.Module, by: nn.Module) -> None:
    for module in model.modules():
        for name, child in module.named_children():
            if child is layer:
                setattr(module, name, by)
