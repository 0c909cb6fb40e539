"""A module without its large weights: what a compiler needs to see of it, a few hundred kilobytes for any model."""

from __future__ import annotations

import copy
import hashlib
import inspect
import json
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from transformers import PreTrainedModel

from kernels import native_build
from kernels.packed_linear import WeightBank
from workers.compiled import opaque_attention, packaging
from workers.compiled.form import Form, PackedLinear, linears, weight_of

BAKED_BYTES_MOST = 32 << 20
"""Of weights that are no products with rows, and so become part of the compiled graph: norms, tables of positions."""
_OF_A_PLACE = ("_name_or_path", "transformers_version", "_attn_implementation_internal", "architectures")


class CannotCompile(RuntimeError):
    """Why a model, or this machine, stays with the eager step."""


def pack(form: Form) -> WeightBank:
    """The weights of its linear layers, packed; number i is that of linears(form)[i]."""
    if form.bank is not None:
        return form.bank
    bank = WeightBank()
    for layer in linears(form):
        bank.add(weight_of(layer), layer.bias)
    return bank


def strip(form: Form) -> Form:
    """A copy that names its weights by number and shares no tensor with `form`.

    Raises CannotCompile where too much is left.
    """
    memo: dict[int, Any] = {id(form.bank): None}
    for number, layer in enumerate(linears(form)):
        memo[id(layer)] = PackedLinear(number, len(weight_of(layer)))
    for model in form.modules():
        if isinstance(model, PreTrainedModel):  # it is given embedded tokens
            memo[id(model.get_input_embeddings())] = nn.Identity()
    baked = _bytes_left(form, memo)
    if baked > BAKED_BYTES_MOST:
        raise CannotCompile(f"{baked >> 20} MB of its weights are in layers that are no plain products")
    skeleton = copy.deepcopy(form, memo).requires_grad_(False)
    skeleton.prepare()
    return skeleton


def _bytes_left(module: nn.Module, memo: dict[int, Any]) -> int:
    if id(module) in memo:
        return 0
    own = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
    return sum(tensor.nbytes for tensor in own) + sum(_bytes_left(child, memo) for child in module.children())


def family(skeleton: Form) -> str:
    """Names what stays of a form from version to version, and however its weights are held: its products' sizes."""
    sizes = [module.size for module in skeleton.modules() if isinstance(module, PackedLinear)]
    return hashlib.sha256(f"{type(skeleton).__name__} {sizes}".encode()).hexdigest()[:8]


def fingerprint(skeleton: Form) -> str:
    """Names what the graph of a skeleton is made of: structure, small weights, code, versions, CPU and threads."""
    identity = hashlib.sha256()

    def add(part: str | bytes) -> None:
        part = part.encode() if isinstance(part, str) else part
        identity.update(f"{len(part)}\0".encode() + part)

    add(f"{torch.__version__} {transformers.__version__} {torch.get_num_threads()}")
    add(native_build.cpu_identity())
    add(repr(skeleton))
    for name, tensor in (*skeleton.named_parameters(), *skeleton.named_buffers()):
        add(f"{name} {tuple(tensor.shape)} {tensor.dtype}")
        add(tensor.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    for module in skeleton.modules():
        if isinstance(module, PreTrainedModel):
            config = {k: v for k, v in module.config.to_dict().items() if k not in _OF_A_PLACE}
            add(json.dumps(config, sort_keys=True, default=str))
    files = {inspect.getsourcefile(type(module)) for module in skeleton.modules()}
    files |= {inspect.getsourcefile(module) for module in (packaging, opaque_attention)}
    for path in sorted(file for file in files if file):
        if not path.startswith(str(Path(torch.__file__).parent)):
            add(Path(path).read_bytes())
    return identity.hexdigest()[:32]
