"""Drafters that come with the project: found by the sha256 of the target's weights, never by its name.

workers/drafters/<target>/<kind>/ is a folder as `kadence train` writes it; workers/drafters/<target>/best.txt says, as
`drafter` would without a folder, which of them was measured best: `eagle`, `ngram+eagle`, or `ngram` itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

from transformers import AutoConfig

from controlplane.drafter_choice import AUTO, TRAINED, DrafterChoice, parse_drafter
from workers.models.weights_hash import weights_sha256
from workers.proposers.drafter_folder import DrafterError, TargetIdentity, read_card

SHIPPED = Path(__file__).parents[1] / "drafters"
BEST = "best.txt"
FALLBACK = DrafterChoice("ngram")


@dataclass(frozen=True, slots=True)
class ShippedDrafters:
    """Those of one target. folders: by kind. best: without a folder, as BEST says it."""

    target: TargetIdentity
    folders: Mapping[str, Path]
    best: DrafterChoice = FALLBACK


NONE_SHIPPED: Mapping[str, Path] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ResolvedDrafter:
    """choice: with its folder. asked: as it was set. shipped: kinds that come with the project for this model."""

    choice: DrafterChoice
    asked: DrafterChoice
    shipped: Mapping[str, Path] = field(default_factory=lambda: NONE_SHIPPED)

    @property
    def said(self) -> str:
        """For people, in a line: which drafter it is, and why."""
        if self.asked.kind != AUTO:
            trained = " (shipped for this model)" if self.asked.is_shipped else ""
            return f"{self.asked}{trained}"
        if not self.shipped:
            return f"{self.choice} (auto: none is shipped for this model)"
        shipped = f"{', '.join(self.shipped)} {'is' if len(self.shipped) == 1 else 'are'} shipped for this model"
        return f"{replace(self.choice, where='')} (auto: measured best; {shipped})"


def shipped_drafters(root: Path = SHIPPED) -> tuple[ShippedDrafters, ...]:
    """Of every target, in the order of their folders' names. Raises DrafterError where a folder or BEST is broken."""
    found = []
    for folder in sorted(path for path in root.glob("*") if path.is_dir()):
        cards = {path.parent.name: read_card(path.parent, path.parent.name) for path in folder.glob("*/drafter.json")}
        if not cards:
            continue
        folders = {kind: folder / kind for kind in TRAINED if kind in cards}
        targets = {card.target.weights: card.target for card in cards.values()}
        if len(targets) != 1:
            raise DrafterError(f"{folder}: its drafters are of {len(targets)} targets, and must be of one")
        found.append(ShippedDrafters(next(iter(targets.values())), folders, _best(folder / BEST, folders)))
    return tuple(found)


def shipped_for(model: Path, cache: Path, root: Path = SHIPPED) -> ShippedDrafters | None:
    """Those of the target in the folder `model`; its weights are hashed only where its sizes are those of one."""
    config = AutoConfig.from_pretrained(model).get_text_config()
    fit = [
        each
        for each in shipped_drafters(root)
        if (each.target.hidden, each.target.vocab) == (config.hidden_size, config.vocab_size)
    ]
    if not fit:
        return None
    weights = weights_sha256(model, cache)
    return next((each for each in fit if each.target.weights == weights), None)


def resolve_drafter(asked: DrafterChoice, name: str, model: Path, cache: Path, root: Path = SHIPPED) -> ResolvedDrafter:
    """Which drafter `asked` is for the target of that name in the folder `model`.

    `auto` without a shipped one is ngram. Raises DrafterError where a kind is asked for that is not shipped for it.
    """
    if not asked.is_shipped:
        return ResolvedDrafter(asked, asked)
    found = shipped_for(model, cache, root)
    folders = found.folders if found else NONE_SHIPPED
    wanted = asked if asked.kind != AUTO else found.best if found else FALLBACK
    if not wanted.is_trained:
        return ResolvedDrafter(wanted, asked, folders)
    if wanted.kind not in folders:
        raise DrafterError(
            f"drafter {asked}: none is shipped for the weights of {name} ({_listed(folders)}); "
            f"{how_to_train(wanted, name)}"
        )
    return ResolvedDrafter(replace(wanted, where=str(folders[wanted.kind])), asked, folders)


def how_to_train(choice: DrafterChoice, name: str) -> str:
    """The commands that make a drafter of that kind, and serve with it."""
    folder = f"drafters/{choice.kind}"
    prefix = str(replace(choice, where=""))
    return f"train one: kadence train {choice.kind} --model {name} --out {folder}, then --drafter {prefix}:{folder}"


def _listed(folders: Mapping[str, Path]) -> str:
    return f"shipped are: {', '.join(folders)}" if folders else "nor any other"


def _best(path: Path, folders: Mapping[str, Path]) -> DrafterChoice:
    """Raises DrafterError where it names none that is there."""
    try:
        choice = parse_drafter(path.read_text(encoding="utf-8").strip())
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DrafterError(f"{path}: must name the best of {', '.join(folders)} ({reason})") from error
    if choice.where or choice.kind not in (*folders, "ngram"):
        raise DrafterError(f"{path}: {choice} is none of {', '.join(folders)} or ngram")
    return choice
