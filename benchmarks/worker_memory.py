"""What a worker's process holds: resident memory from stage to stage, each arm in a process of its own.

`python -m benchmarks.worker_memory [--requests N]` appends to benchmarks/worker_memory.csv. Compile the model first (a
worker's first start does): what a compiler leaves behind in the process is not what a served worker holds.
`python -m benchmarks.worker_memory stages ARM N` is such a process: its stages as JSON, in megabytes.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import typer

CSV = Path(__file__).with_name("worker_memory.csv")
ROLLUP = Path("/proc/self/smaps_rollup")
ARMS: Mapping[str, Mapping[str, str]] = {
    "eager": {"compile": "off"},
    "compiled": {},
    "eager int8": {"compile": "off", "quantization": "int8"},
    "compiled int8": {"quantization": "int8"},
}
LIBRARIES = ("workers.deployment", "workers.build", "workers.grammar", "transformers.models.llama.modeling_llama")
"""What a worker imports sooner or later, so that it counts as no weights."""
AT_ONCE = 8
POLICY = """
version: 1
cohorts:
  - name: default
    match: {}
    speculation: {tuner: fixed, ladder: [0, 1, 2, 4], start: 2, fallback: 0}
"""


def resident() -> dict[str, float]:
    """Megabytes of this process: rss, of it anon (its own) and file (mapped: code, weights as they are on disk)."""
    lines = (line.split() for line in ROLLUP.read_text().splitlines()[1:])
    kilobytes = {line[0].rstrip(":"): int(line[1]) for line in lines}
    rss, anonymous = (1.024e-3 * kilobytes[name] for name in ("Rss", "Anonymous"))
    return {"rss": rss, "anon": anonymous, "file": rss - anonymous}


def stages(arm: str, requests: int) -> dict[str, dict[str, float]]:
    """Stage -> what is resident then. `weights` and `kv` are what the model and the KV budget come to.

    The libraries are in before anything is counted. AT_ONCE requests run at once, with drafts of every kind that the
    default drafter makes.
    """
    for library in LIBRARIES:
        importlib.import_module(library)
    from controlplane.policy import parse_policy
    from controlplane.settings import Settings
    from workers.build import build_engine
    from workers.models.resolve import resolve_model

    values: dict[str, Any] = {"device": "cpu", "threads": 2, "profile_s": 0, **ARMS[arm]}
    own = Settings(**values)
    weights = sum(path.stat().st_size for path in resolve_model(own.model, own.model_cache).glob("*.safetensors"))
    found = {"imports": resident()}
    engine, tokenizer = build_engine(own, parse_policy(POLICY, source="benchmark"), "benchmark")
    found["built"] = resident()
    _serve(engine, tokenizer, AT_ONCE)
    found[f"{AT_ONCE} requests"] = resident()
    _serve(engine, tokenizer, requests)
    found[f"{requests} more"] = resident()
    kv = engine.target.runner.kv
    kept = [*kv.keys, *kv.values, *([] if kv.features is None else [kv.features])]
    found["kv"] = {"rss": sum(tensor.nbytes for tensor in kept) / 1e6}
    found["weights"] = {"rss": weights / 1e6}
    found["is_compiled"] = {"rss": float(engine.target.runner.is_compiled)}
    return found


def _serve(engine: Any, tokenizer: Any, requests: int) -> None:
    from workers.sequence import EngineRequest, SamplingParams

    begun = open_ = 0
    while begun < requests or open_:
        while begun < requests and open_ < AT_ONCE:
            prompt = tokenizer(f"{begun}: " + "Tell me about the sea, and about the sky above it. " * 20)["input_ids"]
            sampling = SamplingParams(48, temperature=0.7 * (begun % 2), seed=begun, ignore_eos=True)
            engine.submit(EngineRequest(f"{requests}-{begun}", tuple(prompt), sampling, "default"))
            begun, open_ = begun + 1, open_ + 1
        open_ -= sum(chunk.finish_reason is not None for chunk in engine.step())


def above_libraries(found: Mapping[str, Mapping[str, float]], stage: str) -> float:
    """Resident megabytes of a stage less libraries and KV: weights, and whatever else there is."""
    return found[stage]["rss"] - found["imports"]["rss"] - found["kv"]["rss"]


def in_a_process(arm: str, requests: int) -> dict[str, dict[str, float]]:
    command = [sys.executable, "-m", "benchmarks.worker_memory", "stages", arm, str(requests)]
    said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    found: dict[str, dict[str, float]] = json.loads(said.splitlines()[-1])  # behind the log
    return found


def main(requests: int = 100) -> None:
    from benchmarks.decode import machine
    from benchmarks.decode_figures import append_lines

    lines = []
    for arm in ARMS:
        found = in_a_process(arm, requests)
        is_compiled, kv, weights = (found.pop(name)["rss"] for name in ("is_compiled", "kv", "weights"))
        if ("compiled" in arm) != bool(is_compiled):
            raise SystemExit(f"{arm}: the model was not compiled before; start a worker once, or `kadence up`")
        for stage, sizes in found.items():
            above = sizes["rss"] - found["imports"]["rss"] - (0 if stage == "imports" else kv)
            numbers = {**sizes, "kv": kv, "above_libraries_and_kv": above, "of_weights": above / weights}
            head = {"date": datetime.now(UTC).date().isoformat(), **machine(2), "arm": arm, "stage": stage}
            lines.append({**head, **{f"{name}": round(value, 2) for name, value in numbers.items()}})
            print(arm, stage, {name: round(value, 2) for name, value in numbers.items()}, flush=True)
    append_lines(CSV, lines)


if __name__ == "__main__":
    if sys.argv[1:2] == ["stages"]:
        print(json.dumps(stages(sys.argv[2], int(sys.argv[3]))))
    else:
        typer.run(main)
