"""Reading a request's body and key within limits."""

from __future__ import annotations

from fastapi import Request
from starlette.requests import ClientDisconnect

from workers.api_errors import ApiError
from workers.sse import ClientGone

MAX_BODY_BYTES = 2 * 1024 * 1024


async def read_json(request: Request) -> bytes:
    """The body of a request that says it is JSON; raises ApiError (415, 413) or ClientGone."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        message = "The content-type header must be application/json."
        raise ApiError(415, message, param="content-type", code="unsupported_media_type")
    return await read_body(request)


async def read_body(request: Request) -> bytes:
    """At most MAX_BODY_BYTES; raises ApiError (413) without reading the rest, or ClientGone."""
    length = request.headers.get("content-length", "")
    if length.isascii() and length.isdigit() and len(length) < 20 and int(length) > MAX_BODY_BYTES:
        raise _too_large()
    body = bytearray()
    try:
        async for part in request.stream():
            body += part
            if len(body) > MAX_BODY_BYTES:
                raise _too_large()
    except ClientDisconnect:
        raise ClientGone from None
    return bytes(body)


def bearer_token(request: Request) -> str | None:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None


def _too_large() -> ApiError:
    message = f"The body is larger than the limit of {MAX_BODY_BYTES} bytes; shorten the prompt."
    return ApiError(413, message, code="request_too_large")
