"""What block verification keeps more than the token rule, and what it costs: both on the same drafted chains.

    OMP_WAIT_POLICY=ACTIVE GOMP_SPINCOUNT=500 python -m benchmarks.verification --drafter eagle --temperature 0.7

An engine decodes unseeded answers to shipped prompts, with chains drafted. Of every chain the expected number of kept
tokens is computed under either rule from the probabilities of its tokens, so that no coin adds noise to the
comparison; and both rules are timed on it, in turns.
"""

from __future__ import annotations

import time
from collections.abc import Sequence as Seq
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import torch
import transformers
import typer

from benchmarks.decode import machine
from benchmarks.decode_arms import Prompt, domain_texts, prompts_of
from benchmarks.decode_figures import append_lines
from benchmarks.decode_load import CONTEXT
from benchmarks.drift_policy import policy_of
from controlplane.settings import Settings, load_settings
from kernels.verify import verify_chain
from kernels.verify.verdict import RULES
from workers.build import build_engine
from workers.engine import Engine
from workers.plan_client import constant_plan
from workers.proposers.base import Proposal
from workers.sequence import EngineRequest, SamplingParams, Sequence
from workers.target import Score
from workers.verifier import Accepted, Verifier

COHORT = "benchmark"
RESULTS = Path(__file__).with_name("verification.csv")


def expected_kept(ratios: Seq[float]) -> tuple[float, float]:
    """Draft tokens that the rules by token and by block keep of a chain, expected over their coins.

    ratios: target_probs / draft_probs of its tokens.
    """
    by_token, by_block = [1.0], [1.0]
    for ratio in ratios:
        by_token.append(by_token[-1] * min(ratio, 1.0))
        by_block.append(min(by_block[-1] * ratio, 1.0))
    return sum(by_token[1:]), sum(by_block[1:])


class WatchedVerifier(Verifier):
    """Verifies as ever, and notes of each chain what either rule keeps of it, and how long either takes for a step.

    kept: (by token, by block) of each chain; seconds: of each rule, a step.
    """

    def __init__(self, engine: Engine, temperature: float) -> None:
        super().__init__(sorted(engine.target.runner.eos_token_ids))
        self._temperature = temperature
        self.kept: list[tuple[float, float]] = []
        self.seconds: dict[str, list[float]] = {rule: [] for rule in RULES}

    def verify(self, sequences: Seq[Sequence], proposal: Proposal, score: Score) -> list[Accepted]:
        if len(proposal.draft_token_ids):
            self._note(sequences, proposal, score)
        return super().verify(sequences, proposal, score)

    def _note(self, sequences: Seq[Sequence], proposal: Proposal, score: Score) -> None:
        rows = [row for b, (a, z) in enumerate(pairwise(score.cu_draft)) for row in range(a + b, z + b)]
        tokens = proposal.draft_token_ids[:, None]
        target = self._log_probs(score.logits[rows]).gather(1, tokens)[:, 0]
        draft = torch.zeros_like(target)
        if proposal.draft_logits is not None:
            draft = self._log_probs(proposal.draft_logits).gather(1, tokens)[:, 0]
        ratios: list[float] = (target - draft).exp().tolist()
        self.kept += [expected_kept(ratios[a:z]) for a, z in pairwise(score.cu_draft) if z > a]
        for rule in RULES if len(self.kept) % 2 else RULES[::-1]:
            started = time.perf_counter()
            verify_chain(
                score.logits,
                proposal.draft_token_ids,
                proposal.draft_logits,
                torch.tensor(score.cu_draft, dtype=torch.int32),
                torch.full((len(sequences),), self._temperature),
                torch.tensor([s.noise_seed for s in sequences]),
                torch.tensor([len(s.token_ids) for s in sequences]),
                torch.zeros(len(sequences), dtype=torch.bool),
                rule=rule,
            )
            self.seconds[rule].append((time.perf_counter() - started) / len(sequences))

    def _log_probs(self, logits: torch.Tensor) -> torch.Tensor:
        return torch.log_softmax(logits.double() / self._temperature, -1)


def figures(engine: Engine, prompts: Seq[Prompt], temperature: float, max_tokens: int) -> dict[str, Any]:
    """Of one domain's prompts, decoded together."""
    verifier = WatchedVerifier(engine, temperature)
    engine.verifier = verifier
    sampling = SamplingParams(max_tokens, temperature=temperature)
    for prompt in prompts:
        name = f"{prompt.domain}-{prompt.index}"
        engine.submit(EngineRequest(name, prompt.token_ids, sampling, COHORT, created_at=time.time()))
    while engine.has_work:
        engine.step()
    by_token, by_block = (1 + sum(kept) / len(verifier.kept) for kept in zip(*verifier.kept, strict=True))
    return {
        "chains": len(verifier.kept),
        "tokens_per_step_token": round(by_token, 4),
        "tokens_per_step_block": round(by_block, 4),
        **{f"verify_ms_{rule}": round(1e3 * median(taken), 3) for rule, taken in verifier.seconds.items()},
    }


def main(
    drafter: Annotated[str, typer.Option(help="As the setting.")] = "eagle",
    temperature: Annotated[float, typer.Option(min=0.01, help="Of all answers.")] = 0.7,
    k: Annotated[int, typer.Option(min=1, max=16, help="Draft tokens of a chain.")] = 4,
    prompts: Annotated[int, typer.Option(min=1, max=64, help="Of each domain, decoded together.")] = 4,
    max_tokens: Annotated[int, typer.Option(min=2, max=CONTEXT // 2, help="Of each answer.")] = 96,
    csv: Annotated[Path, typer.Option(help="Rows are appended here.")] = RESULTS,
) -> None:
    """What block verification keeps and costs beside the token rule, on the CPU."""
    settings: Settings = load_settings(
        drafter=drafter, trees=False, device="cpu", compile="off", max_sequences=prompts, max_context=CONTEXT,
        prefix_cache=False,
    )  # fmt: skip
    engine, tokenizer = build_engine(settings, policy_of([COHORT], "tuner: fixed"), worker="benchmark")
    engine.plan_client.plan = constant_plan(k, [COHORT])
    conditions = {
        "date": datetime.now(UTC).date().isoformat(),
        **machine(settings.worker_threads),
        "model": settings.model,
        "drafter": drafter,
        "temperature": temperature,
        "k": k,
        "max_tokens": max_tokens,
        "prompts": prompts,
    }
    chosen = prompts_of(domain_texts(prompts), tokenizer)
    rows = []
    for domain in sorted({prompt.domain for prompt in chosen}):
        of_domain = [prompt for prompt in chosen if prompt.domain == domain]
        rows.append({**conditions, "domain": domain, **figures(engine, of_domain, temperature, max_tokens)})
        typer.echo(" ".join(str(value) for value in rows[-1].values()))
    append_lines(csv, rows)


if __name__ == "__main__":
    transformers.utils.logging.disable_progress_bar()
    typer.run(main)
