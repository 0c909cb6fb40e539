"""The arm `llama.cpp` of the decode benchmark: its server in this process, by the package xllamacpp, on a GGUF file.

It computes by the weights of that file: those of the known model are 4 bits each, from which our bf16 ones were made.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import time
from pathlib import Path
from typing import Any

from benchmarks.decode_arms import LLAMA_CPP, Prompt
from benchmarks.decode_figures import BenchmarkError, Run
from workers.models.fetch import OnProgress, fetch_gguf
from workers.models.registry import KNOWN_MODELS

PACKAGE = "xllamacpp"
QUIET = -1


def has_llama_cpp() -> bool:
    return importlib.util.find_spec(PACKAGE) is not None


def llama_cpp_version() -> str:
    return importlib.metadata.version(PACKAGE)


def find_gguf(given: Path | None, model: str, cache: Path, on_progress: OnProgress = lambda *_: None) -> Path:
    """The file that llama.cpp is to read; that of a known model is fetched. Raises BenchmarkError or ModelError."""
    if not has_llama_cpp():
        raise BenchmarkError(f"--arm {LLAMA_CPP} needs {PACKAGE}: pip install 'kadence[bench]', or leave the arm out")
    if given is not None:
        if not given.is_file():
            raise BenchmarkError(f"--gguf {given}: there is no such file")
        return given
    for known in KNOWN_MODELS:
        if known.name == model:
            return fetch_gguf(known, cache, on_progress=on_progress)
    raise BenchmarkError(f"--arm {LLAMA_CPP}: name the GGUF file of {model} with --gguf, or leave the arm out")


class LlamaCppArm:
    """One slot of `context` tokens, nothing kept between requests, as many threads as ours."""

    def __init__(self, gguf: Path, threads: int, context: int, max_tokens: int) -> None:
        import xllamacpp

        params = xllamacpp.CommonParams()
        params.model.path = str(gguf)
        params.n_ctx, params.n_parallel = context, 1
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
        params.cache_ram_mib = 0  # no copies of what earlier prompts left
        params.verbosity = QUIET
        try:
            self._server: Any = xllamacpp.Server(params)
        except RuntimeError as error:
            raise BenchmarkError(f"{LLAMA_CPP} cannot load {gguf}: {error}") from error
        self._max_tokens = max_tokens

    def run(self, prompt: Prompt, temperature: float, round: int) -> Run:
        body = {
            "prompt": list(prompt.token_ids),
            "max_tokens": self._max_tokens,
            "temperature": temperature,
            "seed": prompt.seed,
            "samplers": ["temperature"],  # as the other arms: nothing but the temperature shapes the distribution
            "cache_prompt": False,
            "return_tokens": True,
            "verbose": True,  # without it the tokens are left out of the answer
        }
        started = time.perf_counter()
        answer = self._server.handle_completions(body)
        seconds = time.perf_counter() - started
        answer = json.loads(answer) if isinstance(answer, (str, bytes)) else answer
        if "error" in answer:
            raise BenchmarkError(f"{LLAMA_CPP}: {answer['error'].get('message')}")
        token_ids = tuple(answer["__verbose"]["tokens"])
        text = answer["choices"][0]["text"]
        where = (LLAMA_CPP, prompt.domain, prompt.index, round)
        return Run(*where, token_ids, text, seconds, temperature=temperature)
