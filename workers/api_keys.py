"""Who may use the endpoint: the key of every request is looked at before its body is read.

All paths want a key but those that say of themselves who may (administration, metrics) or whether the server is well.
So a route that is added later is not open by mistake.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from controlplane.keys.ring import ApiKey, look_up
from controlplane.keys.secret import is_meant_as_key
from workers.api_admin import is_admin_key, is_loopback
from workers.api_body import bearer_token
from workers.api_errors import ApiError
from workers.key_use import Caller, KeyUse

if TYPE_CHECKING:
    from workers.backend import Backend

OPEN = {"/health", "/version"}
OWN_RULE = ("/metrics", "/admin/")
_WHY = {
    "expired": "This API key has expired; have it rotated: kadence keys rotate NAME.",
    "rotated": "This API key was replaced by a newer one; use that.",
    "revoked": "This API key was revoked.",
}


class KeyGate:
    """Sets scope["state"]: caller and key_use, or answers 401 or 403; adds the x-ratelimit headers of a limited key."""

    def __init__(self, app: ASGIApp, backend: Backend, use: KeyUse) -> None:
        self._app, self._backend, self._use = app, backend, use

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN:
            await self._app(scope, receive, send)
            return
        await self._backend.learn_keys()
        if scope["path"] == OWN_RULE[0] or scope["path"].startswith(OWN_RULE[1]):
            await self._app(scope, receive, send)
            return
        try:
            caller = identify(self._backend, Request(scope), self._use)
        except ApiError as error:
            scope["state"]["facts"].error = error.code
            await error.response()(scope, receive, send)
            return
        scope.setdefault("state", {}).update(caller=caller, key_use=self._use)

        async def send_with_limits(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(self._use.headers(caller))
            await send(message)

        await self._app(scope, receive, send_with_limits)


def identify(backend: Backend, request: Request, use: KeyUse) -> Caller:
    """Who sends the request; raises ApiError (401, 403) for whom may not, and counts that.

    Without keys in force, a client of this machine needs none: its token may then be the name of a key that the policy
    knows, and is otherwise not looked at.
    """
    ring, token = backend.keys(), bearer_token(request)
    demanded = backend.keys_demanded
    may_go_without = is_loopback(request) and not (ring.has_inference if demanded is None else demanded)
    if token is None:
        if may_go_without:
            return Caller()
        use.reject("missing")
        message = "Send an API key in the authorization header as a bearer token; kadence keys create NAME makes one."
        raise _unauthorized(message, "missing_api_key")
    found = look_up(ring, token, time.time())
    if is_admin_key(backend, token, found):
        use.reject("admin")
        message = "This is an admin key; inference takes a key of its own."
        raise ApiError(403, message, type="permission_error", code="inference_key_required")
    if isinstance(found, ApiKey):
        return Caller(found.name, found.tenant, found.cohort, found.limits, is_on_record=True)
    if may_go_without and not is_meant_as_key(token) and token not in ring.names:
        return Caller(token, token) if token in backend.policy().key_names else Caller()
    use.reject(found)
    raise _unauthorized(_WHY.get(found, "Incorrect API key provided."), "invalid_api_key")


def _unauthorized(message: str, code: str) -> ApiError:
    headers = {"www-authenticate": "Bearer"}
    return ApiError(401, message, type="invalid_request_error", code=code, headers=headers)
