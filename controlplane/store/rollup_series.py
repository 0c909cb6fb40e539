"""Cohorts over a long time, from the rolled-up bill: a year of them without a look at a single window."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, floor

import sqlalchemy as sa

from controlplane.store.cost_dimensions import DIRECTIONS
from controlplane.store.cost_models import CostDay, CostHour
from controlplane.store.cost_pieces import HOUR_S
from controlplane.store.queries import CohortPoint
from controlplane.store.rollup import HOURS_PER_DAY, SPEC_STEPS, summed
from controlplane.store.time_range import TimeRange

DAY_S = HOUR_S * HOURS_PER_DAY


def rollup_series(
    engine: sa.Engine,
    range: TimeRange,
    bucket_s: int,
    *,
    cohorts: Sequence[str] | None = None,
    model: str | None = None,
    apart: bool = True,
) -> list[CohortPoint]:
    """As queries.cohort_series, of the hours that the range touches (of its days, where the bucket is whole days).

    tokens_per_s is over the bucket, or the part of it that these hours (or days) have up to the range's end.
    spec_steps, plain_steps and acceptance_length are None where an hour of it does not know which steps had a draft.
    cohorts: only these; None = all. apart: a point for each cohort; else one for all of them, whose cohort is ''.
    Raises ValueError when bucket_s is not a whole number of hours.
    """
    if bucket_s < HOUR_S or bucket_s % HOUR_S:
        raise ValueError(f"bucket_s must be a whole number of hours in seconds, not {bucket_s}")
    table, unit_s = (CostHour, HOUR_S) if bucket_s % DAY_S else (CostDay, DAY_S)
    c = table.__table__.c
    unit = c["hour" if table is CostHour else "day"]
    bucket = (unit // (bucket_s // unit_s)).label("bucket")
    names = ("tokens", "steps", "planned_k_steps", "draft_tokens", "accepted_tokens", SPEC_STEPS)
    cohort = c.cohort if apart else sa.literal_column("''")
    query = (
        sa.select(bucket, cohort.label("of"), *(summed(c[name]) for name in names))
        .where(
            unit >= floor(range.start / unit_s), unit < ceil(range.end / unit_s), c.direction == DIRECTIONS[1],
            *(() if cohorts is None else (c.cohort.in_(cohorts),)), *(() if model is None else (c.model == model,)),
        )
        .group_by(sa.literal_column("bucket"), *((c.cohort,) if apart else ()))
        .order_by(sa.literal_column("bucket"), *((c.cohort,) if apart else ()))
    )  # fmt: skip
    with engine.connect() as connection:
        whole = TimeRange(floor(range.start / unit_s) * unit_s, range.end)
        return [_point(whole, bucket_s, *row) for row in connection.execute(query)]


def _point(
    range: TimeRange, bucket_s: int, bucket: int, cohort: str, tokens: int, steps: int, planned: int, drafted: int,
    accepted: int, drafting: int | None,
) -> CohortPoint:  # fmt: skip
    at = int(bucket) * bucket_s
    first, last = max(float(at), range.start), min(float(at + bucket_s), range.end)
    tokens, steps = int(tokens), int(steps)  # PostgreSQL sums bigint to numeric
    spec_steps = None if drafting is None else int(drafting)
    return CohortPoint(
        at=at,
        cohort=cohort,
        emitted_tokens=tokens,
        spec_steps=spec_steps,
        plain_steps=None if spec_steps is None else steps - spec_steps,
        accepted_tokens=int(accepted),
        draft_tokens=int(drafted),
        seconds=last - first,
        tokens_per_s=tokens / (last - first) if last > first else 0.0,
        acceptance_length=1 + int(accepted) / spec_steps if spec_steps else None,
        mean_k=int(drafted) / steps if steps else None,
        planned_k=int(planned) / steps if steps else None,
        first_at=first,
        last_at=last,
    )
