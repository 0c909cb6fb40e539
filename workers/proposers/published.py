"""Drafters as others publish them, read into this project's own form: Medusa's heads, EAGLE-3's layer, `speculators`.

What would compute something else than our model does is refused with the field that does not fit. Such a checkpoint
does not say which weights its target had, so only sizes can be held against it.
"""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers import AutoConfig

from workers.proposers.drafter_folder import DrafterCard, DrafterError, Kind, TargetIdentity
from workers.proposers.eagle_model import EagleShape

WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin", "medusa_lm_head.safetensors", "medusa_lm_head.pt")
EAGLE_NAMES = {
    "fc.weight": "reduce.weight",
    "norm.weight": "norm.weight",
    "lm_head.weight": "head.weight",
    "{layer}.input_layernorm.weight": "token_norm.weight",
    "{layer}.hidden_norm.weight": "feature_norm.weight",
    "{layer}.post_attention_layernorm.weight": "mlp_norm.weight",
    **{f"{{layer}}.self_attn.{name}_proj.weight": f"{name}.weight" for name in "qkvo"},
    **{f"{{layer}}.mlp.{name}_proj.weight": f"{name}.weight" for name in ("gate", "up", "down")},
}
"""EAGLE-3's names and ours; its layer is called `midlayer`, that of `speculators` layers.0."""

NOT_NEEDED = {"embed_tokens.weight", "t2d", "d2t"}
MEDUSA_BLOCK = re.compile(r"(?:medusa_heads?\.)?(\d+)\.0\.linear\.(weight|bias)")
MEDUSA_HEAD = re.compile(r"(?:medusa_heads?\.)?(\d+)\.1\.weight")


@dataclass(frozen=True, slots=True)
class Published:
    """A checkpoint in our form: card, tensors by our names, and the draft vocabulary [size] int64."""

    card: DrafterCard
    tensors: dict[str, torch.Tensor]
    vocabulary: torch.Tensor


def read_published(folder: Path, target: TargetIdentity, target_layers: int) -> Published:
    """target_layers: decoder layers of the target. Raises DrafterError with the field that does not fit."""
    config, tensors = _config(folder), _tensors(folder)
    if any(MEDUSA_BLOCK.fullmatch(name) for name in tensors):
        return _medusa(folder, config, tensors, target)
    if "fc.weight" in tensors:
        return _eagle(folder, config, tensors, target, target_layers)
    raise DrafterError(
        f"{folder}: weights: neither Medusa's heads (0.0.linear.weight) nor EAGLE's layer (fc.weight) are in them"
    )


def layers_of(folder: Path) -> int:
    """Decoder layers of the target in that folder."""
    return int(AutoConfig.from_pretrained(folder).get_text_config().num_hidden_layers)


def _medusa(
    folder: Path, config: Mapping[str, Any], tensors: Mapping[str, torch.Tensor], target: TargetIdentity
) -> Published:
    layers = config.get("medusa_num_layers", 1)
    if layers != 1:
        raise DrafterError(f"{folder}: medusa_num_layers: is {layers}; heads of one residual block are served")
    blocks: dict[str, torch.Tensor] = {}
    own: dict[int, torch.Tensor] = {}
    for name, tensor in tensors.items():
        block, head = MEDUSA_BLOCK.fullmatch(name), MEDUSA_HEAD.fullmatch(name)
        if block:
            blocks[f"blocks.{int(block[1])}.{block[2]}"] = tensor
        elif head:
            own[int(head[1])] = tensor
        else:
            raise DrafterError(f"{folder}: {name}: is not known of Medusa's heads")
    count = 1 + max(int(name.split(".")[1]) for name in blocks)
    for name, shape in _medusa_shapes(count, target.hidden).items():
        _check(folder, name, blocks.get(name), shape)
    if own and sorted(own) != list(range(count)):
        raise DrafterError(f"{folder}: {min(set(range(count)) - set(own))}.1.weight: is missing")
    for number, tensor in own.items():
        _check(folder, f"{number}.1.weight", tensor, (target.vocab, target.hidden))
    made = {"heads": count, "own_rows": target.vocab if own else 0}
    heads = {f"heads.{number}.weight": tensor for number, tensor in own.items()}
    return Published(_card("medusa", target, count, made, folder), {**blocks, **heads}, torch.arange(target.vocab))


def _medusa_shapes(heads: int, hidden: int) -> dict[str, tuple[int, ...]]:
    sizes = {"weight": (hidden, hidden), "bias": (hidden,)}
    return {f"blocks.{head}.{name}": size for head in range(heads) for name, size in sizes.items()}


