"""What this machine is, as one JSON object: chip, memory, driver, versions. Exit code 1 where the device is absent."""

from __future__ import annotations

import json
import platform
from typing import Annotated, Any

import torch
import transformers
import typer

from benchmarks.kernels import machine


def describe(device: str) -> dict[str, Any]:
    """Chip, driver and versions; for a GPU its capability, memory and multiprocessors too."""
    found = machine(torch.device(device)) | {
        "python": platform.python_version(),
        "transformers": transformers.__version__,
    }
    if device == "cpu":
        return found
    properties = torch.cuda.get_device_properties(0)
    return found | {
        "capability": f"{properties.major}.{properties.minor}",
        "memory_gib": round(properties.total_memory / 2**30, 1),
        "multiprocessors": properties.multi_processor_count,
        "l2_mib": round(getattr(properties, "L2_cache_size", 0) / 2**20, 1),
    }


def main(device: Annotated[str, typer.Option(help="cuda or cpu.")] = "cuda") -> None:
    """Describe the machine."""
    if device == "cuda" and not torch.cuda.is_available():
        typer.echo("error: torch sees no CUDA or ROCm device on this machine", err=True)
        raise typer.Exit(1)
    typer.echo(json.dumps(describe(device)))


if __name__ == "__main__":
    typer.run(main)
