"""What int8 weights cost in quality, and what they bring: beside the same model in bfloat16, both compiled.

`python -m benchmarks.int8_weights [--rounds N] [--prompts N] [--part NAME]` appends to benchmarks/int8_weights.csv.

- steps: step times by turns, ms, as in benchmarks/compiled_step.py.
- quality, on held-out prompts of the project's four domains: bfloat16 answers greedily; both are then given these
  texts. agreement: share of the answers' tokens that int8, too, holds for the likeliest. kl: mean KL(bfloat16 || int8)
  there, nats. perplexity: of the answers, and of the prompts, which neither has written.
- drafts: tokens a step of the default drafter at K = 4, greedy, on the same prompts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer

from benchmarks.compiled_step import POLICY, by_turns, settings, step_arms
from benchmarks.decode import machine
from benchmarks.decode_figures import append_lines
from controlplane.policy import parse_policy

CSV = Path(__file__).with_name("int8_weights.csv")
ARMS = {"bfloat16": "none", "int8": "int8"}
TOKENS = 128
K = 4
Figure = tuple[str, str, str, list[float]]
"""What was measured, of which arm, where, and every value."""


@cache
def engine_of(arm: str, drafter: str = "none") -> tuple[Any, Any]:
    """Engine and tokenizer; compiled first, where that was not done before."""
    from workers.build import build_engine
    from workers.compiled.background import compile_now

    own = settings("compiled", drafter, quantization=ARMS[arm])
    policy = POLICY.replace("fallback: 0", f"fallback: {K}") if drafter != "none" else POLICY
    engine, tokenizer = build_engine(own, parse_policy(policy, source="benchmark"), "benchmark")
    compile_now(engine.uncompiled, own.model_cache, engine.adopt)
    return engine, tokenizer


def steps(rounds: int, prompts: int) -> Iterable[Figure]:
    runners = {arm: engine_of(arm)[0].target.runner for arm in ARMS}
    for size, arms in step_arms(runners):
        yield from (("step_ms", arm, size, values) for arm, values in by_turns(arms, rounds).items())


def held_out(tokenizer: Any, most: int) -> dict[str, list[tuple[int, ...]]]:
    """Token ids of the first `most` held-out prompts of each domain, in the chat template."""
    from workers.training.prompts import limited, shipped_prompts

    found: dict[str, list[tuple[int, ...]]] = {}
    for prompt in limited(shipped_prompts(), most):
        if prompt.held_out:
            chat = [{"role": "user", "content": prompt.text}]
            ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
            found.setdefault(prompt.domain, []).append(tuple(ids))
    return found


def answers(engine: Any, prompts: Sequence[tuple[int, ...]]) -> tuple[list[list[int]], int]:
    """Greedy completions, and the decoding steps that they took in all."""
    from workers.sequence import EngineRequest, SamplingParams

    texts: list[list[int]] = [[] for _ in prompts]
    taken = begun = open_ = 0
    while begun < len(prompts) or open_:
        while begun < len(prompts) and open_ < 8:
            sampling = SamplingParams(TOKENS, temperature=0.0)
            engine.submit(EngineRequest(str(begun), prompts[begun], sampling, "default"))
            begun, open_ = begun + 1, open_ + 1
        for chunk in engine.step():
            texts[int(chunk.request_id)] += chunk.token_ids
            taken += len(chunk.steps)
            open_ -= chunk.finish_reason is not None
    return texts, taken


def forced(runner: Any, token_ids: Sequence[int]) -> Any:
    """Log-probabilities [tokens, vocab], float32, of what follows each token of a text."""
    import torch

    from workers.kv_cache import blocks_for
    from workers.step_layout import Rows

    blocks, parts = range(1, 1 + blocks_for(len(token_ids))), []
    for start in range(0, len(token_ids), 128):
        piece = list(token_ids[start : start + 128])
        parts.append(runner.forward([Rows(blocks, start, piece)], range(len(piece))))
    return torch.cat(parts).float().log_softmax(-1)


def quality(rounds: int, prompts: int) -> Iterable[Figure]:
    import torch

    engine, tokenizer = engine_of("bfloat16")
    runners = {arm: engine_of(arm)[0].target.runner for arm in ARMS}
    sums: dict[str, dict[str, list[float]]] = {}
    for domain, asked in held_out(tokenizer, prompts).items():
        own = sums.setdefault(domain, {})
        for prompt, text in zip(asked, answers(engine, asked)[0], strict=True):
            said = torch.tensor([*prompt, *text])
            plain, held = (forced(runner, said.tolist())[:-1] for runner in runners.values())
            answer = slice(len(prompt) - 1, None)
            best = [log[answer].argmax(-1) for log in (plain, held)]
            divergence = (plain.exp() * (plain - held)).sum(-1)[answer]
            for name, values in (("agree", best[0] == best[1]), ("kl", divergence)):
                own.setdefault(name, []).extend(values.float().tolist())
            for arm, log in (("bfloat16", plain), ("int8", held)):
                nll = -log.gather(1, said[1:, None])[:, 0]
                own.setdefault(f"answers {arm}", []).extend(nll[answer].tolist())
                own.setdefault(f"prompts {arm}", []).extend(nll[: answer.start].tolist())
    everything = {name: [value for own in sums.values() for value in own[name]] for name in next(iter(sums.values()))}
    for domain, own in {**sums, "all": everything}.items():
        yield "tokens", "int8", domain, [float(len(own["kl"]))]
        yield "agreement", "int8", domain, [_mean(own["agree"])]
        yield "kl", "int8", domain, [_mean(own["kl"])]
        for of in ("answers", "prompts"):
            for arm in ARMS:
                yield f"perplexity of {of}", arm, domain, [math.exp(_mean(own[f"{of} {arm}"]))]


def drafts(rounds: int, prompts: int) -> Iterable[Figure]:
    for arm in ARMS:
        engine, tokenizer = engine_of(arm, "auto")
        for domain, asked in held_out(tokenizer, prompts).items():
            texts, taken = answers(engine, asked)
            # The first token of a text is its prefill's.
            yield f"tokens a step, K = {K}", arm, domain, [sum(len(text) - 1 for text in texts) / taken]


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def main(
    rounds: int = 9,
    prompts: Annotated[int, typer.Option(help="Held-out ones of each domain; 0: all.")] = 40,
    part: Annotated[list[str] | None, typer.Option(help="steps, quality, drafts; all of them where not given")] = None,
) -> None:
    measured: dict[str, Callable[[], Iterable[Figure]]] = {
        name: partial(function, rounds, prompts)
        for name, function in (("steps", steps), ("quality", quality), ("drafts", drafts))
    }
    head = {"date": datetime.now(UTC).date().isoformat(), **machine(2), "model": settings("compiled").model}
    lines = []
    for name in part or measured:
        for what, arm, size, values in measured[name]():
            numbers = (min(values), median(values), max(values))
            line = dict(zip(("min", "median", "max"), (round(n, 5) for n in numbers), strict=True))
            lines.append({**head, "what": what, "arm": arm, "size": size, "runs": len(values), **line})
            print(what, arm, size, line, flush=True)
    append_lines(CSV, lines)


if __name__ == "__main__":
    typer.run(main)
