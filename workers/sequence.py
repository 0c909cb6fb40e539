"""One request's life in the engine: what was asked (frozen), what has come of it (Sequence), what goes out (Chunk)."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from controlplane.telemetry import FinishReason, RequestRecord

if TYPE_CHECKING:
    from workers.detokenizer import Detokenizer
    from workers.penalties import TokenTally


class Served(Protocol):
    """Who served a request: for its record."""

    worker: str
    model: str
    drafter: str


MAX_LOGPROBS = 20
"""Most alternatives of which a request may have log-probabilities, as in OpenAI's API."""
MIN_REPETITION_PENALTY = 0.01
"""With less, logits divided by it and by a low temperature would not be finite."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to sample and when to stop.

    temperature 0 is greedy. top_k 0, top_p 1 and min_p 0 are off. seed: with one, the text is a function of the request
    alone (Gumbel coupling); without one, sampling is lossless in distribution. max_tokens, min_tokens: completion
    tokens; max_tokens 0 only scores the prompt. stop, stop_token_ids: strings and tokens that end the text and are left
    out of it; the token is among the ids of the output.

    repetition_penalty (0.01 or more, 1 is off) hits tokens of prompt and output, presence_penalty and frequency_penalty
    (0 is off) those of the output (`kernels.sample` has the rule). logit_bias: (token id, what is added to its logit),
    each id once. logprobs: None is none, 0 the chosen token's, n with the n most likely alternatives, at most
    MAX_LOGPROBS; prompt_logprobs: the same of the prompt's tokens.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    stop: tuple[str, ...] = ()
    seed: int | None = None
    ignore_eos: bool = False
    min_tokens: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    stop_token_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class GrammarSpec:
    """What the output must parse as: a schema, an expression or a grammar as `text`; "json_object" needs none."""

    kind: Literal["json_object", "json_schema", "regex", "grammar"]
    text: str = ""


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """A validated request; `created_at` in unix seconds is where TTFT starts.

    prediction: token ids that the client expects in the output, for a drafter. deadline_at: unix seconds after which
    the answer is of no use. traceparent: of the span that the worker's spans are part of (W3C); None makes none.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    cohort: str
    tenant: str | None = None
    route: str = ""
    stream: bool = False
    created_at: float = 0.0
    prediction: tuple[int, ...] = ()
    grammar: GrammarSpec | None = None
    deadline_at: float | None = None
    service_tier: str | None = None
    traceparent: str | None = None


