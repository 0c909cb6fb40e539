"""What a step is charged, by how many sequences run and how many draft positions they have: for time, money or joules.

The controller prices positions by it for the batch that it expects; a worker chooses by it for the one that it has.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from controlplane.decision.latency import LOADS, StepTimes, forward_seconds
from controlplane.decision.observation import RUNGS, Floats, Ints
from controlplane.telemetry import MAX_K, PRICE_LOADS


@dataclass(frozen=True, slots=True)
class Tariff:
    """What a step is charged: so much a second, and so much a position. By itself for throughput, where time is all.

    For energy these are watts and joules, for cost the money of both: tokens over the charge is what is made most of.
    """

    per_second: float = 1.0
    per_position: float = 0.0


TIME = Tariff()

LEAST = 1e-5
"""What a plan's figures are rounded to, and the least that a step can cost beside a plain one of one sequence."""


@dataclass(frozen=True, slots=True, eq=False)
class Charges:
    """One row for each number of sequences; f64, in the unit of the tariff.

    plain: [rows], a step without drafts. going: [rows, MAX_K + 1], the forward of one with some, by draft positions a
    sequence in the mean. starting: [rows], drafting anything at all. opening: [rows], a pass of the drafter for hardly
    any sequence; following: [rows], what it costs beyond that for all of them.
    """

    plain: Floats
    going: Floats
    starting: Floats
    opening: Floats
    following: Floats

    @classmethod
    def of(cls, times: StepTimes, tariff: Tariff = TIME) -> Charges:
        """At PRICE_LOADS sequences."""
        a, b = tariff.per_second, tariff.per_position
        a_pass = np.maximum(times.drafting[:, -1] - times.starting, 0.0) / MAX_K
        opening = np.minimum(a_pass[0], a_pass)
        return cls(
            plain=a * times.verifying[:, 0] + b * LOADS,
            going=a * times.going + b * LOADS[:, None] * np.arange(1.0, RUNGS + 1.0),
            starting=a * times.starting,
            opening=a * opening,
            following=a * (a_pass - opening),
        )

    def step(self, laid_out: Floats, spoken: Floats, passes: Ints, deep: Floats) -> Floats:
        """[d, n]: the charge of steps that draft, by the one row that these are.

        laid_out: [d, n], draft positions a sequence that are computed; deep: [d, n], drafted, in `passes` [d, 1].
        spoken: [d, n], P(any sequence of the step has a draft).
        """
        forward = forward_seconds(self.plain, self.going, laid_out.reshape(1, -1), spoken.reshape(1, -1))
        charge: Floats = forward.reshape(deep.shape) + self.starting + self.opening * passes + self.following * deep
        return charge

    def at(self, running: int) -> Charges:
        """One row, of `running` sequences: linear between PRICE_LOADS, held at their ends."""
        high = int(np.searchsorted(PRICE_LOADS, running).clip(1, len(PRICE_LOADS) - 1))
        low = high - 1
        share = min(max((running - PRICE_LOADS[low]) / (PRICE_LOADS[high] - PRICE_LOADS[low]), 0.0), 1.0)

        def between(rows: Floats) -> Floats:
            out: Floats = (rows[low] + share * (rows[high] - rows[low]))[None]
            return out

        return Charges(
            *(between(rows) for rows in (self.plain, self.going, self.starting, self.opening, self.following))
        )

    def table(self) -> tuple[tuple[float, ...], ...]:
        """As a plan says it: plain, starting, opening, following and going of each row, over the first row's plain."""
        columns = (self.plain, self.starting, self.opening, self.following, *self.going.T)
        rows = np.round(np.stack(columns, axis=1) / max(float(self.plain[0]), 1e-300), 5)
        return tuple(map(tuple, rows.tolist()))

    @classmethod
    def of_table(cls, table: tuple[tuple[float, ...], ...]) -> Charges:
        """From what a plan says."""
        plain, starting, opening, following, *going = np.array(table, np.float64).T
        # Rounded, a step may have come out as free.
        return cls(np.maximum(plain, LEAST), np.maximum(np.stack(going, axis=1), LEAST), starting, opening, following)
