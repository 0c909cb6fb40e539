"""Whose waiting request is next: deficit round robin over tenants, weighted by tokens.

Shreedhar and Varghese 1995, "Efficient fair queueing using deficit round robin": every flow with something to send is
given the same credit each round, and sends while its credit lasts. A flow is a tenant here, what it sends is a request,
and a request costs the tokens it may use. So a tenant that sends a thousand requests at once waits behind itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain

from workers.sequence import EngineRequest, Sequence

QUANTUM = 1
"""Tokens of credit a round: with more than a request costs, a flood of short ones would send several in a row. Rounds
in which nobody can send cost nothing here.
"""

PRIORITY, FLEX = "priority", "flex"


def flow_of(request: EngineRequest) -> str:
    """Whose share a request is taken from: its tenant's; those without one share by cohort."""
    return f"cohort {request.cohort}" if request.tenant is None else f"tenant {request.tenant}"


def cost_of(request: EngineRequest) -> int:
    """Tokens that it may use, prompt and completion."""
    return len(request.prompt_token_ids) + request.sampling.max_tokens


def _due(sequence: Sequence) -> int:
    """Tokens of credit that it takes to be next: what a preempted one cost was paid when it first was taken."""
    return 0 if sequence.preemptions else cost_of(sequence.request)


@dataclass(slots=True)
class _Flow:
    """One tenant's waiting requests: those that were preempted, then those of the tier `priority`, then the others.

    Each in order of arrival.
    """

    returned: deque[Sequence] = field(default_factory=deque)
    first: deque[Sequence] = field(default_factory=deque)
    later: deque[Sequence] = field(default_factory=deque)
    credit: int = 0

    @property
    def head(self) -> Sequence:
        return self._line[0]

    @property
    def _line(self) -> deque[Sequence]:
        return self.returned or self.first or self.later

    @property
    def lines(self) -> tuple[deque[Sequence], ...]:
        return self.returned, self.first, self.later

    def pop(self) -> Sequence:
        return self._line.popleft()

    def put_back(self, sequence: Sequence) -> None:
        self.returned = deque(sorted([*self.returned, sequence], key=lambda s: s.arrival))

    def __bool__(self) -> bool:
        return any(self.lines)


class _Lane:
    """Deficit round robin among flows, which only are here while something of theirs waits."""

    def __init__(self) -> None:
        self.flows: dict[str, _Flow] = {}

    def append(self, sequence: Sequence) -> None:
        flow = self.flows.setdefault(flow_of(sequence.request), _Flow())
        (flow.first if sequence.request.service_tier == PRIORITY else flow.later).append(sequence)

    def put_back(self, sequence: Sequence) -> None:
        self.flows.setdefault(flow_of(sequence.request), _Flow()).put_back(sequence)

    @property
    def head(self) -> Sequence:
        """The one that is next."""
        return self.flows[self._next()[0]].head

    def popleft(self) -> Sequence:
        """Take the head. The rounds in which no flow's credit suffices are passed over at once."""
        chosen, rounds = self._next()
        for flow in self.flows.values():
            flow.credit += rounds * QUANTUM
        flow = self.flows.pop(chosen)
        sequence = flow.pop()
        flow.credit -= _due(sequence)
        if flow:
            self.flows[chosen] = flow  # behind the others
        return sequence

    def _next(self) -> tuple[str, int]:
        """The flow whose credit first suffices, and after how many rounds."""
        rounds = {name: max(-((f.credit - _due(f.head)) // QUANTUM), 0) for name, f in self.flows.items()}
        chosen = min(rounds, key=lambda name: rounds[name])  # the first of those that are equal
        return chosen, rounds[chosen]

    def remove(self, sequence: Sequence) -> bool:
        """Whether it was here."""
        name = flow_of(sequence.request)
        flow = self.flows.get(name)
        for line in flow.lines if flow else ():
            if sequence in line:
                line.remove(sequence)
                if not flow:
                    del self.flows[name]
                return True
        return False

    def __iter__(self) -> Iterator[Sequence]:
        return chain.from_iterable(chain(*flow.lines) for flow in self.flows.values())


class FairQueue:
    """Sequences that wait for a place. Those of the tier `flex` wait until nobody else does."""

    def __init__(self) -> None:
        self._usual, self._flex = _Lane(), _Lane()
        self._length = 0

    def append(self, sequence: Sequence) -> None:
        (self._flex if sequence.request.service_tier == FLEX else self._usual).append(sequence)
        self._length += 1

    def put_back(self, sequence: Sequence) -> None:
        """One that was taken and lost its place: it is its tenant's next one, and is not paid for again."""
        (self._flex if sequence.request.service_tier == FLEX else self._usual).put_back(sequence)
        self._length += 1

    @property
    def head(self) -> Sequence | None:
        """The one that `popleft` would take; None where none waits."""
        return self._lane.head if self._length else None

    def popleft(self) -> Sequence:
        """Take the next one; raises IndexError where none waits."""
        if not self._length:
            raise IndexError("no sequence waits")
        self._length -= 1
        return self._lane.popleft()

    @property
    def _lane(self) -> _Lane:
        return self._usual if self._usual.flows else self._flex

    def remove(self, sequence: Sequence) -> None:
        """Raises ValueError for one that does not wait."""
        if not (self._usual.remove(sequence) or self._flex.remove(sequence)):
            raise ValueError(f"request {sequence.request.request_id!r} does not wait")
        self._length -= 1

    def refund(self, request: EngineRequest, tokens: int) -> None:
        """A request that was taken has ended with so many tokens of its cost unused: its tenant gets them back."""
        lane = self._flex if request.service_tier == FLEX else self._usual
        flow = lane.flows.get(flow_of(request))
        if flow is not None:
            flow.credit += tokens

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Sequence]:
        return chain(self._usual, self._flex)
