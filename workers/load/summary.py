"""A run's requests summed up, by cohort and in all. Pure: events in, figures out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from workers.load.events import RequestEvent, SpeculationCounts

NGRAM = 8
NEVER_DRAFTED = SpeculationCounts(spec_steps=0, draft_tokens=0, accepted_tokens=0)
WORD = re.compile(r"\w+|[^\w\s]")


@dataclass(frozen=True, slots=True)
class Spread:
    """p50 and p95 in seconds, linearly interpolated; None without observations."""

    p50: float | None
    p95: float | None


@dataclass(frozen=True, slots=True)
class CohortSummary:
    """One cohort, or all ("total").

    requests: finished in any way; throttled: 429 answers, all retried. tokens: completion tokens as the server counted.
    tokens_per_s: tokens over the seconds of the whole run. acceptance_length: tokens emitted per step that drafted,
    1 + accepted / steps. mean_k: draft tokens per step, steps without a draft counted as 0. Both None where the server
    says nothing of drafts in the whole run; the former also where it never drafted. repeated_8grams: see
    `repeated_ngram_share`.
    """

    cohort: str
    requests: int
    errors: int
    cancelled: int
    throttled: int
    prompt_tokens: int
    tokens: int
    tokens_per_s: float
    ttft_s: Spread
    tpot_s: Spread
    acceptance_length: float | None
    mean_k: float | None
    repeated_8grams: float | None


@dataclass(frozen=True, slots=True)
class Summary:
    """seconds: from the first request's send to the last one's end."""

    seconds: float
    cohorts: tuple[CohortSummary, ...]
    total: CohortSummary

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def summarise(events: Sequence[RequestEvent], cohorts: Iterable[str] = ()) -> Summary:
    """The figures of `events`; `cohorts` come first and are there even when nothing was seen of them."""
    seconds = max(e.ended_at for e in events) - min(e.started_at for e in events) if events else 0.0
    names = dict.fromkeys([*cohorts, *(e.cohort for e in events)])
    # A server that says what it drafted says nothing of an answer for which it never drafted: that is a count of 0.
    if any(e.speculation for e in events):
        events = [
            replace(e, speculation=NEVER_DRAFTED) if e.speculation is None and e.completion_tokens else e
            for e in events
        ]
    rows = tuple(_row(name, [e for e in events if e.cohort == name], seconds) for name in names)
    return Summary(seconds, rows, _row("total", events, seconds))


def repeated_ngram_share(texts: Iterable[str], n: int = NGRAM) -> float | None:
    """Share of n-grams that occurred earlier in the same text; None where no text is long enough.

    The unit is a word or a single punctuation mark, so the figure does not depend on a tokenizer. Each text is looked
    at alone: two answers that resemble each other are not repetition that a proposer could use.
    """
    total = repeated = 0
    for text in texts:
        words = WORD.findall(text)
        ngrams = [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]
        total += len(ngrams)
        repeated += len(ngrams) - len(set(ngrams))
    return repeated / total if total else None


def _row(name: str, events: Sequence[RequestEvent], seconds: float) -> CohortSummary:
    tokens = sum(e.completion_tokens for e in events)
    counted = [(e, e.speculation) for e in events if e.speculation is not None]
    spec_steps = sum(s.spec_steps for _, s in counted)
    accepted = sum(s.accepted_tokens for _, s in counted)
    # Every step but those that end inside their draft gives one token beside the accepted ones, and the first token
    # is prefill's: what is left is the number of steps, drafting or not (short by at most one a request).
    steps = sum(max(e.completion_tokens - 1 - s.accepted_tokens, s.spec_steps) for e, s in counted)
    return CohortSummary(
        cohort=name,
        requests=len(events),
        errors=sum(e.status == "error" for e in events),
        cancelled=sum(e.status == "cancelled" for e in events),
        throttled=sum(e.throttled for e in events),
        prompt_tokens=sum(e.prompt_tokens for e in events),
        tokens=tokens,
        tokens_per_s=tokens / seconds if seconds else 0.0,
        ttft_s=_spread(e.ttft_s for e in events),
        tpot_s=_spread(e.tpot_s for e in events),
        acceptance_length=1 + accepted / spec_steps if spec_steps else None,
        mean_k=sum(s.draft_tokens for _, s in counted) / steps if steps else None,
        repeated_8grams=repeated_ngram_share(e.text for e in events),
    )


def _spread(seconds: Iterable[float | None]) -> Spread:
    seen = [s for s in seconds if s is not None]
    if not seen:
        return Spread(None, None)
    p50, p95 = np.percentile(seen, (50, 95))
    return Spread(float(p50), float(p95))
