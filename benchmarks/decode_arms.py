"""The three arms of the decode benchmark, loaded in one process: what each does with one prompt."""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch
import transformers

from benchmarks.decode_figures import BASELINE, Run, spread_over
from controlplane.policy import parse_policy
from controlplane.settings import Settings, load_settings
from workers.build import DTYPES, build_engine
from workers.compiled.background import compile_now
from workers.engine import Engine
from workers.load.mix import PROMPTS, load_prompts
from workers.models.resolve import resolve_model
from workers.plan_client import constant_plan
from workers.sequence import EngineRequest, SamplingParams

COHORT = "benchmark"
POLICY = f"""
version: 1
cohorts:
  - name: {COHORT}
    match: {{}}
    speculation: {{tuner: fixed, ladder: [0, 4], start: 0, fallback: 0}}
"""
PLAIN, DRAFTED = "kadence/none/0", "kadence/ngram/4"
ARMS = (BASELINE, PLAIN, DRAFTED)
CONTEXT = 2048


class Dtype(StrEnum):
    BFLOAT16 = "bfloat16"
    FLOAT32 = "float32"


@dataclass(frozen=True, slots=True)
class Prompt:
    domain: str
    index: int
    token_ids: tuple[int, ...]


class Decoders:
    """The three arms, loaded. `run` decodes one prompt with one of them."""

    def __init__(self, model: str, dtype: Dtype, max_tokens: int) -> None:
        transformers.utils.logging.disable_progress_bar()
        self._max_tokens = max_tokens
        self._engines: dict[str, Engine] = {}
        self._requests = 0
        for arm in (PLAIN, DRAFTED):
            settings = load_settings(
                model=model,
                drafter=arm.split("/")[1],
                device="cpu",
                dtype=dtype.value,
                max_sequences=1,
                max_context=CONTEXT,
                prefix_cache=False,  # the other arms compute every prompt anew
            )
            engine, self.tokenizer = build_engine(settings, parse_policy(POLICY), worker=arm)
            compile_now(engine.uncompiled, settings.model_cache, engine.adopt)
            engine.plan_client.plan = constant_plan(int(arm.rpartition("/")[2]), [COHORT])
            self._engines[arm] = engine
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
