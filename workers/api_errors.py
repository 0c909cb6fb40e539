"""What goes wrong, as OpenAI error objects: one sentence that names the field and the fix, and never the value sent."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from starlette.responses import JSONResponse

from workers.backend import DeadlineExceeded, Draining, Overloaded, WorkerError

if TYPE_CHECKING:
    from controlplane.budgets.desk import Refusal

INVALID_REQUEST = "invalid_request_error"


class ApiError(Exception):
    """An answer that is not a success: `param` is the field at fault, `code` a word for programs, `details` more."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = INVALID_REQUEST,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = type
        self.param = param
        self.code = code
        self.headers = dict(headers or {})
        self.details = dict(details or {})

    @property
    def body(self) -> dict[str, Any]:
        error = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return {"error": error | self.details}

    def response(self) -> JSONResponse:
        return JSONResponse(self.body, self.status, self.headers)


def invalid(param: str | None, message: str, code: str = "invalid_value") -> ApiError:
    """A 400 about one field."""
    return ApiError(400, message, param=param, code=code)


def over_budget(refusal: Refusal) -> ApiError:
    """A 429 that a client should not repeat: waiting a little does not help, and no retry-after says it would."""
    headers = {"x-should-retry": "false"}
    details = {"budget": refusal.budget, "resets_at": refusal.resets_at}
    code = "insufficient_quota"
    return ApiError(429, refusal.message, type=code, code=code, headers=headers, details=details)


def from_exception(error: Exception) -> ApiError:
    """The answer to whatever the backend raised; what it did not raise on purpose is not shown."""
    match error:
        case ApiError():
            return error
        case Overloaded():
            seconds = max(error.retry_after_s, 0.001)
            headers = {"retry-after": str(math.ceil(seconds)), "retry-after-ms": str(math.ceil(seconds * 1000))}
            message = f"The server is overloaded: {error.message}; try again later."
            return ApiError(429, message, type="rate_limit_error", code="rate_limit_exceeded", headers=headers)
        case DeadlineExceeded():
            message = (
                "The answer was not complete in time; ask for fewer tokens, or allow more time with x-kadence-timeout, "
                "up to the server's request_timeout_s."
            )
            # Again it would take as long: the client, not its library, knows whether to ask for less.
            headers = {"x-should-retry": "false"}
            return ApiError(408, message, type="timeout_error", code="deadline_exceeded", headers=headers)
        case Draining():
            error_object = unavailable("The server is stopping and takes nothing more in; try another one, or later.")
            error_object.headers["retry-after"] = "5"
            return error_object
        case WorkerError():
            return unavailable(_sentence(str(error) or "the worker failed; try again"))
        case _:
            return unavailable("The worker failed; try again.")


def _sentence(text: str) -> str:
    """Python's way of writing an error to that of this API."""
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


def unavailable(message: str) -> ApiError:
    return ApiError(503, message, type="server_error", code="service_unavailable")


def from_status(status: int, headers: Mapping[str, str] | None = None) -> ApiError:
    """The answer to what the router refused."""
    match status:
        case 404:
            return ApiError(
                404, "There is nothing at this path; see /openapi.json for the routes.", code="unknown_path"
            )
        case 405:
            message = "This path does not take this method; the allow header names those it takes."
            return ApiError(405, message, code="method_not_allowed", headers=headers)
        case _:
            return ApiError(status, "The request was refused.", headers=headers)
