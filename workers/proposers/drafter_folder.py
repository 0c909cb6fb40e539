"""A trained drafter on disk: what it is and of which target (drafter.json), and its tensors (model.safetensors).

A drafter of another target would draft nonsense: it could not change the text, only waste time. It is refused with the
field that does not fit.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoConfig, PreTrainedConfig

from workers.models.weights_hash import weights_sha256
from workers.proposers.eagle_model import EagleModel, EagleShape
from workers.proposers.medusa_model import MedusaModel
from workers.proposers.student_model import student_decoder
from workers.token_tree import read_trees

FORMAT = 1
VOCABULARY = "draft_vocabulary"

Kind = Literal["eagle", "medusa", "draft"]
M = TypeVar("M", bound=nn.Module)


class DrafterError(ValueError):
    """A drafter's folder that cannot be used with this target; one line with the reason."""


@dataclass(frozen=True, slots=True)
class TargetIdentity:
    """Which target: name for people, weights: sha256 of its weight files, and two sizes that must fit."""

    name: str
    weights: str
    hidden: int
    vocab: int


def identify(name: str, folder: Path, cache: Path) -> TargetIdentity:
    """The target in that folder, from its configuration and its weight files; their hash is kept in `cache`."""
    config = AutoConfig.from_pretrained(folder).get_text_config()
    return TargetIdentity(name, weights_sha256(folder, cache), config.hidden_size, config.vocab_size)


@dataclass(frozen=True, slots=True)
class DrafterCard:
    """What drafter.json says. depth: positions it was taught. shape: of the kind's model. licence: the target's, where
    its folder says it. cost: of steps, where they were measured. trees: parents of the best
    tree by number of nodes; ngram_first: `min_match` of an n-gram index before it, and what both are worth: these from
    `kadence train evaluate`. The rest is for people.
    """

    kind: Kind
    target: TargetIdentity
    depth: int
    shape: Mapping[str, Any]
    licence: str = ""
    recipe: Mapping[str, Any] = field(default_factory=dict)
    cost: Mapping[str, Any] = field(default_factory=dict)
    acceptance: Mapping[str, Any] = field(default_factory=dict)
    trees: Mapping[str, Any] = field(default_factory=dict)
    ngram_first: Mapping[str, Any] = field(default_factory=dict)

    @property
    def min_match(self) -> int | None:
        """Tokens that must match before an n-gram index speaks in its place; None where it was not evaluated."""
        return self.ngram_first.get("min_match")


def save_drafter(
    folder: Path, card: DrafterCard, tensors: Mapping[str, torch.Tensor], vocabulary: torch.Tensor
) -> None:
    """Write the folder; weights in bf16, vocabulary: [size] int64, ascending ids of the target."""
    folder.mkdir(parents=True, exist_ok=True)
    stored = {name: t.detach().to(torch.bfloat16).contiguous() for name, t in tensors.items()}
    save_file({**stored, VOCABULARY: vocabulary.to(torch.int32)}, folder / "model.safetensors")
    write_card(folder, card)


def write_card(folder: Path, card: DrafterCard) -> None:
    """drafter.json, anew."""
    said = json.dumps({"format": FORMAT, **asdict(card)}, indent=2)
    (folder / "drafter.json").write_text(said + "\n", encoding="utf-8")


def read_card(folder: Path, kind: str | None = None) -> DrafterCard:
    """drafter.json of that folder, of a drafter of that kind (None: any). Raises DrafterError."""
    path = folder / "drafter.json"
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DrafterError(f"drafter {folder}: {path.name} cannot be read ({reason})") from error
    if not isinstance(said, dict) or said.pop("format", None) != FORMAT:
        raise DrafterError(f"drafter {folder}: format: must be {FORMAT}; train it anew with this version")
    try:
        card = DrafterCard(**{**said, "target": TargetIdentity(**said["target"])})
    except (KeyError, TypeError) as error:
        raise DrafterError(f"drafter {folder}: {path.name} lacks or does not know a field ({error})") from error
    if card.kind not in get_args(Kind):
        raise DrafterError(f"drafter {folder}: kind: {card.kind!r} is none of {', '.join(get_args(Kind))}")
    if card.min_match is not None and (not isinstance(card.min_match, int) or card.min_match < 1):
        raise DrafterError(f"drafter {folder}: ngram_first.min_match: is {card.min_match!r}, must be an integer over 0")
    try:
        read_trees(card.trees)
    except (AttributeError, ValueError) as error:
        raise DrafterError(f"drafter {folder}: {error}") from error
    if kind is not None and card.kind != kind:
        raise DrafterError(f"drafter {folder}: kind: is {card.kind}, not {kind}")
    return card


