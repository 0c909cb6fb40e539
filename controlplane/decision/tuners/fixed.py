"""The K that the operator wrote, always."""

from __future__ import annotations

from controlplane.decision.estimate import Estimate
from controlplane.decision.tuners.base import Wish
from controlplane.policy import Speculation


def wish(estimate: Estimate, speculation: Speculation, k: int) -> Wish:
    """`start`, whatever was measured."""
    return Wish(speculation.start)
