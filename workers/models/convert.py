"""A GGUF to a folder of dense bf16 safetensors, which loads in under a second and needs no GGUF code afterwards.

Run as a program of its own (`python -m workers.models.convert GGUF FOLDER`), so that the gigabyte it takes and what
the libraries print are gone when it ends.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from workers.models.registry import ModelError

CONVERTER_VERSION = 1
"""Rises when the converted files change, so that a folder of an older converter is made anew."""


def convert_gguf(gguf: Path, folder: Path) -> None:
    """Write `gguf` as config, bf16 weights and tokenizer into the existing `folder`; half a minute for 135M parameters.

    Raises ModelError when the libraries cannot read it, or what came out is not dense, finite bf16.
    """
    command = [sys.executable, "-m", "workers.models.convert", str(gguf), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise ModelError(f"cannot convert {gguf.name}: {last}")
    for path in folder.iterdir():
        path.chmod(0o644)  # weights are written for the owner alone, but the cache may be shared


def write_bf16(gguf: Path, folder: Path) -> None:
    """The conversion itself, in this process."""
    import torch
    import transformers

    auto: Any = transformers.AutoModelForCausalLM
    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    loaded = auto.from_pretrained(**source, dtype=torch.bfloat16)
    tokenizer = transformers.AutoTokenizer.from_pretrained(**source)

    # A model loaded from GGUF calls itself quantised and refuses to be saved; one rebuilt from its config does not.
    values = loaded.config.to_dict()
    for key in ("quantization_config", "transformers_version", "_name_or_path"):
        values.pop(key, None)
    with torch.device("meta"):
        model = auto.from_config(type(loaded.config)(**values), dtype=torch.bfloat16)
    model.load_state_dict(loaded.state_dict(), assign=True)
    model.tie_weights()
    model.generation_config = loaded.generation_config
    for name, weight in model.named_parameters():
        if weight.dtype is not torch.bfloat16 or not bool(torch.isfinite(weight).all()):
            raise ModelError(f"weight {name} is not finite bf16; try another transformers release")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    write_bf16(Path(sys.argv[1]), Path(sys.argv[2]))
