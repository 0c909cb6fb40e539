"""README.md of a drafter's folder, made from its drafter.json alone: the same card gives the same text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from workers.proposers.drafter_folder import DrafterCard, read_card
from workers.training.evaluate import ALL
from workers.training.published_ranges import against_published, range_text

NAME = "README.md"
OURS = "Apache-2.0"
"""Licence of this project, and of drafters that are made of its prompts."""

WHAT = {
    "eagle": "One decoder layer that continues the target's features (EAGLE-3), with its embeddings and LM head.",
    "medusa": "Residual heads over the target's last hidden state (Medusa), before the target's LM head.",
    "draft": "Two of the target's layers, distilled, between the target's embeddings and LM head.",
}


def write_model_card(folder: Path) -> None:
    """README.md, anew from the folder's drafter.json. Raises DrafterError where that cannot be read."""
    (folder / NAME).write_text(model_card(read_card(folder)), encoding="utf-8")


def model_card(card: DrafterCard) -> str:
    """What people want to know of a drafter; no date and no machine's path, so that a run repeated says the same."""
    parts = (_head, _target, _data, _recipe, _acceptance, _behind_ngrams, _cost, _limits)
    return "\n\n".join(text for part in parts if (text := "\n".join(part(card)))) + "\n"


def _head(card: DrafterCard) -> Iterator[str]:
    yield f"# {card.kind} for {_name(card)}"
    yield ""
    yield WHAT[card.kind]
    yield "It drafts tokens that the target then checks: it makes answers faster and cannot change them."
    if (own := card.recipe.get("parameters")) and (of := card.recipe.get("target_parameters")):
        yield (
            f"It adds {own:,} parameters to the target's {of:,} ({own / of:.2%}), in bf16, and drafts from "
            f"{card.recipe['draft_vocabulary']:,} of its {card.target.vocab:,} tokens."
        )


def _target(card: DrafterCard) -> Iterator[str]:
    yield "## Target and licence"
    yield f"- Target: {_name(card)}, weights sha256 `{card.target.weights}`; refused with any other."
    yield f"- Licence of the target: {card.licence or 'not said in its folder'}."
    if _is_imported(card):
        yield "- Licence of this drafter: as whoever published it says."
    elif _is_ours(card):
        yield f"- Licence of this drafter: {OURS}, that of Kadence, with which it was made."
    else:
        yield "- Licence of this drafter: for whoever trained it to say."


def _data(card: DrafterCard) -> Iterator[str]:
    yield "## Data"
    domains, recipe = card.recipe.get("domains"), card.recipe
    if _is_imported(card):
        yield "Trained elsewhere and taken over by `kadence train import`: see its source."
        return
    if _is_ours(card):
        yield "The prompts that come with Kadence, split by template into taught and held-out ones."
        yield "HumanEval's prompts are not among them and were never trained on."
    else:
        yield "Prompts of the user's own."
    yield (
        f"Answered by the target itself, greedily and at temperature {recipe.get('temperature', 0.7)} (seeds "
        f"{', '.join(map(str, recipe['seeds']))}), at most {recipe['max_tokens']} tokens each: {recipe['answers']} "
        f"answers, {recipe['answer_tokens']:,} of their tokens to learn from. No other text was used."
    )
    if domains:
        yield ""
        yield from _table(
            ("domain", "taught prompts", "answers", "tokens", "held-out prompts", "answers"),
            (
                (
                    domain,
                    *_counts(domains["taught"].get(domain), ("prompts", "answers", "tokens")),
                    *_counts(domains["held_out"].get(domain), ("prompts", "answers")),
                )
                for domain in sorted({*domains["taught"], *domains["held_out"]})
            ),
        )


def _recipe(card: DrafterCard) -> Iterator[str]:
    recipe = card.recipe
    if _is_imported(card):
        return
    own = "" if _is_ours(card) else " --prompts PROMPTS"
    samples = len(recipe["seeds"])
    taken = f"--answers {recipe['answers']}" + (f" --samples {samples}" if samples > 1 else "")
    yield "## Recipe"
    yield (
        f"{recipe['steps']} steps of {recipe['batch_size']} answers, Muon (matrices) and AdamW (norms), learning rate "
        f"{recipe['learning_rate']:g} with a cosine to a tenth after {recipe['warmup']} steps, weight decay "
        f"{recipe['weight_decay']:g}; the target's own distribution as teacher, position j weighted "
        f"{recipe['decay']:g}^j, {card.depth} positions; "
        f"seed {recipe['seed']}. To repeat it:"
    )
    yield ""
    yield "```"
    yield (
        f"kadence train {card.kind} --model {_name(card)}{own} {taken} "
        f"--steps {recipe['steps']} --learning-rate {recipe['learning_rate']:g} --seed {recipe['seed']} --out FOLDER"
    )
    yield f"kadence train evaluate FOLDER --model {_name(card)}{own} {taken} --seed {recipe['seed']}"
    yield "```"
    yield "Weights are equal to the bit where machine type, thread count and versions are."


