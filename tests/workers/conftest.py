"""The identities of counting, asserted on every request that an engine of this process ends, whatever a test is for."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from types import SimpleNamespace
from typing import Any
from weakref import WeakKeyDictionary

import pytest

from controlplane.telemetry import RequestRecord


class Counting:
    """Chunks of every request of every engine, until its record; wrong: what did not add up, in words."""

    def __init__(self) -> None:
        self.wrong: list[str] = []
        self.checked = 0
        # By the engine itself: another one may have the number of one that is gone, its requests half answered.
        self._chunks: WeakKeyDictionary[Any, defaultdict[str, list[Any]]] = WeakKeyDictionary()

    @staticmethod
    def faults_of(chunks: list[Any]) -> list[str]:
        """What does not add up in the chunks of one request, the last of which has its record."""
        return list(faults(chunks, chunks[-1].record))

    def see(self, engine: Any, chunks: Iterable[Any]) -> None:
        own = self._chunks.setdefault(engine, defaultdict(list))
        for chunk in chunks:
            own[chunk.request_id].append(chunk)
            if chunk.record is not None:
                self.checked += 1
                seen = own.pop(chunk.request_id)
                self.wrong += [f"{chunk.request_id}: {fault}" for fault in faults(seen, chunk.record)]


def faults(chunks: list[Any], record: RequestRecord) -> Iterator[str]:
    """Of one request: its chunks, its record and what its client is told must count the same (design, section 6)."""
    from workers.api_responses import speculation_of  # here: not every test of the package needs torch

    if record.finish_reason == "error":
        return  # the step that failed has no chunk
    steps = [step for chunk in chunks for step in chunk.steps]
    drafted = [step for step in steps if step[0] > 0]
    proposed, kept = sum(d for d, _ in drafted), sum(a for _, a in drafted)
    tokens = sum(len(chunk.token_ids) for chunk in chunks)
    last = next((chunk for chunk in reversed(chunks) if chunk.steps), None)
    is_ended = last is not None and len(last.token_ids) == last.steps[-1][1]
    expected = {
        "completion_tokens": (record.completion_tokens, tokens),
        "tokens by steps": (tokens, bool(tokens) * (1 + kept + len(steps) - is_ended)),
        "spec_steps": (record.spec_steps, len(drafted)),
        "plain_steps": (record.plain_steps, len(steps) - len(drafted)),
        "proposed": (record.draft_tokens, proposed),
        "correct": (record.accepted_tokens, kept),
    }
    outcome: Any = SimpleNamespace(steps=steps, record=record)
    metrics = speculation_of([outcome], is_detailed=True)
    if metrics is None:
        expected["the block is left out"] = (len(drafted), 0)
    else:
        block = metrics["speculative_decoding"]
        histogram = block["acceptance_histogram"]
        verified = len(drafted)
        in_spec_steps = tokens - 1 - (len(steps) - verified) + is_ended
        expected |= {
            "accept length": (block["mean_acceptance_length"], in_spec_steps / verified),
            "num_draft_tokens": (block["num_draft_tokens"], sum(block["per_step_drafted"])),
            "proposed on the wire": (block["num_draft_tokens"], record.draft_tokens),
            "rate": (block["draft_acceptance_rate"], kept / proposed),
            "sum of the histogram": (sum(histogram), block["num_spec_steps"]),
            "its weighted sum": (sum(i * n for i, n in enumerate(histogram)), block["num_accepted_draft_tokens"]),
            "its entries": (
                {i: n for i, n in enumerate(histogram) if n}, dict(Counter(a for _, a in drafted)),
            ),
            "spec steps on the wire": (block["num_spec_steps"], record.spec_steps),
            "correct on the wire": (block["num_accepted_draft_tokens"], record.accepted_tokens),
        }  # fmt: skip
    yield from (f"{name}: {a} is not {b}" for name, (a, b) in expected.items() if a != pytest.approx(b))


@pytest.fixture(scope="session", autouse=True)
def counting() -> Iterator[Counting]:
    """What every engine gives, looked at as it is given."""
    from workers.engine import Engine

    counting = Counting()

    def watched(name: str) -> Any:
        real = getattr(Engine, name)

        def call(engine: Engine, *arguments: Any, **named: Any) -> Any:
            given = real(engine, *arguments, **named)
            counting.see(engine, given if isinstance(given, list) else [given] if given is not None else [])
            return given

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in ("step", "cancel", "fail_all", "end_overdue"):
            patch.setattr(Engine, name, watched(name))
        yield counting


@pytest.fixture(autouse=True)
def every_request_adds_up(counting: Counting) -> Iterator[None]:
    yield
    wrong, counting.wrong = counting.wrong, []
    assert not wrong
