"""Decoding of a small model of random weights: transformers, ours without drafts, ours under both verifications.

    python -m benchmarks.gpu_decode --dtype float32

The engine runs whole. Its drafter is the target with every weight nudged, so that some drafts stand and some fall: what
the steps cost is real, what drafting gains is not. With the same K the fused verification must take the tokens of its
definition, in any dtype: the logits are the same. In float32 the text with drafts must also be the text without them,
greedy and seeded. Nothing is reported otherwise. Equality with transformers' greedy text is counted, not demanded.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import transformers
import typer
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from benchmarks.decode_figures import Spread, append_lines
from benchmarks.kernels import machine
from controlplane.policy import parse_policy
from controlplane.settings import load_settings
from kernels.launch import Backend
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
K = 4
Mode = Literal["greedy", "seeded"]
MODES: tuple[Mode, ...] = ("greedy", "seeded")
THEIRS, PLAIN, DEFINED, FUSED = (
    "transformers",
    "kadence/none/0",
    f"kadence/draft_model/{K}/naive",
    f"kadence/draft_model/{K}/fused",
)
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


@dataclass(frozen=True, slots=True)
class Run:
    """All prompts decoded at once by one arm."""

    arm: str
    mode: Mode
    token_ids: tuple[tuple[int, ...], ...]
    seconds: float
    spec_steps: int = 0
    accepted: int = 0

    @property
    def tokens_per_s(self) -> float:
        return sum(map(len, self.token_ids)) / self.seconds


@dataclass(frozen=True, slots=True)
class Row:
    """One arm in one mode. acceptance_length: 1 + accepted / steps that drafted, None where none did."""

    arm: str
    mode: Mode
    tokens: int
    tokens_per_s: Spread
    acceptance_length: float | None
    equal_to_transformers: float | None


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


def differences(runs: Sequence[Run], demand_equal_k: bool) -> list[str]:
    """A sentence for every pair of arms whose tokens must be equal and are not, and where nothing was drafted."""
    tokens = {(run.arm, run.mode): run.token_ids for run in runs}
    pairs = [(FUSED, DEFINED), *([(FUSED, PLAIN)] if demand_equal_k else [])]
    unequal = [
        f"{mode}: {found} does not decode to the text of {wanted}"
        for mode in MODES
        for found, wanted in pairs
        if tokens[found, mode] != tokens[wanted, mode]
    ]
    unsteady = [
        f"{run.mode}: {run.arm} does not repeat its own text"
        for run in runs
        if run.token_ids != tokens[run.arm, run.mode]
    ]
    idle = [
        f"{run.mode}: {run.arm} drafted nothing" for run in runs if run.arm in (DEFINED, FUSED) and not run.spec_steps
    ]
    return list(dict.fromkeys([*unequal, *unsteady, *idle]))


def rows_of(runs: Sequence[Run]) -> list[Row]:
    """One row for each arm and mode, as they first appear."""
    rows = []
    for arm, mode in dict.fromkeys((run.arm, run.mode) for run in runs):
        own = [run for run in runs if (run.arm, run.mode) == (arm, mode)]
        theirs = next((run for run in runs if (run.arm, run.mode) == (THEIRS, mode)), None)
        steps = sum(run.spec_steps for run in own)
        equal = None
        if theirs is not None and arm != THEIRS:
            equal = sum(a == b for a, b in zip(own[0].token_ids, theirs.token_ids, strict=True)) / len(theirs.token_ids)
        rows.append(
            Row(
                arm,
                mode,
                sum(map(len, own[0].token_ids)),
                Spread.of([run.tokens_per_s for run in own]),
                1 + sum(run.accepted for run in own) / steps if steps else None,
                equal,
            )
        )
    return rows


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
    unequal = differences(runs, demand_equal_k=dtype == "float32")
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
        append_lines(output, [{**conditions, **_flat(row)} for row in rows])
    shown = [asdict(row) for row in rows]
    typer.echo(json.dumps({"machine": conditions, "correct": not unequal, "differences": unequal, "rows": shown}))
    if unequal:
        typer.echo("\n".join([*unequal, "no figures are reported"]), err=True)
        raise typer.Exit(1)


def _until_end(token_ids: list[int]) -> list[int]:
    return token_ids[: token_ids.index(2) + 1] if 2 in token_ids else token_ids


def _flat(row: Row) -> dict[str, Any]:
    values = asdict(row)
    speed = values.pop("tokens_per_s")
    return values | {f"tokens_per_s_{part}": round(speed[part], 2) for part in ("min", "median", "max")}


if __name__ == "__main__":
    typer.run(main)
