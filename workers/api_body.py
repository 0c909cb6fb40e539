"""Reading a request's body and key within limits."""

from __future__ import annotations

import asyncio

from fastapi import Request
from starlette.requests import ClientDisconnect

from workers.api_errors import ApiError
from workers.sse import ClientGone

MAX_BODY_BYTES = 2 * 1024 * 1024
BODY_WITHIN_S = 20.0
"""Until a body is there: a client that trickles one holds its place no longer than this."""
_CLOSE = {"connection": "close"}  # the rest of the body is not read; a next request could not be told from it


async def read_json(request: Request) -> bytes:
    """The body of a request that says it is JSON; raises ApiError (415, 413, 408) or ClientGone."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        message = "The content-type header must be application/json."
        raise ApiError(415, message, param="content-type", code="unsupported_media_type")
    return await read_body(request)


async def read_body(request: Request) -> bytes:
    """At most MAX_BODY_BYTES, within BODY_WITHIN_S; raises ApiError (413, 408) without reading the rest, ClientGone."""
    length = request.headers.get("content-length", "")
    if length.isascii() and length.isdigit() and len(length) < 20 and int(length) > MAX_BODY_BYTES:
        raise _too_large()
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_WITHIN_S):
            async for part in request.stream():
                body += part
                if len(body) > MAX_BODY_BYTES:
                    raise _too_large()
    except TimeoutError:
        message = f"The body did not arrive within {BODY_WITHIN_S:g} seconds; send it again, in one go."
        raise ApiError(408, message, type="timeout_error", code="request_timeout", headers=_CLOSE) from None
    except ClientDisconnect:
        raise ClientGone from None
    return bytes(body)


def bearer_token(request: Request) -> str | None:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None


def _too_large() -> ApiError:
    message = f"The body is larger than the limit of {MAX_BODY_BYTES} bytes; shorten the prompt."
    return ApiError(413, message, code="request_too_large", headers=_CLOSE)
