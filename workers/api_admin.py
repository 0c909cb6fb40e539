"""Administration over HTTP: plan, policy, kill switch and alerts, for those with the admin key."""

from __future__ import annotations

import hmac
import ipaddress
import time
from math import isfinite
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from controlplane.decision.plan import StagedPlan
from controlplane.keys.ring import ApiKey, Rejection, look_up
from controlplane.policy import PolicyError, parse_policy
from controlplane.policy.effective import policy_view
from controlplane.rollout import RolloutError, StageOrder, Unit
from controlplane.store.policies import history_json
from controlplane.telemetry import LOAD_BUCKETS
from workers.api_body import bearer_token, read_body, read_json
from workers.api_errors import ApiError, from_exception, invalid
from workers.api_validation import parse_alert_order, parse_kill_switch
from workers.backend import Backend

if TYPE_CHECKING:
    from controlplane.alerts import AlertState


def admin_router(backend: Backend) -> APIRouter:
    router = APIRouter(prefix="/admin", tags=["admin"])

    @router.get("/plan")
    async def get_plan(request: Request) -> Response:
        """The plan in force: K by cohort and load bucket."""
        authorize(backend, request)
        try:
            plan = await backend.plan()
        except Exception as error:
            raise from_exception(error) from error
        return JSONResponse(
            {
                "epoch": plan.epoch,
                "version": plan.version,
                "issued_at": plan.issued_at,
                "expires_at": plan.expires_at,
                "policy_revision": plan.policy_revision,
                "kill_switch": plan.kill_switch,
                "blocked_drafters": list(plan.blocked_drafters),
                "arm": plan.arm,
                "load_buckets": list(LOAD_BUCKETS),
                "k": {cohort: list(by_load) for cohort, by_load in plan.k.items()},
                "fallback": dict(plan.fallback),
                "staged": _staged(plan.staged),
            }
        )

    @router.get("/policy")
    async def get_policy(request: Request, format: str = "yaml") -> Response:
        """The policy's YAML as the operator wrote it (the etag is its revision), or as JSON every value in force."""
        authorize(backend, request)
        if format not in ("yaml", "json"):
            raise invalid("format", f"format: {format!r} is not one of yaml, json")
        try:
            status = await backend.policy_status()
        except Exception as error:
            raise from_exception(error) from error
        policy = backend.policy()
        if format == "json":
            return JSONResponse({**policy_view(policy), **status.as_json()})
        headers = {"etag": f'"{policy.revision}"', "x-kadence-file-problems": str(len(status.file_problems))}
        return Response(policy.text, media_type="application/yaml", headers=headers)

    @router.get("/policy/history")
    async def get_history(request: Request, limit: str = "50") -> Response:
        """The policies that were put in force, newest first: when, by whom and why."""
        authorize(backend, request)
        if not (limit.isascii() and limit.isdigit() and len(limit) < 10 and 1 <= int(limit) <= 10_000):
            raise invalid("limit", f"limit: {limit[:20]!r} is not a whole number from 1 to 10000")
        try:
            entries = await backend.policy_history(int(limit))
        except Exception as error:
            raise from_exception(error) from error
        return JSONResponse({"history": [history_json(entry) for entry in entries]})

    @router.put("/policy")
    async def put_policy(
        request: Request,
        by: str = "admin",
        why: str = "",
        stage: str | None = None,
        unit: str = "replicas",
        min_windows: str = "60",
        max_s: str = "1800",
    ) -> Response:
        """Puts YAML in force, with `stage` (a share) on a part first; `by` and `why` go into the journal."""
        authorize(backend, request)
        order = None if stage is None else stage_order(stage, unit, min_windows, max_s)
        try:
            text = (await read_body(request)).decode()
        except UnicodeDecodeError:
            raise invalid(None, "The policy is not UTF-8 text.") from None
        try:
            parse_policy(text, source="policy")  # here, so that the problems need not travel back from elsewhere
            revision = await backend.apply_policy(text, by[:200], why[:500], order)
        except PolicyError as error:
            raise _policy_error(error) from None
        except RolloutError as error:
            raise invalid("stage", str(error), code="invalid_rollout") from None
        except Exception as error:
            raise from_exception(error) from error
        return JSONResponse({"revision": revision, "staged": order is not None})

    @router.get("/policy/rollout")
    async def get_rollout(request: Request) -> Response:
        """The policy that is being tried on a part, or the last one that was; null without one."""
        authorize(backend, request)
        status = await backend.policy_status()
        return JSONResponse({"rollout": status.as_json()["rollout"]})

    @router.delete("/policy/rollout")
    async def delete_rollout(request: Request, by: str = "admin", why: str = "") -> Response:
        """Ends the trial: all back to the policy in force."""
        authorize(backend, request)
        try:
            await backend.abort_rollout(by[:200], why[:500])
        except RolloutError as error:
            raise ApiError(409, str(error), code="no_rollout") from None
        except Exception as error:
            raise from_exception(error) from error
        return JSONResponse({"aborted": True})

    @router.put("/kill-switch")
    async def put_kill_switch(request: Request, by: str = "admin") -> Response:
        """off: normal control; fallback: every cohort's fallback K; zero: no speculation."""
        authorize(backend, request)
        order = parse_kill_switch(await read_json(request))
        try:
            await backend.set_kill_switch(order.mode, order.reason, by[:200])
        except Exception as error:
            raise from_exception(error) from error
        return JSONResponse({"mode": order.mode, "reason": order.reason})

    @router.get("/alerts")
    async def get_alerts(request: Request, state: str = "active") -> Response:
        """Alerts, newest first: state is active, cleared or all."""
        authorize(backend, request)
        if state not in ("active", "cleared", "all"):
            raise invalid("state", f"state: {state[:20]!r} is not one of active, cleared, all")
        try:
            alerts = await backend.alerts(None if state == "all" else cast("AlertState", state))
        except Exception as error:
            raise from_exception(error) from error
        return JSONResponse({"alerts": [alert.as_json() for alert in alerts]})

    @router.get("/budgets")
    async def get_budgets(request: Request) -> Response:
        """Every budget: where it stands, what is spent, what is expected at its reset."""
        authorize(backend, request)
        try:
            found = await backend.budgets()
        except Exception as error:
            raise from_exception(error) from error
        return JSONResponse({"budgets": [status.as_json() for status in found]})

    @router.put("/alerts")
    async def put_alerts(request: Request, by: str = "admin") -> Response:
        """Clears one alert, such as {"clear": "canary:ngram@1", "reason": "..."}; its drafter may draft again."""
        authorize(backend, request)
        order = parse_alert_order(await read_json(request))
        try:
            alert = await backend.clear_alert(order.clear, by[:200], order.reason)
        except Exception as error:
            raise from_exception(error) from error
        if alert is None:
            raise ApiError(404, f"No active alert is named {order.clear!r}.", param="clear", code="alert_not_found")
        return JSONResponse(alert.as_json())

    return router


