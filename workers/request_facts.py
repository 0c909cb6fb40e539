"""What is known of one HTTP request while it is answered, for its log line and its span: figures, names, no text."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workers.generation import Generation
    from workers.sequence import SamplingParams


@dataclass(slots=True)
class RequestFacts:
    """key: the API key's name. ttft_s: from receiving the request to the first token of any choice. tpot_s: (end -
    first token) / (tokens - 1), of a single choice. finish_reasons: by choice, "unfinished" where the client left.
    traceparent: of the span of this request, where there is one. sampling: not for logs, it has text (stop strings).
    """

    completion_id: str | None = None
    cohort: str | None = None
    tenant: str | None = None
    key: str | None = None
    stream: bool | None = None
    choices: int | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    draft_tokens: int | None = None
    accepted_tokens: int | None = None
    finish_reasons: tuple[str, ...] | None = None
    ttft_s: float | None = None
    tpot_s: float | None = None
    error: str | None = None
    traceparent: str | None = None
    sampling: SamplingParams | None = None

    def end(self, generation: Generation, taken: int, given: int, received_at: float) -> None:
        """Take in how it went: `taken` prompt tokens, `given` completion tokens; received_at: unix seconds."""
        outcomes = generation.outcomes
        steps = [step for outcome in outcomes for step in outcome.steps]
        self.prompt_tokens, self.completion_tokens = taken, given
        self.draft_tokens = sum(drafted for drafted, _ in steps)
        self.accepted_tokens = sum(accepted for _, accepted in steps)
        self.finish_reasons = tuple(outcome.finish_reason or "unfinished" for outcome in outcomes)
        if generation.first_at is not None:
            self.ttft_s = max(generation.first_at - received_at, 0.0)
        if len(outcomes) == 1 and outcomes[0].record is not None:
            self.tpot_s = outcomes[0].record.tpot_s

    def to_log(self) -> dict[str, Any]:
        """What is known of it, without what may hold text."""
        known = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("traceparent", "sampling")}
        return {
            name: round(value, 4) if isinstance(value, float) else value
            for name, value in known.items()
            if value is not None
        }
