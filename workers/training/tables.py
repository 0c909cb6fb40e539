"""What came of a drafter, as tables on a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.table import Table

from workers.proposers.drafter_folder import DrafterCard
from workers.training.evaluate import Acceptance
from workers.training.ngram_first import CHOSEN_AT, MATCH_ALONE, NGramFirst
from workers.training.published_ranges import range_text
from workers.training.step_cost import StepCost, drafting_share, speed_ups
from workers.training.trees import TreeWorth


def acceptance_table(card: DrafterCard, acceptance: Mapping[str, Mapping[str, Acceptance]]) -> Table:
    """Tokens a step and acceptance by position, a row for each domain and mode."""
    made = Table(title=f"{card.kind} for {card.target.name}, held-out prompts")
    for name in (
        "domain",
        "mode",
        "acceptance by position",
        "tokens a step at K",
        "repeated 8-grams",
        "without loops",
        "published",
    ):
        made.add_column(name)
    for domain, modes in acceptance.items():
        for mode, sums in sorted(modes.items()):
            positions = " ".join(f"{each:.2f}" for each in sums.by_position)
            lengths = " ".join(f"{k}: {sums.emitted[k] / steps:.2f}" for k, steps in sums.steps.items() if steps)
            fresh = "" if sums.without_loops is None else f"{sums.without_loops:.0%}"
            loops = f"{sums.loops / max(sums.answers, 1):.0%}"
            made.add_row(domain, mode, positions, lengths, loops, fresh, range_text(domain))
    return made


def tree_table(trees: Mapping[int, TreeWorth], chains: Mapping[str, Mapping[str, Acceptance]]) -> Table:
    """Tokens a step of the best tree of each size: a walk along greedy answers, and what the ranks let expect."""
    made = Table(title="trees, chosen by one half of the prompts and walked on the other")
    domains = sorted(chains)
    for name in ("nodes", "depth", *(f"{domain} {what}" for domain in domains for what in ("walked", "expected"))):
        made.add_column(name)
    for nodes, worth in trees.items():
        expected = [worth.expected.get(domain, {}).get("greedy") for domain in domains]
        walked = [worth.walked.get(domain) for domain in domains]
        cells = [_number(v) for pair in zip(walked, expected, strict=True) for v in pair]
        made.add_row(str(nodes), str(tree_depth(worth.parents)), *cells)
    return made


def ngram_first_table(together: NGramFirst, drafter: Mapping[str, Mapping[str, Acceptance]]) -> Table:
    """Tokens a step of the n-gram index alone, of the drafter alone, and of the index first and then the drafter."""
    tried = "; ".join(
        f"{match}: {', '.join(f'{value:.2f}' for value in modes.values())}"
        for match, modes in together.by_match.items()
    )
    modes = ", ".join(next(iter(together.by_match.values()), {}))
    made = Table(
        title="the n-gram index first, then the drafter: tokens a step at K",
        caption=f"shortest match {together.min_match} (the index alone: {MATCH_ALONE}), chosen by one half of the "
        f"prompts and walked on the other; at K {CHOSEN_AT} by shortest match ({modes}): {tried}",
    )
    for name in ("domain", "mode", "n-gram alone", "drafter alone", "n-gram, then drafter", "steps of the n-gram"):
        made.add_column(name)
    for domain, by_mode in together.first.items():
        for mode, sums in sorted(by_mode.items()):
            alone = drafter[domain][mode]
            lengths = {k: alone.emitted[k] / steps for k, steps in alone.steps.items() if steps}
            cells = (_by_k(each) for each in (together.alone[domain][mode].lengths, lengths, sums.lengths))
            made.add_row(domain, mode, *cells, " ".join(f"{k}: {share:.0%}" for k, share in sums.share.items()))
    return made


def cost_table(costs: Sequence[StepCost], acceptance: Mapping[str, Mapping[str, Acceptance]]) -> Table:
    """Seconds of a step by K, and the speed-up that they promise each domain."""
    made = Table(title="steps of one sequence on this machine, and the speed-up they promise")
    share = drafting_share(costs)
    rows = [(d, m, speed_ups(sums, costs)) for d, modes in acceptance.items() for m, sums in sorted(modes.items())]
    for name in ("K", "step ms", "drafting ms", "a token of a plain step", *(f"{d} {m}" for d, m, _ in rows)):
        made.add_column(name)
    for cost in costs:
        promised = [_number(found.get(cost.k)) for _, _, found in rows]
        drafting = "" if cost.k not in share else f"{share[cost.k]:.1%}"
        step, draft = f"{1000 * cost.seconds:.1f}", f"{1000 * cost.draft_seconds:.2f}"
        made.add_row(str(cost.k), step, draft, drafting, *promised)
    return made


def tree_depth(parents: Sequence[int]) -> int:
    depths: list[int] = []
    for parent in parents:
        depths.append(1 if parent < 0 else depths[parent] + 1)
    return max(depths, default=0)


def _by_k(values: Mapping[int, float]) -> str:
    return " ".join(f"{k}: {value:.2f}" for k, value in values.items())


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