def stage_order(share: str, unit: str, min_windows: str, max_s: str) -> StageOrder:
    """How to try a policy, from the query's parameters; a 400 that names the wrong one."""
    numbers = {}
    for name, text in (("stage", share), ("min_windows", min_windows), ("max_s", max_s)):
        try:
            numbers[name] = float(text)
            if not isfinite(numbers[name]):
                raise ValueError(text)
        except ValueError:
            raise invalid(name, f"{name}: {text[:20]!r} is not a number") from None
    try:
        return StageOrder(numbers["stage"], cast("Unit", unit), int(numbers["min_windows"]), numbers["max_s"])
    except RolloutError as error:
        raise invalid(str(error).partition(":")[0], str(error)) from None


def authorize(backend: Backend, request: Request) -> None:
    """Raises 401 without a key or with one that has ended, 403 with one that is no admin key; while there is no admin
    key, in the environment or on record, only loopback clients may pass.
    """
    ring = backend.keys()
    if backend.admin_key is None and not ring.has_admin:
        if not is_loopback(request):
            message = "Without an admin key this is open to loopback clients only; configure one to use it from afar."
            raise ApiError(403, message, type="permission_error", code="admin_key_required")
        return
    token = bearer_token(request)
    headers = {"www-authenticate": "Bearer"}
    if token is None:
        message = "Send the admin key in the authorization header as a bearer token."
        raise ApiError(401, message, type="authentication_error", code="missing_api_key", headers=headers)
    found = look_up(ring, token, time.time())
    if is_admin_key(backend, token, found):
        return
    if found in ("expired", "rotated", "revoked"):
        message = f"This key is {found}; use one that is valid."
        raise ApiError(401, message, type="authentication_error", code="invalid_api_key", headers=headers)
    raise ApiError(403, "This key is not the admin key.", type="permission_error", code="admin_key_required")


def is_admin_key(backend: Backend, token: str, found: ApiKey | Rejection) -> bool:
    """Whether this is the admin key of the environment, or `found` on record for it is one."""
    if backend.admin_key is not None and hmac.compare_digest(token.encode(), backend.admin_key.encode()):
        return True
    return isinstance(found, ApiKey) and found.is_admin


def is_loopback(request: Request) -> bool:
    """Whether the client is on this machine; behind a proxy nobody can tell, so no.

    Nor for a host name that could be anybody's: a web page whose name is made to lead to 127.0.0.1 (DNS rebinding)
    speaks from this machine, through its user's browser, with the page's host name.
    """
    if request.client is None or {"x-forwarded-for", "forwarded"} & set(request.headers):
        return False
    if not _is_own_name(request.headers.get("host", "")):
        return False
    try:
        address = ipaddress.ip_address(request.client.host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def _is_own_name(host: str) -> bool:
    """Whether a host header is none, an address, `localhost`, or a name without a dot, which no public DNS has."""
    try:
        name = (urlsplit(f"//{host}").hostname or "").removesuffix(".")
    except ValueError:
        return False
    if "." not in name or name.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _staged(staged: StagedPlan | None) -> dict[str, Any] | None:
    """What the workers are told that try another policy; None where none does."""
    if staged is None:
        return None
    return {
        "workers": list(staged.workers),
        "policy_revision": staged.policy_revision,
        "k": {cohort: list(by_load) for cohort, by_load in staged.k.items()},
        "fallback": dict(staged.fallback),
    }


def _policy_error(error: PolicyError) -> ApiError:
    problems = [{"line": p.line, "field": p.field, "message": p.message} for p in error.problems]
    return ApiError(400, str(error), code="invalid_policy", details={"problems": problems})
