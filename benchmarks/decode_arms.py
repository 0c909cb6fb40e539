"""The arms of the decode benchmark, loaded in one process: what each does with one prompt."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch
import transformers

from benchmarks.decode_figures import BASELINE, Run, spread_over
from controlplane.policy import parse_policy
from controlplane.settings import Settings, load_settings
from controlplane.telemetry import MAX_K
from workers.build import DTYPES, build_engine
from workers.compiled.background import compile_now
from workers.engine import Engine
from workers.load.mix import PROMPTS, load_prompts
from workers.models.resolve import resolve_model
from workers.plan_client import constant_plan
from workers.sequence import EngineRequest, SamplingParams

COHORT = "benchmark"
POLICY = """
version: 1
cohorts:
  - name: benchmark
    match: {{}}
    speculation: {{tuner: fixed, ladder: {ladder}, start: 0, fallback: 0}}
"""
PLAIN = "kadence/none/0"
ARMS = (BASELINE, PLAIN, "kadence/ngram/4", "kadence/ngram+eagle/4", "kadence/ngram+eagle/8")
CHAIN = "chain"
"""Behind the K of an arm: no trees."""
CONTEXT = 2048


class Dtype(StrEnum):
    BFLOAT16 = "bfloat16"
    FLOAT32 = "float32"


@dataclass(frozen=True, slots=True)
class Prompt:
    domain: str
    index: int
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Arm:
    """One of ours: what drafts how many tokens, as trees where its card has some."""

    drafter: str
    k: int
    trees: bool

    @classmethod
    def of(cls, name: str) -> Arm:
        """`kadence/DRAFTER/K` or `kadence/DRAFTER/K/chain`. Raises ValueError for anything else."""
        ours, _, rest = name.partition("/")
        drafter, _, depth = rest.partition("/")
        k, _, shape = depth.partition("/")
        if ours != "kadence" or not drafter or not k.isdecimal() or int(k) > MAX_K or shape not in ("", CHAIN):
            raise ValueError(f"arm {name!r} is not kadence/DRAFTER/K with a K up to {MAX_K}, or that and /{CHAIN}")
        return cls(drafter, int(k), shape != CHAIN)


class Decoders:
    """The arms, loaded. `run` decodes one prompt with one of them. Raises ValueError for an arm that is none."""

    def __init__(self, model: str, dtype: Dtype, max_tokens: int, arms: Sequence[str] = ARMS) -> None:
        transformers.utils.logging.disable_progress_bar()
        ours = {name: Arm.of(name) for name in arms if name != BASELINE}
        self._max_tokens = max_tokens
        self._engines: dict[str, Engine] = {}
        self._requests = 0
        for name, arm in ours.items():
            settings = load_settings(
                model=model,
                drafter=arm.drafter,
                trees=arm.trees,
                device="cpu",
                dtype=dtype.value,
                max_sequences=1,
                max_context=CONTEXT,
                prefix_cache=False,  # the other arms compute every prompt anew
            )
            policy = parse_policy(POLICY.format(ladder=sorted({0, arm.k})))
            engine, self.tokenizer = build_engine(settings, policy, worker=name)
            compile_now(engine.uncompiled, settings.model_cache, engine.adopt)
            engine.plan_client.plan = constant_plan(arm.k, [COHORT])
            self._engines[name] = engine
        self.settings: Settings = settings
        self._theirs: Any = transformers.AutoModelForCausalLM.from_pretrained(
            resolve_model(settings.model, settings.model_cache), dtype=DTYPES[dtype.value]
        )
        self._eos_token_ids = sorted(engine.target.runner.eos_token_ids)

    def run(self, arm: str, prompt: Prompt, round: int) -> Run:
        decode = self._transformers if arm == BASELINE else self._kadence
        return decode(arm, prompt, round)

    def _transformers(self, arm: str, prompt: Prompt, round: int) -> Run:
        input_ids = torch.tensor([prompt.token_ids])
        started = time.perf_counter()
        output = self._theirs.generate(
            input_ids,
            attention_mask=torch.ones_like(input_ids),
            do_sample=False,
            temperature=None,  # those of the model's folder would only warn that greedy decoding has no use for them
            top_p=None,
            top_k=None,
            max_new_tokens=self._max_tokens,
            eos_token_id=self._eos_token_ids,
            pad_token_id=self._eos_token_ids[0],
        )
        seconds = time.perf_counter() - started
        token_ids = tuple(output[0, input_ids.shape[1] :].tolist())
        text = self.tokenizer.decode(token_ids, skip_special_tokens=True)
        return Run(arm, prompt.domain, prompt.index, round, token_ids, text, seconds)

    def _kadence(self, arm: str, prompt: Prompt, round: int) -> Run:
        engine, self._requests = self._engines[arm], self._requests + 1
        sampling = SamplingParams(self._max_tokens, temperature=0.0)
        request = EngineRequest(str(self._requests), prompt.token_ids, sampling, COHORT, created_at=time.time())
        chunks = []
        started = time.perf_counter()
        engine.submit(request)
        while engine.has_work:
            chunks += engine.step()
        seconds = time.perf_counter() - started
        record = chunks[-1].record
        assert record is not None  # the chunk after which an engine has no work carries it
        token_ids = tuple(token_id for chunk in chunks for token_id in chunk.token_ids)
        text = "".join(chunk.text for chunk in chunks)
        where = (arm, prompt.domain, prompt.index, round)
        return Run(*where, token_ids, text, seconds, record.spec_steps, record.accepted_tokens)


def domain_prompts(tokenizer: Any, per_domain: int) -> list[Prompt]:
    """`per_domain` prompts of every shipped set, as chat prompts in tokens."""
    prompts = []
    for path in sorted(PROMPTS.glob("*.yaml")):
        for index, text in enumerate(spread_over(load_prompts(path.stem, path.parent), per_domain)):
            messages = [{"role": "user", "content": text}]
            token_ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
            prompts.append(Prompt(path.stem, index, tuple(token_ids)))
    return prompts
