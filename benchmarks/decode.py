"""Decoding speed on the CPU, one sequence at a time: transformers, llama.cpp, ours without drafts, ours with some.

    OMP_WAIT_POLICY=ACTIVE GOMP_SPINCOUNT=500 kadence bench decode --prompts 2 --max-tokens 96 --rounds 3

The same prompts and threads in one process, and but for llama.cpp the same weights and dtype. A run is one whole
request: prefill and decoding, ours with its detokenising too. The arms take turns on every prompt, in rotating order.
Nothing is reported unless our text with drafts is our text without them, token for token: greedy, and sampled with a
seed. Equality with transformers' greedy text is counted and shown, not demanded, because other kernels may round a
near-tie the other way. OMP_WAIT_POLICY and GOMP_SPINCOUNT are what workers are served with: they are a column of the
results, as are the threads, because they move every figure.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, NoReturn

import torch
import transformers
import typer
from rich.console import Console
from rich.progress import Progress

from benchmarks.decode_arms import domain_texts, prompts_of
from benchmarks.decode_checks import checks_of
from benchmarks.decode_figures import differences, rows_of
from benchmarks.decode_load import CONTEXT, Decoders, Dtype, Order, measure
from benchmarks.decode_result import append_csv, print_tables, result
from controlplane.settings import load_settings, physical_cores
from workers.compiled.skeleton import CannotCompile
from workers.logs import log_to_stderr

CPUINFO = Path("/proc/cpuinfo")
RESULTS = Path(__file__).with_name("decode.csv")


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


def main(
    prompts: Annotated[int, typer.Option(min=1, help="Prompts per domain.")] = 2,
    max_tokens: Annotated[int, typer.Option(min=2, max=CONTEXT // 2, help="Tokens per completion, at most.")] = 96,
    rounds: Annotated[int, typer.Option(min=1, help="Times that every arm decodes every prompt.")] = 3,
    temperature: Annotated[
        list[float] | None,
        typer.Option(min=0, max=2, help="0 is greedy, others sample with a seed; again for more. Default: 0."),
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Every drafter at every K, at temperatures 0 and 0.7.")] = False,
    arm: Annotated[
        list[str] | None,
        typer.Option(
            help="transformers, transformers/prompt_lookup, transformers/assisted, llama.cpp or kadence/DRAFTER/K, "
            "where K may be adaptive, and /chain may follow; again for more. Default: some of each."
        ),
    ] = None,
    settle_s: Annotated[float, typer.Option(min=0, help="Seconds of uncounted traffic of an adaptive arm.")] = 60.0,
    dtype: Annotated[Dtype, typer.Option(help="Of all arms but llama.cpp.")] = Dtype.BFLOAT16,
    model: Annotated[str | None, typer.Option(help="Known name, local folder or hub id.")] = None,
    gguf: Annotated[Path | None, typer.Option(help="What llama.cpp reads. Default: the known model's.")] = None,
    csv: Annotated[Path, typer.Option(help="Rows are appended here.")] = RESULTS,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:  # fmt: skip
    """Decoding speed of transformers, llama.cpp and Kadence, one sequence at a time, on the CPU."""
    log_to_stderr()
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    try:
        settings = load_settings(
            model=model, drafter="auto", device="cpu", dtype=dtype.value, max_sequences=1, max_context=CONTEXT,
            prefix_cache=False,  # the other arms compute every prompt anew
        )  # fmt: skip
        texts = domain_texts(prompts)
        order = Order.of(settings, arm, temperature, gguf, full=full, max_tokens=max_tokens, settle_s=settle_s)
        with _progress() as on_progress:
            decoders = Decoders(order)
            runs = measure(decoders, order, prompts_of(texts, decoders.tokenizer), rounds, on_progress)
    except (ValueError, OSError, CannotCompile) as error:
        _stop(str(error))
    unequal = differences(runs)
    rows, checks = rows_of(runs, order.arms), checks_of(runs, order.arms)
    conditions = {
        "date": datetime.now(UTC).date().isoformat(),
        **machine(order.settings.worker_threads),
        **decoders.versions,
        "model": order.settings.model,
        "dtype": dtype.value,
        "max_tokens": max_tokens,
        "prompts": prompts,
        "rounds": rounds,
        "settle_s": settle_s,
    }
    if as_json:
        typer.echo(json.dumps(result(conditions, rows, checks, unequal)))
    elif not unequal:
        print_tables(conditions, rows, checks)
    if unequal:
        why = "every arm of ours must decode to the same text: no figures are reported"
        _stop("\n".join([*map(str, unequal), why]))
    try:
        append_csv(csv, conditions, rows)
    except (ValueError, OSError) as error:
        _stop(str(error))  # after what was measured is shown: it is not lost


@contextmanager
def _progress() -> Iterator[Any]:
    """To be called with (done, total)."""
    with Progress(console=Console(stderr=True), disable=not sys.stderr.isatty()) as bars:
        task = bars.add_task("decoding", total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)


def _stop(message: str) -> NoReturn:
    typer.echo(message, err=True)
    raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
