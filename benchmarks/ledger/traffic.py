"""What a fleet of workers reports, second by second: copies of some seconds of one worker. Without torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from controlplane.telemetry import Report, WindowId

STEP_S = 0.06
SEQUENCES = 8
STEPS_PER_REQUEST = 4
"""A worker that decodes 8 sequences in steps of 60 ms, each request in 4 of them, ends 33 requests a second."""

REQUESTS_PER_WORKER_S = SEQUENCES / STEPS_PER_REQUEST / STEP_S


def workers_for(rate: int) -> int:
    """Workers that such a rate of requests a second needs, at least one."""
    return max(round(rate / REQUESTS_PER_WORKER_S), 1)


@dataclass(frozen=True, slots=True)
class Fleet:
    """Workers that together end `rate` requests a second; templates: reports of one worker over a second each."""

    templates: Sequence[Report]
    rate: int
    epoch: int

    @property
    def workers(self) -> int:
        return workers_for(self.rate)

    def second(self, number: int, at: float) -> list[Report]:
        """Every worker's report number `number` (from 1), of the second that ended at `at` (unix seconds)."""
        share, more = divmod(self.rate, self.workers)
        return [self._report(w, number, share + (w < more), at) for w in range(self.workers)]

    def _report(self, worker: int, number: int, requests: int, at: float) -> Report:
        template, name = self.templates[(worker + number) % len(self.templates)], f"worker-{worker}"
        window = replace(template.window, id=WindowId(name, self.epoch, number), started_at=at - 1.0, ended_at=at)
        known = template.requests
        return Report(
            window,
            tuple(
                replace(
                    known[i % len(known)],
                    request_id=f"{name}/{number}/{i}",
                    worker=name,
                    started_at=at - 0.5,
                    finished_at=at - 0.25,
                )
                for i in range(requests)
            ),
        )
