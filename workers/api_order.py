"""What one HTTP request asks of the engine, with everything checked and nothing sent yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fastapi import Request

from workers.api_errors import ApiError, invalid
from workers.api_grammar import grammar_cost, grammar_for
from workers.api_models import ChatRequest, CompletionRequest, GenerationRequest
from workers.api_prompts import Prompt, aside
from workers.api_sampling import of_choice, sampling_for
from workers.api_tools import offered
from workers.backend import Backend
from workers.generation import Outcome
from workers.sequence import GrammarSpec, SamplingParams
from workers.token_bound import token_bound
from workers.token_text import PromptText, prompt_text

DETAILS_HEADER = "x-kadence-metrics"
DETAILS = ("summary", "detailed")


@dataclass(frozen=True, slots=True)
class Candidate:
    """One choice to generate. echo: the prompt, where it is part of the answer."""

    prompt: Prompt
    sampling: SamplingParams
    echo: PromptText | None


@dataclass(frozen=True, slots=True)
class Order:
    """candidates: of each prompt in turn, as many as asked for. prediction: token ids, for a drafter.

    has_calls: whether the answers may call tools.
    """

    candidates: list[Candidate]
    prediction: tuple[int, ...]
    grammar: GrammarSpec | None
    has_calls: bool = False

    @property
    def input_tokens(self) -> int:
        """Prompt tokens that the engine will read."""
        return sum(len(c.prompt.token_ids) for c in self.candidates)

    @property
    def output_tokens(self) -> int:
        """The most that it may generate."""
        return sum(c.sampling.max_tokens for c in self.candidates)


async def order_for(backend: Backend, asked: GenerationRequest, prompts: Sequence[Prompt]) -> Order:
    """Raises ApiError; every prompt is checked before anything is computed."""
    _check_choices(asked, len(prompts), backend.max_prompts)
    is_chat = isinstance(asked, ChatRequest)
    grammar = await aside(grammar_cost(asked), lambda: grammar_for(backend, asked))
    sampling = [sampling_for(backend, asked, len(prompt.token_ids), is_chat) for prompt in prompts]
    echoes = [await _echo(backend, prompt) if asked.echoes else None for prompt in prompts]
    candidates = [
        Candidate(prompt, of_choice(params, choice), echo)
        for prompt, params, echo in zip(prompts, sampling, echoes, strict=True)
        for choice in range(asked.candidates)
    ]
    has_calls = isinstance(asked, ChatRequest) and bool(offered(asked))
    return Order(candidates, await _prediction(backend, asked), grammar, has_calls)


def best_of(outcomes: Sequence[Outcome], asked: GenerationRequest) -> list[Outcome]:
    """Of each prompt's candidates the likeliest by mean log-probability of a token, in falling order; all, as they
    come, where all are shown.
    """
    if asked.candidates == asked.choices:
        return list(outcomes)
    best = []
    for start in range(0, len(outcomes), asked.candidates):
        ranked = sorted(outcomes[start : start + asked.candidates], key=lambda o: -o.mean_logprob)
        best += ranked[: asked.choices]
    return best


def wants_details(request: Request) -> bool:
    """Whether the speculation block is to list every step; raises ApiError for a header that says something else."""
    wish = request.headers.get(DETAILS_HEADER, "summary")
    if wish not in DETAILS:
        raise invalid(DETAILS_HEADER, f"The {DETAILS_HEADER} header must be summary or detailed.")
    return wish == "detailed"


def _check_choices(asked: GenerationRequest, prompts: int, most: int) -> None:
    total = prompts * asked.candidates
    if total <= most:
        return
    if asked.candidates == 1:
        raise invalid("prompt", f"{prompts} prompts in one request; this server takes at most {most}.")
    is_ranked = isinstance(asked, CompletionRequest) and asked.candidates > asked.choices
    raise invalid("best_of" if is_ranked else "n", f"{total} choices in one request; this server takes at most {most}.")


async def _echo(backend: Backend, prompt: Prompt) -> PromptText:
    return await aside(4 * len(prompt.token_ids), lambda: prompt_text(backend.tokenizer, prompt.token_ids, prompt.text))


async def _prediction(backend: Backend, asked: GenerationRequest) -> tuple[int, ...]:
    """Token ids of the predicted output. Raises ApiError for one that could not be an answer of this model."""
    if not isinstance(asked, ChatRequest) or asked.prediction is None:
        return ()
    text = asked.prediction.content

    def encode() -> tuple[int, ...]:
        bound = token_bound(backend.tokenizer) if len(text) > backend.max_context else None
        if bound is not None and bound.fewest(text) > backend.max_context:
            raise _too_long_prediction(backend)
        return tuple(backend.tokenizer.encode(text, add_special_tokens=False, verbose=False))

    token_ids = await aside(len(text), encode)
    if len(token_ids) > backend.max_context:
        raise _too_long_prediction(backend)
    return token_ids


def _too_long_prediction(backend: Backend) -> ApiError:
    message = f"prediction.content has more tokens than the context of this model, {backend.max_context}; shorten it."
    return invalid("prediction.content", message, "context_length_exceeded")
