"""A generation as server-sent events."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from workers.api_errors import from_exception
from workers.api_responses import Envelope
from workers.generation import Arrival, Generation
from workers.sse import DONE, frame


async def frames(
    generation: Generation, envelope: Envelope, include_usage: bool, counts_as_it_goes: bool = False
) -> AsyncGenerator[bytes, None]:
    """The events of one step at a time, each of one choice; then usage if asked for, then [DONE].

    counts_as_it_goes: every event has the usage so far, and not null.
    """
    begun: set[int] = set()
    try:
        async for arrivals in generation.steps():
            events = [event for arrival in arrivals for event in _events(envelope, arrival, begun)]
            if include_usage:
                usage = envelope.usage(generation.outcomes) if counts_as_it_goes else None
                events = [event | {"usage": usage} for event in events]
            if events:
                yield b"".join(map(frame, events))
        if include_usage:
            yield frame(envelope.totals(generation.outcomes))
        yield DONE
    except Exception as error:
        yield frame(from_exception(error).body)
        yield DONE


def _events(envelope: Envelope, arrival: Arrival, begun: set[int]) -> list[dict[str, Any]]:
    """What a client is told of one chunk; clients read the first choice of an event, so that each has one."""
    index, piece = arrival.choice, arrival.piece
    events = []
    if envelope.is_chat and index not in begun:
        begun.add(index)
        events.append(envelope.role(index))
    if piece.text or piece.scored or piece.calls:
        events += envelope.piece(index, piece)
    if arrival.finish_reason is not None:
        events.append(envelope.finish(index, arrival.finish_reason))
    return events
