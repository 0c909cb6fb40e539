"""What the load client saw of one request: what everything it reports is computed from."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Status = Literal["ok", "error", "cancelled"]


@dataclass(frozen=True, slots=True)
class SpeculationCounts:
    """From the `speculative_decoding` block of the response; steps with an empty draft are not in spec_steps."""

    spec_steps: int
    draft_tokens: int
    accepted_tokens: int


@dataclass(frozen=True, slots=True)
class RequestEvent:
    """One request from its first send to its end. Times in seconds on one monotonic clock.

    ended_at: when the last text, or the failure, came. first_text_at: when the first text came, None if none did.
    completion_tokens: as the server counted, 0 where it did not say. throttled: 429 answers before it was accepted;
    waiting them out is part of its time to first token. cancelled: cut off by the end of the run.
    """

    index: int
    cohort: str
    status: Status
    started_at: float
    ended_at: float
    first_text_at: float | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    throttled: int = 0
    speculation: SpeculationCounts | None = None
    text: str = ""
    finish_reason: str | None = None
    error: str | None = None

    @property
    def ttft_s(self) -> float | None:
        """Time to first token."""
        return None if self.first_text_at is None else self.first_text_at - self.started_at

    @property
    def tpot_s(self) -> float | None:
        """Time per output token after the first: None below two tokens."""
        if self.status != "ok" or self.first_text_at is None or self.completion_tokens < 2:
            return None
        return (self.ended_at - self.first_text_at) / (self.completion_tokens - 1)

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "ttft_s": self.ttft_s, "tpot_s": self.tpot_s}
