"""Decoding of a small model of random weights: transformers, ours without drafts, ours under both verifications.

    python -m benchmarks.gpu_decode --dtype float32

The engine runs whole. Its drafter is the target with every weight nudged, so that some drafts stand and some fall: what
the steps cost is real, what drafting gains is not. With the same K the fused verification must take the tokens of its
definition, in any dtype: the logits are the same. The text with drafts must also be the text without them, greedy and
seeded: on a GPU, whose steps are recorded, in any dtype; on a CPU, where Triton's interpreter computes, in float32.
Nothing is reported otherwise. Equality with transformers' greedy text is counted, not demanded.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import torch
import transformers
import typer
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from benchmarks.decode_figures import append_lines
from benchmarks.gpu_decode_figures import DEFINED, FUSED, MODES, PLAIN, THEIRS, K, Mode, Run, differences, flat, rows_of
from benchmarks.kernels import machine
from controlplane.policy import parse_policy
from controlplane.settings import load_settings
from kernels.launch import Backend
from workers.batch_invariance import install, remove
from workers.build import DTYPES, build_engine
from workers.engine import Engine
from workers.plan_client import constant_plan
from workers.sequence import EngineRequest, SamplingParams
from workers.verifier import Verifier

COHORT = "benchmark"
POLICY = f"""
version: 1
cohorts:
  - name: {COHORT}
    match: {{}}
    speculation: {{tuner: fixed, ladder: [0, 4], start: 0, fallback: 0}}
"""
TEMPERATURE = 0.5
PROMPT_TOKENS = 48
SHARPNESS = 2.0
"""Standard deviation of a row of weights times an input of 1: logits far from flat, so that rounding turns no tie."""
NUDGE = 0.03
"""What is added to a weight of the drafter, over the standard deviation of the weights."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A Llama."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    vocab: int


MODELS = {"cuda": ModelShape(1024, 6, 16, 4, 32000), "cpu": ModelShape(64, 2, 4, 2, 64)}


