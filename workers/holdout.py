"""Replicas without a drafter, and requests shared out among all replicas by chance alone.

A clean engine: no drafter is loaded, so that its memory, its cache and whatever else it costs while it is off are
charged to speculation. Serve's own routing would spoil the comparison: of two replicas it takes the one with the
shorter queue, so the faster arm would draw more load and change its own batch size (adaptive routing, not the drafter,
would then be measured).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

from ray import serve
from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

from controlplane.experiment import HOLDOUT, holdout_replicas
from controlplane.policy import Policy
from controlplane.settings import Settings

ROUTER = "workers.holdout:HashRouter"


def role(settings: Settings, policy: Policy, rank: int) -> tuple[str, Settings]:
    """The beginning of the name of the replica of that rank (0-based), and its settings.

    The last ranks are held out: without a drafter. Raises ExperimentError where none would be left with one.
    """
    held_out = holdout_replicas(policy, settings.replicas, settings.holdout_replicas)
    if rank < settings.replicas - held_out:
        return "worker-", settings
    return HOLDOUT, settings.model_copy(update={"drafter": "none"})


def role_here(settings: Settings, policy: Policy) -> tuple[str, Settings]:
    """The role of the Serve replica that this runs in; a replacement has the rank of the one it replaces."""
    if not holdout_replicas(policy, settings.replicas, settings.holdout_replicas):
        return role(settings, policy, 0)
    return role(settings, policy, int(serve.get_replica_context().rank.rank))


def router_options(settings: Settings, policy: Policy) -> dict[str, Any]:
    """Options of the Worker deployment: Serve's own routing where no replica is held out."""
    if not holdout_replicas(policy, settings.replicas, settings.holdout_replicas):
        return {}
    from ray.serve.config import RequestRouterConfig

    return {"request_router_config": RequestRouterConfig(request_router_class=ROUTER)}  # type: ignore[arg-type]


class HashRouter(RequestRouter):
    """Every replica is as likely as every other, whatever its load; the request's id decides.

    Each pending request goes where its own id says, not to whichever replica another one was routed to: hence no
    FIFOMixin.
    """

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        if pending_request is None or not candidate_replicas:
            return [candidate_replicas]
        by_name = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        return [[by_name[chosen(request_key(pending_request), by_name)]]]


def request_key(pending: PendingRequest) -> str:
    """The id of the request in a call of `generate`; Serve's own for any other call."""
    request = pending.args[0] if pending.args else None
    return str(getattr(request, "request_id", None) or pending.metadata.internal_request_id)


def chosen(key: str, replicas: Iterable[str]) -> str:
    """The replica with the highest hash of key and name (Thaler and Ravishankar 1998, rendezvous hashing).

    When one goes, only its requests move, and evenly.
    """
    return max(replicas, key=lambda name: hashlib.sha256(f"{key}:{name}".encode()).digest())
