import json
from typing import Any


def test_langchain_asks_streams_batches_and_reads_errors(endpoint: Any, run: Any, request: Any) -> None:
    program = request.path.parent / "programs" / "langchain_chat.py"
    done = run("clients", "python", program, endpoint.base_url, "smollm2-135m-instruct")
    said = json.loads(done.stdout.splitlines()[-1])
    assert "Paris" in said["content"]
    assert said["streamed"] == said["astream"] == said["content"]
    assert said["batch"] == [said["content"]] * 2
    assert said["finish_reason"] in ("stop", "length")
    assert said["usage"]["output_tokens"] == said["streamed_usage"]["output_tokens"] == said["logprobs"]
    assert said["usage"]["input_tokens"] == said["streamed_usage"]["input_tokens"] > 0
    assert "Paris" in said["completion"]
    assert said["refused"] == "presence_penalty"