def write_model(folder: Path, shape: ModelShape, nudge: float = 0.0) -> None:
    """A model of random weights, nudged by so many standard deviations, and a tokenizer whose token n is `tn`."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=shape.vocab,
        hidden_size=shape.hidden,
        intermediate_size=2 * shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        max_position_embeddings=2048,
        initializer_range=SHARPNESS / shape.hidden**0.5,
        bos_token_id=1,
        eos_token_id=2,
    )
    model: Any = LlamaForCausalLM(config)
    with torch.no_grad():
        for weight in model.parameters():
            weight += nudge * config.initializer_range * torch.randn_like(weight)
    model.save_pretrained(folder)
    words = Tokenizer(WordLevel({f"t{n}": n for n in range(shape.vocab)}, unk_token="t0"))
    words.pre_tokenizer = WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(folder)


class Arms:
    """The arms, loaded on one device. `run` decodes all prompts with one of them."""

    def __init__(
        self, folder: Path, drafter: Path, device: str, dtype: str, prompts: Sequence[tuple[int, ...]], max_tokens: int
    ):
        self._prompts, self._max_tokens, self._runs = prompts, max_tokens, 0
        verifications: dict[str, tuple[int, Backend]] = {
            PLAIN: (0, "fused"),
            DEFINED: (K, "naive"),
            FUSED: (K, "fused"),
        }
        self._engines: dict[str, Engine] = {}
        for arm, (k, backend) in verifications.items():
            settings = load_settings(
                model=str(folder),
                drafter=f"draft_model:{drafter}" if k else "none",
                device=device,
                dtype=dtype,
                max_sequences=len(prompts),
                max_context=PROMPT_TOKENS + max_tokens,
                prefix_cache=False,  # the other arm computes every prompt anew
            )
            engine, _ = build_engine(settings, parse_policy(POLICY), worker=arm)
            engine.plan_client.plan = constant_plan(k, [COHORT])
            engine.verifier = Verifier(sorted(engine.target.runner.eos_token_ids), backend)
            self._engines[arm] = engine
        theirs: Any = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=DTYPES[dtype])
        self._theirs = theirs.to(device)
        self.device = device

    def run(self, arm: str, mode: Mode) -> Run:
        return self._transformers(mode) if arm == THEIRS else self._kadence(arm, mode)

    def _transformers(self, mode: Mode) -> Run:
        remove()  # its own products, not ours
        input_ids = torch.tensor(self._prompts, device=self.device)
        started = time.perf_counter()
        output = self._theirs.generate(
            input_ids,
            attention_mask=torch.ones_like(input_ids),
            do_sample=False,
            max_new_tokens=self._max_tokens,
            pad_token_id=0,
        )
        texts = output[:, input_ids.shape[1] :].tolist()  # waits for the device
        seconds = time.perf_counter() - started
        return Run(THEIRS, mode, tuple(tuple(_until_end(text)) for text in texts), seconds)

    def _kadence(self, arm: str, mode: Mode) -> Run:
        install(torch.device(self.device))
        engine, self._runs = self._engines[arm], self._runs + 1
        names = [f"{self._runs}-{i}" for i in range(len(self._prompts))]
        found: dict[str, list[int]] = {name: [] for name in names}
        records = []
        started = time.perf_counter()
        for i, (name, prompt) in enumerate(zip(names, self._prompts, strict=True)):
            sampling = (
                SamplingParams(self._max_tokens, temperature=0.0)
                if mode == "greedy"
                else SamplingParams(self._max_tokens, temperature=TEMPERATURE, seed=i)
            )
            engine.submit(EngineRequest(name, prompt, sampling, COHORT, created_at=time.time()))
        while engine.has_work:
            for chunk in engine.step():
                found[chunk.request_id] += chunk.token_ids
                records += [] if chunk.record is None else [chunk.record]
        seconds = time.perf_counter() - started
        steps, accepted = sum(r.spec_steps for r in records), sum(r.accepted_tokens for r in records)
        return Run(arm, mode, tuple(tuple(found[name]) for name in names), seconds, steps, accepted)


def random_prompts(count: int, vocab: int) -> list[tuple[int, ...]]:
    """`count` prompts of PROMPT_TOKENS random tokens."""
    generator = torch.Generator().manual_seed(7)
    return [tuple(prompt) for prompt in torch.randint(3, vocab, (count, PROMPT_TOKENS), generator=generator).tolist()]


def main(
    device: Annotated[
        str, typer.Option(help="cuda, or cpu with TRITON_INTERPRET=1: a tiny model, interpreted.")
    ] = "cuda",
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "float32",
    sequences: Annotated[int, typer.Option(min=1, help="Decoded at once.")] = 8,
    max_tokens: Annotated[int, typer.Option(min=1, max=1024, help="Tokens per completion.")] = 64,
    rounds: Annotated[int, typer.Option(min=1, help="Times that every arm decodes everything.")] = 3,
    output: Annotated[Path | None, typer.Option(help="Rows are appended to this CSV.")] = None,
) -> None:
    """Decode with every arm in turns; one JSON object on stdout, exit code 1 where texts differ that must not."""
    if device not in MODELS:
        raise typer.BadParameter(f"--device {device}: use cuda or cpu")
    if device == "cpu":
        from benchmarks.kernels import use_interpreter

        use_interpreter()
    transformers.utils.logging.disable_progress_bar()
    torch.set_float32_matmul_precision("highest")
    prompts = random_prompts(sequences, MODELS[device].vocab)
    with tempfile.TemporaryDirectory() as folder:
        target, drafter = Path(folder, "target"), Path(folder, "drafter")
        write_model(target, MODELS[device])
        write_model(drafter, MODELS[device], NUDGE)
        arms = Arms(target, drafter, device, dtype, prompts, max_tokens)
    turns: list[tuple[str, Mode]] = [
        (THEIRS, "greedy"), *((arm, mode) for mode in MODES for arm in (PLAIN, DEFINED, FUSED)),
    ]  # fmt: skip
    runs: list[Run] = []
    for round in range(-1, rounds):  # round -1 warms up
        start = max(round, 0) % len(turns)  # no arm is always first
        done = [arms.run(*turn) for turn in (*turns[start:], *turns[:start])]
        runs += done if round >= 0 else []
    unequal = differences(runs, demand_equal_k=dtype == "float32" or device == "cuda")
    conditions = {
        "date": datetime.now(UTC).date().isoformat(),
        **machine(torch.device(device)),
        "transformers": transformers.__version__,
        "dtype": dtype,
        "sequences": sequences,
        "max_tokens": max_tokens,
        "rounds": rounds,
    }
    rows = [] if unequal else rows_of(runs)
    if output is not None and rows:
        append_lines(output, [{**conditions, **flat(row)} for row in rows])
    shown = [asdict(row) for row in rows]
    typer.echo(json.dumps({"machine": conditions, "correct": not unequal, "differences": unequal, "rows": shown}))
    if unequal:
        typer.echo("\n".join([*unequal, "no figures are reported"]), err=True)
        raise typer.Exit(1)


def _until_end(token_ids: list[int]) -> list[int]:
    return token_ids[: token_ids.index(2) + 1] if 2 in token_ids else token_ids


if __name__ == "__main__":
    typer.run(main)