class TokenLogprob(NamedTuple):
    """Natural log of a token's probability in the target's own distribution: the log_softmax of its raw logits, before
    temperature, penalties, bias and masks. top: the most likely tokens with theirs, falling; as many as were asked for.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Chunk:
    """What one engine step gave one request.

    token_ids: tokens committed in this step; text: what they added, already detokenised and trimmed before a stop
    string. steps: (drafted, accepted) of the draft-verify round, empty for the token that prefill yields.
    finish_reason and record are set on the last chunk; error on a request that failed. queue_s, on the last chunk: what
    the request waited for a place, None where it never had one.

    logprobs: one of each token of token_ids, where asked for (tokens whose text a stop string cut off have theirs too).
    prompt_logprobs: one of each prompt token, on the first chunk; the first token has none.

    prediction: draft tokens of this step from the request's own prediction that were kept, and those drafted in vain.
    cached_tokens, on the first and the last chunk: prompt tokens that need not be computed.
    """

    request_id: str
    token_ids: tuple[int, ...]
    text: str
    steps: tuple[tuple[int, int], ...] = ()
    finish_reason: FinishReason | None = None
    record: RequestRecord | None = None
    error: str | None = None
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob | None, ...] = ()
    prediction: tuple[int, int] = (0, 0)
    queue_s: float | None = None
    cached_tokens: int = 0


class RowMasks(Protocol):
    """What a grammar says of a sequence: it stands at the end of its text, and is moved on as that grows.

    error: why it can say nothing more, None while it can.
    """

    error: str | None

    def masks(self, drafts: Seq[int], rows: int) -> list[bytes | None]:
        """What may follow each of the last `rows` prefixes of `drafts`, the whole of them last: one bit a token, lowest
        first, in a number of bytes that is the same for all. None for a row behind a draft that it forbids.
        """
        ...

    def valid(self, drafts: Seq[int]) -> int:
        """How many of the drafts, from the first on, may follow."""
        ...

    def forced(self, most: int) -> list[int]:
        """The next tokens where there is no choice, at most so many."""
        ...

    def advance(self, token_ids: Seq[int]) -> None:
        """The text has grown by these tokens."""
        ...


@dataclass(slots=True, eq=False)
class Sequence:
    """A running request. `token_ids` is prompt and completion; the last token's KV is not computed until it is fed.

    blocks: its block table; known_blocks: the first ones of them, whose text the prefix cache knows. kv_length:
    positions whose target KV is in them. arrival: its number among all requests. cached_tokens: prompt tokens that were
    found in the prefix cache before any token came out. preemptions: how often it lost its blocks. noise_seed keys this
    sequence's random streams; `coupled` says that the client gave it. tally: token counts, where a penalty needs them.
    prompt_logprobs: of the prompt tokens behind the first that are computed, where asked for. is_eager: it
    began before the model was compiled, and is computed to its end by the forward that it began with.
    """

    request: EngineRequest
    token_ids: list[int]
    noise_seed: int
    detokenizer: Detokenizer
    arrival: int = 0
    blocks: list[int] = field(default_factory=list)
    known_blocks: int = 0
    kv_length: int = 0
    cached_tokens: int = 0
    preemptions: int = 0
    spec_steps: int = 0
    plain_steps: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    prefill_positions: int = 0
    verify_positions: int = 0
    draft_positions: int = 0
    max_k: int = 0
    started_at: float = 0.0
    first_token_at: float | None = None
    plan_version: int = 0
    finish_reason: FinishReason | None = None
    tally: TokenTally | None = None
    grammar: RowMasks | None = None
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    is_eager: bool = False

    @property
    def prompt_length(self) -> int:
        return len(self.request.prompt_token_ids)

    @property
    def completion_length(self) -> int:
        return len(self.token_ids) - self.prompt_length

    @property
    def remaining(self) -> int:
        """Tokens that may still be emitted."""
        return self.request.sampling.max_tokens - self.completion_length

    @property
    def coupled(self) -> bool:
        return self.request.sampling.seed is not None

    @property
    def queue_s(self) -> float | None:
        """Seconds from the request to its place in a batch."""
        return max(self.started_at - self.request.created_at, 0.0) if self.started_at else None

    @property
    def is_prefilling(self) -> bool:
        """Whether KV is missing before the next token can be decided: of the prompt, or after a preemption of more."""
        return self.kv_length < (len(self.token_ids) - (self.completion_length > 0))

    def record(self, now: float, reason: FinishReason, served: Served) -> RequestRecord:
        """What the ledger keeps of this request, ended at `now` (unix seconds)."""
        request, first = self.request, self.first_token_at
        later = self.completion_length - 1
        return RequestRecord(
            request_id=request.request_id,
            worker=served.worker,
            model=served.model,
            drafter=served.drafter,
            cohort=request.cohort,
            tenant=request.tenant,
            route=request.route,
            stream=request.stream,
            started_at=request.created_at,
            finished_at=now,
            prompt_tokens=self.prompt_length,
            completion_tokens=self.completion_length,
            spec_steps=self.spec_steps,
            plain_steps=self.plain_steps,
            draft_tokens=self.draft_tokens,
            accepted_tokens=self.accepted_tokens,
            prefill_positions=self.prefill_positions,
            verify_positions=self.verify_positions,
            draft_positions=self.draft_positions,
            max_k=self.max_k,
            # The endpoint's clock may be ahead of the worker's, and any clock may be set back: no time is negative.
            ttft_s=None if first is None else max(first - request.created_at, 0.0),
            tpot_s=max(now - first, 0.0) / later if first is not None and later > 0 else None,
            finish_reason=reason,
            plan_version=self.plan_version,
        )
