"""The running endpoint with its controller against itself at K = 0: the same seeded requests, in paired turns.

    kadence up                                             # in another terminal
    python -m benchmarks.endpoint default --requests 24 --pairs 3

Each pair sends the same requests with the same seeds twice, once under normal control and once with the kill switch at
zero, in alternating order. Seeded texts do not depend on K, so both turns must give the same texts; nothing is reported
where they do not. Ratios are tokens per second of the whole run, by cohort, pair by pair.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, NoReturn

import httpx
import typer

from benchmarks.decode import machine
from benchmarks.decode_figures import Spread, append_lines
from controlplane.settings import physical_cores

RESULTS = Path(__file__).with_name("endpoint.csv")
KADENCE = str(Path(sys.executable).with_name("kadence"))
ADAPTIVE, ZERO = "adaptive", "zero"


def run_load(url: str, mix: str, requests: int, seed: int, out: Path) -> tuple[dict[str, Any], dict[int, str]]:
    """One turn of traffic: the summary, and the text of every request by its index."""
    command = [KADENCE, "load", mix, "--url", url, "--requests", str(requests), "--seed", str(seed)]
    done = subprocess.run([*command, "--out", str(out), "--json"], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        _stop(f"kadence load failed in this turn (exit {done.returncode}); no figures are reported")
    events = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    return json.loads(done.stdout), {event["index"]: event["text"] for event in events}


def switch(url: str, mode: str) -> None:
    body = {"mode": mode, "reason": "benchmark"}
    httpx.put(f"{url}/admin/kill-switch", json=body, timeout=10).raise_for_status()


def rows_of(pairs: list[dict[str, dict[str, Any]]]) -> list[dict[str, Any]]:
    """One row a cohort: both speeds, their ratio pair by pair, and what was drafted."""
    cohorts = [row["cohort"] for row in pairs[0][ADAPTIVE]["cohorts"]] + ["total"]
    rows = []
    for cohort in cohorts:
        turns = {arm: [_row(pair[arm], cohort) for pair in pairs] for arm in (ADAPTIVE, ZERO)}
        ratio = Spread.of(
            [a["tokens_per_s"] / z["tokens_per_s"] for a, z in zip(turns[ADAPTIVE], turns[ZERO], strict=True)]
        )
        rows.append(
            {
                "cohort": cohort,
                "pairs": len(pairs),
                "tokens": sum(t["tokens"] for t in turns[ADAPTIVE]),
                "tokens_per_s": Spread.of([t["tokens_per_s"] for t in turns[ADAPTIVE]]).median,
                "tokens_per_s_at_zero": Spread.of([t["tokens_per_s"] for t in turns[ZERO]]).median,
                "ratio_min": ratio.min,
                "ratio_median": ratio.median,
                "ratio_max": ratio.max,
                "acceptance_length": turns[ADAPTIVE][-1]["acceptance_length"],
                "mean_k": turns[ADAPTIVE][-1]["mean_k"],
                "repeated_8grams": turns[ADAPTIVE][-1]["repeated_8grams"],
            }
        )
    return rows


def _row(summary: dict[str, Any], cohort: str) -> dict[str, Any]:
    if cohort == "total":
        total: dict[str, Any] = summary["total"]
        return total
    found: dict[str, Any] = next(row for row in summary["cohorts"] if row["cohort"] == cohort)
    return found


def main(
    mix: Annotated[str, typer.Argument(help="As for kadence load.")] = "default",
    url: Annotated[str, typer.Option(help="The running endpoint.")] = "http://127.0.0.1:8000",
    requests: Annotated[int, typer.Option(min=4, help="Of each turn.")] = 24,
    pairs: Annotated[int, typer.Option(min=1, help="Each is one turn of either kind.")] = 3,
    warm_up: Annotated[int, typer.Option(min=0, help="Requests before, so that K has settled.")] = 24,
    csv: Annotated[Path, typer.Option(help="Rows are appended here.")] = RESULTS,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Tokens per second under control and at K = 0, by cohort."""
    turns: list[dict[str, dict[str, Any]]] = []
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "events.jsonl"
        if warm_up:
            run_load(url, mix, warm_up, 1_000_000, out)
        try:
            for pair in range(pairs):
                texts, measured = {}, {}
                for arm in (ADAPTIVE, ZERO) if pair % 2 == 0 else (ZERO, ADAPTIVE):
                    switch(url, "off" if arm == ADAPTIVE else "zero")
                    measured[arm], texts[arm] = run_load(url, mix, requests, pair, out)
                    print(f"pair {pair} {arm}: {measured[arm]['total']['tokens_per_s']:.1f} tokens/s", file=sys.stderr)
                if texts[ADAPTIVE] != texts[ZERO]:
                    unequal = sum(texts[ADAPTIVE][i] != text for i, text in texts[ZERO].items())
                    _stop(f"pair {pair}: {unequal} texts differ between K = 0 and adaptive K; no figures are reported")
                turns.append(measured)
        finally:
            switch(url, "off")
    rows = rows_of(turns)
    conditions = {"date": datetime.now(UTC).date().isoformat(), **machine(physical_cores()), "requests": requests}
    append_lines(csv, [conditions | {"mix": Path(mix).stem} | row for row in rows])
    if as_json:
        typer.echo(json.dumps({"machine": conditions, "rows": rows}))
    else:
        for row in rows:
            print(
                f"{row['cohort']:>10}  {row['tokens_per_s']:6.1f} tokens/s  at K = 0 {row['tokens_per_s_at_zero']:6.1f}"
                f"  ratio {row['ratio_median']:.2f} ({row['ratio_min']:.2f}-{row['ratio_max']:.2f})"
                f"  mean K {row['mean_k']}  acceptance length {row['acceptance_length']}"
            )


def _stop(message: str) -> NoReturn:
    typer.echo(message, err=True)
    raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
