"""GuideLLM: a small load test. It has no figure of its own for acceptance, and keeps our block of each request."""

import json
from pathlib import Path
from typing import Any

import pytest

MODEL = "smollm2-135m-instruct"
REQUESTS = 8


@pytest.mark.slow
def test_guidellm_completes_and_keeps_what_speculation_did_for_each_request(
    endpoint: Any, run: Any, tmp_path: Path
) -> None:
    run(
        "guidellm", "guidellm", "run", "--backend", f"kind=openai_http,target={endpoint.url},model={MODEL}",
        "--profile", "kind=concurrent,streams=2", "--constraint", f"kind=max_requests,count={REQUESTS}",
        "--tokenizer", f"kind=huggingface_auto,model={endpoint.tokenizer}",
        "--data", "kind=synthetic_text,prompt_tokens=60,output_tokens=48",
        "--output", f"kind=json,path={tmp_path}/report.json", "--disable-console",
        within_s=500,
    )  # fmt: skip
    (benchmark,) = json.loads((tmp_path / "report.json").read_text())["benchmarks"]
    done = benchmark["requests"]["successful"]
    assert len(done) == REQUESTS
    assert not benchmark["requests"]["errored"]
    blocks = [(request["response_metrics"] or {}).get("speculative_decoding") for request in done]
    drafting = [block for block in blocks if block]
    assert drafting
    for block in drafting:
        assert block["num_draft_tokens"] >= block["num_accepted_draft_tokens"]
        assert len(block["acceptance_histogram"]) == block["num_spec_tokens"] + 1
