"""AIPerf: a small load test, whose report has our acceptance figures in its own places for them."""

import json
from pathlib import Path
from typing import Any

import pytest

MODEL = "smollm2-135m-instruct"
REQUESTS = 8


@pytest.mark.slow
def test_aiperf_completes_and_reports_what_speculation_did(endpoint: Any, run: Any, tmp_path: Path) -> None:
    drafted = endpoint.metric("kadence_draft_tokens_total")
    run(
        "aiperf", "aiperf", "profile", "--model", MODEL, "--url", endpoint.url, "--endpoint-type", "chat",
        "--streaming", "--request-count", str(REQUESTS), "--concurrency", "2", "--tokenizer", endpoint.tokenizer,
        "--synthetic-input-tokens-mean", "60", "--output-tokens-mean", "48", "--extra-inputs", "temperature:0",
        "--extra-inputs", "ignore_eos:true", "--output-artifact-dir", tmp_path, "--ui-type", "none",
        "--workers-max", "1", "--record-processors", "1",
        within_s=500,
    )  # fmt: skip
    (file,) = tmp_path.rglob("profile_export_aiperf.json")
    report = json.loads(file.read_text())
    assert report["request_count"]["avg"] == REQUESTS
    assert endpoint.metric("kadence_draft_tokens_total") > drafted
    assert report["spec_decode_acceptance_length"]["min"] >= 1
    assert 0 < report["spec_decode_overall_draft_acceptance_rate"]["avg"] <= 100
    assert sum(report["pooled_spec_decode_acceptance_histogram"].values()) > 0
