"""`kadence bench`: what Kadence's parts are worth, each measured against what one would use instead.

Every benchmark is imported only when it is called.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import typer

from workers.lazy_group import LazyGroup

BENCHMARKS: dict[str, tuple[str, str]] = {
    "decode": ("benchmarks.decode:main", "Decoding speed beside transformers and llama.cpp, by drafter and K."),
    "control": ("benchmarks.control.command:control", "The controller against simulated traffic: K without a model."),
    "savings": ("benchmarks.savings:savings", "The savings experiment, where the saving is known."),
    "kernels": ("benchmarks.kernels:kernels", "The fused operations against their definitions and against PyTorch."),
    "ledger": ("benchmarks.ledger.command:ledger", "Whether the ledger keeps up with 2,000 requests a second."),
}
"""Name -> (module:function whose parameters are the options, the line that `--help` shows)."""


class BenchGroup(LazyGroup):
    """The benchmarks as stand-ins until one is called."""

    lazy_commands: ClassVar[Mapping[str, tuple[str, str]]] = BENCHMARKS


bench_app = typer.Typer(cls=BenchGroup, no_args_is_help=True, add_completion=False)


@bench_app.callback()
def bench() -> None:
    """Measure parts of Kadence; nothing is reported where results are not right."""