def check_target(folder: Path, card: DrafterCard, target: TargetIdentity) -> None:
    """Raises DrafterError naming the first field in which the drafter's target is not this one."""
    for name in ("hidden", "vocab", "weights"):
        ours, theirs = getattr(target, name), getattr(card.target, name)
        if ours != theirs:
            raise DrafterError(
                f"drafter {folder} was trained for {card.target.name} ({name} {_short(theirs)}), "
                f"not for {target.name} ({name} {_short(ours)})"
            )


def load_tensors(
    folder: Path, expected: Mapping[str, torch.Size], vocab: int
) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """The tensors by name and the draft vocabulary [size] int64. expected: shapes. Raises DrafterError."""
    path = folder / "model.safetensors"
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise DrafterError(f"drafter {folder}: {path.name} cannot be read ({error})") from error
    vocabulary = tensors.pop(VOCABULARY, None)
    if vocabulary is None:
        raise DrafterError(f"drafter {folder}: {path.name} has no {VOCABULARY}")
    for name, shape in expected.items():
        if name not in tensors:
            raise DrafterError(f"drafter {folder}: {path.name} has no {name}")
        if tensors[name].shape != shape:
            raise DrafterError(f"drafter {folder}: {name}: is {list(tensors[name].shape)}, must be {list(shape)}")
    unknown = sorted(set(tensors) - set(expected))
    if unknown:
        raise DrafterError(f"drafter {folder}: {path.name} has {unknown[0]}, which this kind of drafter does not know")
    ids = vocabulary.to(torch.int64)
    if not len(ids) or bool((ids[1:] <= ids[:-1]).any()) or int(ids[0]) < 0 or int(ids[-1]) >= vocab:
        raise DrafterError(f"drafter {folder}: {VOCABULARY}: must be rising ids under {vocab}")
    return tensors, ids


def load_eagle(folder: Path, target: TargetIdentity) -> tuple[EagleModel, torch.Tensor, DrafterCard]:
    """The model in bf16, its draft vocabulary, and its card. Raises DrafterError."""

    def made(shape: Mapping[str, Any]) -> EagleModel:
        return EagleModel(EagleShape(**{**shape, "features": tuple(shape["features"])}))

    return _load(folder, target, "eagle", made)


def load_medusa(folder: Path, target: TargetIdentity) -> tuple[MedusaModel, torch.Tensor, DrafterCard]:
    """The heads in bf16, their draft vocabulary, and their card. Raises DrafterError."""
    return _load(folder, target, "medusa", lambda shape: MedusaModel(target.hidden, **shape))


def load_student(
    folder: Path, target: TargetIdentity, config: PreTrainedConfig
) -> tuple[Any, torch.Tensor, DrafterCard]:
    """The student's decoder in bf16, its draft vocabulary, and its card. config: the target's. Raises DrafterError."""
    return _load(folder, target, "draft", lambda shape: student_decoder(config, shape["layers"]))


def _load(
    folder: Path, target: TargetIdentity, kind: Kind, made: Callable[[Mapping[str, Any]], M]
) -> tuple[M, torch.Tensor, DrafterCard]:
    """made: the untrained model of a card's shape."""
    card = read_card(folder, kind)
    check_target(folder, card, target)
    try:
        model = made(card.shape).to(torch.bfloat16)
        model.train(False)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise DrafterError(f"drafter {folder}: shape: {error}") from error
    expected = {name: tensor.shape for name, tensor in model.state_dict().items()}
    tensors, vocabulary = load_tensors(folder, expected, target.vocab)
    model.load_state_dict(tensors)
    return model, vocabulary, card


def _short(value: object) -> str:
    return str(value)[:12]
