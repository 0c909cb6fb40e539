"""Decoding speed on the CPU, one sequence at a time: transformers' `generate`, ours without drafts, ours with some.

    OMP_WAIT_POLICY=ACTIVE GOMP_SPINCOUNT=500 kadence bench decode --prompts 2 --max-tokens 96 --rounds 3

Greedy, the same model folder, dtype and threads in one process. A run is one whole request: prefill and decoding, ours
with its detokenising too. The arms take turns on every prompt, in rotating order. Nothing is reported unless our
text with drafts is our text without them, token for token; equality with transformers' text is counted and shown, not
demanded, because other kernels may round a near-tie the other way. OMP_WAIT_POLICY and GOMP_SPINCOUNT are what workers
are served with: they are a column of the results, as are the threads, because they move every figure.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, NoReturn

import torch
import transformers
import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.decode_arms import ARMS, CONTEXT, PLAIN, Decoders, Dtype, Prompt, domain_prompts
from benchmarks.decode_figures import BASELINE, Row, Run, append_csv, differences, result, rotated, rows_of
from controlplane.settings import load_settings, physical_cores

CPUINFO = Path("/proc/cpuinfo")
RESULTS = Path(__file__).with_name("decode.csv")


def measure(decoders: Decoders, arms: Sequence[str], prompts: Sequence[Prompt], rounds: int) -> list[Run]:
    """Every arm on every prompt in every round, after one uncounted run of each."""
    runs = []
    with _progress(len(arms) * (1 + rounds * len(prompts))) as advance:
        for arm in arms:
            decoders.run(arm, prompts[0], 0)
            advance()
        for round in range(rounds):
            for turn, prompt in enumerate(prompts, start=round):
                for arm in rotated(arms, turn):
                    runs.append(decoders.run(arm, prompt, round))
                    advance()
    return runs


def machine(threads: int) -> dict[str, Any]:
    """What the figures were measured on."""
    lines = CPUINFO.read_text().splitlines() if CPUINFO.exists() else []
    named = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return {
        "cpu": named or platform.processor() or platform.machine(),
        "cores": physical_cores(),
        "threads": threads,
        "omp_wait_policy": " ".join(
            os.environ[name] for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT") if name in os.environ
        ),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def print_table(conditions: dict[str, Any], rows: Sequence[Row]) -> None:
    table = Table(title=", ".join(f"{name} {value}" for name, value in conditions.items()))
    table.add_column("domain")
    table.add_column("arm")
    columns = (
        "tokens/s",
        "min-max",
        "ratio",
        "min-max",
        "acceptance length",
        "repeated 8-grams",
        "text as transformers'",
    )
    for name in columns:
        table.add_column(name, justify="right")
    for row in rows:
        speed, ratio = row.tokens_per_s, row.ratio
        table.add_row(
            row.domain,
            row.arm,
            f"{speed.median:.1f}",
            f"{speed.min:.1f}-{speed.max:.1f}",
            "" if ratio is None else f"{ratio.median:.2f}",
            "" if ratio is None else f"{ratio.min:.2f}-{ratio.max:.2f}",
            "" if row.acceptance_length is None else f"{row.acceptance_length:.2f}",
            "" if row.repeated_8grams is None else f"{row.repeated_8grams:.1%}",
            "" if ratio is None else f"{row.equal_to_transformers:.0%}",
        )
    console = Console()
    # Into a file or a pipe there is no width to fit: keep every column whole.
    Console(width=None if console.is_terminal else 160).print(table)


def main(
    prompts: Annotated[int, typer.Option(min=1, help="Prompts per domain.")] = 2,
    max_tokens: Annotated[int, typer.Option(min=2, max=CONTEXT // 2, help="Tokens per completion, at most.")] = 96,
    rounds: Annotated[int, typer.Option(min=1, help="Times that every arm decodes every prompt.")] = 3,
    dtype: Annotated[Dtype, typer.Option(help="Of all arms.")] = Dtype.BFLOAT16,
    model: Annotated[str | None, typer.Option(help="Known name, local folder or hub id.")] = None,
    arm: Annotated[
        list[str] | None, typer.Option(help="kadence/DRAFTER/K, or that and /chain; again for more. Default: some.")
    ] = None,
    csv: Annotated[Path, typer.Option(help="Rows are appended here.")] = RESULTS,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Decoding speed of transformers and of Kadence, one sequence at a time, on the CPU."""
    arms = (BASELINE, PLAIN, *(name for name in arm or ARMS if name not in (BASELINE, PLAIN)))
    try:
        decoders = Decoders(model or load_settings().model, dtype, max_tokens, arms)
        chosen = domain_prompts(decoders.tokenizer, prompts)
        runs = measure(decoders, arms, chosen, rounds)
        rows, unequal = rows_of(runs, arms), differences(runs, PLAIN)
        conditions = {
            "date": datetime.now(UTC).date().isoformat(),
            **machine(decoders.settings.worker_threads),
            "model": decoders.settings.model,
            "dtype": dtype.value,
            "max_tokens": max_tokens,
            "prompts": prompts,
            "rounds": rounds,
        }
        if not unequal:
            append_csv(csv, conditions, rows)
    except (ValueError, OSError) as error:
        _stop(str(error))
    if as_json:
        typer.echo(json.dumps(result(conditions, rows, unequal)))
    elif not unequal:
        print_table(conditions, rows)
    if unequal:
        _stop("\n".join([*unequal, f"every arm must decode to the text of {PLAIN}: no figures are reported"]))


@contextmanager
def _progress(total: int) -> Iterator[Any]:
    with Progress(console=Console(stderr=True), disable=not sys.stderr.isatty()) as bars:
        task = bars.add_task("decoding", total=total)
        yield lambda: bars.advance(task)


def _stop(message: str) -> NoReturn:
    typer.echo(message, err=True)
    raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
