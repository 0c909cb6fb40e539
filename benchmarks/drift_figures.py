"""Runs of phases in, figures out: tokens per second by phase and arm, and what adaptive K is worth beside fixed ones.

Pure. A ratio is taken within one round, in which all arms had the same requests by turns; the best fixed K is the one
that was fastest over all rounds together, known in hindsight.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.decode_figures import Spread, first_difference
from workers.load.summary import repeated_ngram_share

WHOLE = "whole trace"
WITHIN, ABOVE = 0.97, 1.05
"""Aims: of each phase's best fixed K, and of the best single fixed K over the whole trace."""


@dataclass(frozen=True, slots=True)
class PhaseRun:
    """One arm through one phase. tokens by request id; k: planned K -> steps of sequences; seconds of its turns."""

    seconds: float
    tokens: dict[str, tuple[int, ...]]
    texts: dict[str, str]
    k: dict[int, int]
    steps: int
    spec_steps: int
    drafted: int
    accepted: int


@dataclass(frozen=True, slots=True)
class Turn:
    """One arm through phase `at` of a round."""

    arm: str
    at: int
    phase: str
    round: int
    run: PhaseRun


def differences(turns: Sequence[Turn]) -> list[str]:
    """A sentence for every request whose tokens are not those of the first arm that ran it."""
    first: dict[str, tuple[str, tuple[int, ...]]] = {}
    found = []
    for turn in turns:
        for request_id, tokens in turn.run.tokens.items():
            arm, wanted = first.setdefault(request_id, (turn.arm, tokens))
            if tokens != wanted:
                place = first_difference(tokens, wanted)
                found.append(f"{turn.phase}, request {request_id}: {turn.arm} differs from {arm} at token {place}")
    return found


def rows_of(turns: Sequence[Turn], fixed: Sequence[str]) -> list[dict[str, Any]]:
    """A row for each phase and arm, and for the whole trace and arm; fixed: the arms with one K."""
    phases = list(dict.fromkeys((turn.at, turn.phase) for turn in turns))
    rows = []
    for at, phase in phases:
        rows += _rows([turn for turn in turns if turn.at == at], phase, fixed)
    return rows + _rows(turns, WHOLE, fixed)


def _rows(turns: Sequence[Turn], phase: str, fixed: Sequence[str]) -> list[dict[str, Any]]:
    arms = list(dict.fromkeys(turn.arm for turn in turns))
    rounds = sorted({turn.round for turn in turns})
    speed = {arm: {r: _speed(t.run for t in turns if t.arm == arm and t.round == r) for r in rounds} for arm in arms}
    overall = {arm: _speed(t.run for t in turns if t.arm == arm) for arm in arms}
    best = max((arm for arm in arms if arm in fixed), key=lambda arm: overall[arm])
    rows = []
    for arm in arms:
        runs = [turn.run for turn in turns if turn.arm == arm]
        k: Counter[int] = Counter()
        for run in runs:
            k.update(run.k)
        spec_steps, steps = sum(r.spec_steps for r in runs), sum(r.steps for r in runs)
        ratio = Spread.of([speed[arm][r] / speed[best][r] for r in rounds])
        per_s = Spread.of([speed[arm][r] for r in rounds])
        rows.append(
            {
                "phase": phase,
                "arm": arm,
                "rounds": len(rounds),
                "tokens": sum(_tokens(r) for r in runs),
                "seconds": round(sum(r.seconds for r in runs), 2),
                "tokens_per_s": round(overall[arm], 2),
                "tokens_per_s_min": round(per_s.min, 2),
                "tokens_per_s_median": round(per_s.median, 2),
                "tokens_per_s_max": round(per_s.max, 2),
                "best_fixed": best,
                "ratio_to_best_fixed": round(overall[arm] / overall[best], 4),
                "ratio_min": round(ratio.min, 4),
                "ratio_median": round(ratio.median, 4),
                "ratio_max": round(ratio.max, 4),
                "mean_k": round(sum(n * c for n, c in k.items()) / max(k.total(), 1), 2),
                "k_shares": " ".join(f"{n}:{c / k.total():.2f}" for n, c in sorted(k.items())),
                "silent": round(1 - spec_steps / steps, 3) if steps and any(k) else None,
                "acceptance_length": round(1 + sum(r.accepted for r in runs) / spec_steps, 3) if spec_steps else None,
                "repeated_8grams": _repeated(runs),
            }
        )
    return rows


def _tokens(run: PhaseRun) -> int:
    return sum(len(tokens) for tokens in run.tokens.values())


def _speed(runs: Iterable[PhaseRun]) -> float:
    runs = list(runs)
    return sum(_tokens(r) for r in runs) / sum(r.seconds for r in runs)


def _repeated(runs: Sequence[PhaseRun]) -> float | None:
    share = repeated_ngram_share(text for run in runs for text in run.texts.values())
    return None if share is None else round(share, 4)


def aims(rows: Sequence[dict[str, Any]], arm: str) -> dict[str, Any]:
    """Whether `arm` came within WITHIN of every phase's best fixed K, and reached ABOVE of the best single one."""
    own = [row for row in rows if row["arm"] == arm]
    phases = {row["phase"]: row["ratio_to_best_fixed"] for row in own if row["phase"] != WHOLE}
    whole = next(row["ratio_to_best_fixed"] for row in own if row["phase"] == WHOLE)
    return {
        "worst_phase": min(phases, key=lambda phase: phases[phase]),
        "worst_phase_ratio": min(phases.values()),
        "is_within_each_phase": min(phases.values()) >= WITHIN,
        "whole_trace_ratio": whole,
        "is_above_best_single_k": whole >= ABOVE,
    }