def _eagle(
    folder: Path,
    config: Mapping[str, Any],
    tensors: Mapping[str, torch.Tensor],
    target: TargetIdentity,
    target_layers: int,
) -> Published:
    layer = config.get("transformer_layer_config", config)
    width = tensors["fc.weight"].shape[1] / target.hidden
    if width == 2:
        raise DrafterError(f"{folder}: fc.weight: is that of EAGLE-1 and 2, which read one layer; EAGLE-3's is served")
    for name, wanted in (("hidden_size", target.hidden), ("num_hidden_layers", 1), ("hidden_act", "silu")):
        if layer.get(name, wanted) != wanted:
            raise DrafterError(f"{folder}: {name}: is {layer[name]}, must be {wanted}")
    for name in ("rope_scaling", "attention_bias", "mlp_bias"):
        if layer.get(name):
            raise DrafterError(f"{folder}: {name}: is {layer[name]}; it must be off")
    if config.get("norm_before_residual"):
        raise DrafterError(f"{folder}: norm_before_residual: is true; layers that keep the feature as it is are served")
    try:
        heads, rope = layer["num_attention_heads"], layer.get("rope_parameters") or {}
        shape = EagleShape(
            hidden=target.hidden,
            heads=heads,
            kv_heads=layer.get("num_key_value_heads") or heads,
            head_dim=layer.get("head_dim") or target.hidden // heads,
            intermediate=layer["intermediate_size"],
            features=_features(config, target_layers),
            rope_theta=float(layer.get("rope_theta") or rope.get("rope_theta") or 10000.0),
            rms_eps=float(layer.get("rms_norm_eps", 1e-6)),
            own_rows=tensors["lm_head.weight"].shape[0] if "lm_head.weight" in tensors else 0,
        )
    except KeyError as error:
        raise DrafterError(f"{folder}: config.json lacks {error.args[0]}") from error
    vocabulary = _draft_vocabulary(folder, tensors, shape.own_rows or target.vocab, target.vocab)
    name_of = "midlayer" if any(name.startswith("midlayer.") for name in tensors) else "layers.0"
    names = {theirs.format(layer=name_of): ours for theirs, ours in EAGLE_NAMES.items()}
    unknown = sorted(set(tensors) - set(names) - NOT_NEEDED)
    if unknown:
        raise DrafterError(f"{folder}: {unknown[0]}: is not known of EAGLE's layer")
    ours = {names[name]: tensor for name, tensor in tensors.items() if name in names}
    for name, size in _eagle_shapes(shape).items():
        _check(folder, next(theirs for theirs, own in names.items() if own == name), ours.get(name), size)
    # The rows of a head stand for ascending ids here.
    ids, order = vocabulary.sort()
    if shape.own_rows:
        ours["head.weight"] = ours["head.weight"][order]
    return Published(_card("eagle", target, 1, asdict(shape), folder), ours, ids)


def _features(config: Mapping[str, Any], target_layers: int) -> tuple[int, ...]:
    """Which layers' outputs are read: as the configuration says, else those of EAGLE-3's own code."""
    said = config.get("eagle_aux_hidden_state_layer_ids") or (config.get("eagle_config") or {}).get(
        "eagle_aux_hidden_state_layer_ids"
    )
    return tuple(said) if said else (2, target_layers // 2, target_layers - 3)


def _eagle_shapes(s: EagleShape) -> dict[str, tuple[int, ...]]:
    q, kv = s.heads * s.head_dim, s.kv_heads * s.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "reduce.weight": (s.hidden, len(s.features) * s.hidden),
        "q.weight": (q, 2 * s.hidden),
        "k.weight": (kv, 2 * s.hidden),
        "v.weight": (kv, 2 * s.hidden),
        "o.weight": (s.hidden, q),
        "gate.weight": (s.intermediate, s.hidden),
        "up.weight": (s.intermediate, s.hidden),
        "down.weight": (s.hidden, s.intermediate),
        **dict.fromkeys(("token_norm.weight", "feature_norm.weight", "mlp_norm.weight", "norm.weight"), (s.hidden,)),
    }
    return shapes | ({"head.weight": (s.own_rows, s.hidden)} if s.own_rows else {})


def _draft_vocabulary(folder: Path, tensors: Mapping[str, torch.Tensor], rows: int, vocab: int) -> torch.Tensor:
    """[rows] int64: `d2t` says how far the target's id of each row lies behind the row's number."""
    offsets = tensors.get("d2t")
    if offsets is None:
        if rows != vocab:
            raise DrafterError(f"{folder}: d2t: is missing, and {rows} draft tokens are not the target's {vocab}")
        return torch.arange(vocab)
    _check(folder, "d2t", offsets, (rows,))
    ids = torch.arange(rows) + offsets.to(torch.int64)
    if len(ids.unique()) < rows or not 0 <= int(ids.min()) <= int(ids.max()) < vocab:
        raise DrafterError(f"{folder}: d2t: must name {rows} different ids under {vocab}")
    return ids


def _card(kind: Kind, target: TargetIdentity, depth: int, shape: Mapping[str, Any], folder: Path) -> DrafterCard:
    return DrafterCard(kind, target, depth, shape, recipe={"imported_from": folder.name})


def _check(folder: Path, name: str, tensor: torch.Tensor | None, shape: tuple[int, ...]) -> None:
    if tensor is None:
        raise DrafterError(f"{folder}: {name}: is missing")
    if tuple(tensor.shape) != shape:
        raise DrafterError(f"{folder}: {name}: is {list(tensor.shape)}, must be {list(shape)}")


def _config(folder: Path) -> dict[str, Any]:
    try:
        said = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DrafterError(f"{folder}: config.json cannot be read ({error})") from error
    if not isinstance(said, dict):
        raise DrafterError(f"{folder}: config.json must be an object")
    return said


def _tensors(folder: Path) -> dict[str, torch.Tensor]:
    path = next((folder / name for name in WEIGHT_FILES if (folder / name).exists()), None)
    if path is None:
        raise DrafterError(f"{folder}: weights: none of {', '.join(WEIGHT_FILES)} is there")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        loaded: dict[str, torch.Tensor] = torch.load(path, map_location="cpu", weights_only=True)
        return loaded
    except (OSError, SafetensorError, RuntimeError, pickle.UnpicklingError, EOFError) as error:
        raise DrafterError(f"{folder}: {path.name} cannot be read ({str(error).splitlines()[0]})") from error
