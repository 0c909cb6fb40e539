"""One request to a running endpoint's admin routes, or one line on why it was not answered."""

from __future__ import annotations

from typing import Any

import httpx

from controlplane.policy_cli.common import WRONG_USE, stop

TIMEOUT_S = 15.0


def ask(
    method: str,
    url: str,
    path: str,
    admin_key: str | None,
    as_json: bool,
    *,
    params: dict[str, Any] | None = None,
    content: bytes | None = None,
    body: dict[str, Any] | None = None,
) -> Any:
    """The JSON that the endpoint answers; ends the command with exit code 1 where it refuses or is not reached, and
    with 2 where the URL is none.

    content: a body as it is; body: one to be sent as JSON.
    """
    if not _is_address(url):
        stop(f"--url: {url!r} is not an address such as http://127.0.0.1:8000", as_json, WRONG_USE)
    headers = {"authorization": f"Bearer {admin_key}"} if admin_key else {}
    try:
        answer = httpx.request(
            method,
            f"{url.rstrip('/')}{path}",
            params=params,
            content=content,
            json=body,
            headers=headers,
            timeout=TIMEOUT_S,
        )
        if answer.is_success:
            return answer.json()
        refusal = _refusal(answer)
    except httpx.HTTPError as error:
        refusal = f"{url} cannot be reached ({error}); is `kadence up` running there?"
    except ValueError:
        refusal = f"{url} answered with something that is not JSON; is it a Kadence endpoint of this version?"
    stop(refusal, as_json)


def _is_address(url: str) -> bool:
    try:
        parts = httpx.URL(url)
    except httpx.InvalidURL:
        return False
    return parts.scheme in ("http", "https") and bool(parts.host)


def _refusal(answer: httpx.Response) -> str:
    """What the endpoint said, in one line."""
    try:
        return str(answer.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"{answer.url} answered {answer.status_code}"