def _acceptance(card: DrafterCard) -> Iterator[str]:
    if not card.acceptance:
        return
    yield "## Acceptance"
    yield (
        "On held-out prompts. By position: how often a draft token is kept when those before it were. K = ...: tokens "
        "a step, the bonus token included. Without loops: kept of all drafts where the text does not repeat itself; "
        "how much does is the share of repeated 8-grams."
    )
    yield ""
    ks = sorted({int(k) for modes in card.acceptance.values() for each in modes.values() for k in _lengths(each)})
    names = (
        "domain",
        "mode",
        "by position",
        *(f"K = {k}" for k in ks),
        "repeated 8-grams",
        "without loops",
        "published",
    )
    rows = (
        (
            domain,
            mode,
            " ".join(f"{each:.2f}" for each in found["acceptance_by_position"]),
            *(_number(_lengths(found).get(str(k))) for k in ks),
            _share(found["repeated_8gram_share"]),
            _share(found["acceptance_without_loops"]),
            range_text(domain),
        )
        for domain, modes in card.acceptance.items()
        for mode, found in sorted(modes.items())
    )
    yield from _table(names, rows)
    yield ""
    yield "Published ranges are of models about a hundred times this size, with drafters trained for long."
    yield from filter(None, (_order(card, mode) for mode in sorted({m for by in card.acceptance.values() for m in by})))


def _order(card: DrafterCard, mode: str) -> str:
    """Where the domains' order is the published one; empty where there is none to compare."""
    measured = {
        domain: modes[mode]["acceptance_without_loops"]
        for domain, modes in card.acceptance.items()
        if domain != ALL and mode in modes and modes[mode]["acceptance_without_loops"] is not None
    }
    pairs, others = against_published(measured)
    if not pairs:
        return ""
    but = "".join(f"; here {higher} is above {lower}" for higher, lower in others)
    return f"- {mode}: the order of domains is the published one in {pairs - len(others)} of {pairs} pairs{but}."


def _behind_ngrams(card: DrafterCard) -> Iterator[str]:
    """Where `kadence train evaluate` has measured it behind the n-gram index."""
    said = card.ngram_first
    if not said:
        return
    ks = sorted({int(k) for modes in said["domains"].values() for each in modes.values() for k in _lengths(each)})
    yield f"## Behind the n-gram index (`ngram+{card.kind}`)"
    yield (
        f"Tokens a step where the index drafts first, from a match of {said['min_match']} tokens on, and this drafter "
        "where it is silent; in brackets the index alone."
    )
    yield ""
    rows = (
        (
            domain,
            mode,
            *(
                f"{_number(_lengths(found).get(str(k)))} ({_number(_lengths(found['ngram_alone']).get(str(k)))})"
                for k in ks
            ),
        )
        for domain, modes in said["domains"].items()
        for mode, found in sorted(modes.items())
    )
    yield from _table(("domain", "mode", *(f"K = {k}" for k in ks)), rows)


def _cost(card: DrafterCard) -> Iterator[str]:
    if not card.cost:
        return
    yield "## Cost"
    yield f"A step of one sequence with {card.cost['threads']} CPU threads ({card.cost['sku']}), drafting included:"
    yield ""
    rows = (
        (f"{each['k']}", f"{1000 * each['seconds']:.1f}", f"{1000 * each['draft_seconds']:.2f}")
        for each in card.cost["steps"]
    )
    yield from _table(("K", "step, ms", "of it drafting, ms"), rows)


def _limits(card: DrafterCard) -> Iterator[str]:
    yield "## Limits"
    yield "- It drafts for these weights alone: a fine-tuned or requantised target wants a drafter of its own."
    yield (
        "- A small target repeats itself when it decodes greedily, and loops make any drafter look good: read the "
        "column without them."
    )
    if _is_ours(card):
        yield "- Taught English chats about code, JSON, contracts and fiction; of other texts nothing was measured."
    yield (
        "- Whether a K pays depends on the machine and its load: Kadence measures that, and goes down to K = 0 where "
        "none does."
    )


def _name(card: DrafterCard) -> str:
    """Of the target, without the folders above where it was given as one of this machine."""
    name = card.target.name
    return Path(name).name if name.startswith(("/", ".", "~")) else name


def _is_imported(card: DrafterCard) -> bool:
    return "steps" not in card.recipe


def _is_ours(card: DrafterCard) -> bool:
    return card.recipe.get("prompts_from") == "the project"


def _lengths(found: Mapping[str, Any]) -> Mapping[str, float]:
    """Tokens a step by K, as text."""
    return {str(k): value for k, value in found["acceptance_length"].items()}


def _counts(found: Mapping[str, int] | None, names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"{found[name]:,}" if found else "0" for name in names)


def _table(names: tuple[str, ...], rows: Any) -> Iterator[str]:
    yield f"| {' | '.join(names)} |"
    yield f"|{'---|' * len(names)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"
