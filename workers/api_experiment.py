"""The savings experiment over HTTP, for those with the admin key: /admin/experiment."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from controlplane.experiment import MOST_SEED, ExperimentError
from workers.api_admin import authorize
from workers.api_body import read_json
from workers.api_errors import ApiError, from_exception, invalid
from workers.api_validation import parse_object
from workers.backend import Backend


def experiment_router(backend: Backend) -> APIRouter:
    router = APIRouter(prefix="/admin", tags=["admin"])

    @router.get("/experiment")
    async def get_experiment(request: Request) -> Response:
        """The savings experiment that is running, or the last one; null without one."""
        authorize(backend, request)
        try:
            found = await backend.experiment()
        except Exception as error:
            raise from_exception(error) from error
        return JSONResponse({"experiment": found})

    @router.put("/experiment")
    async def put_experiment(request: Request, by: str = "admin") -> Response:
        """Starts one: unit, holdout, window_s, burn_in_s, pairs (the policy's where not given), seed and why."""
        authorize(backend, request)
        asked = parse_object(await read_json(request))
        why, seed = asked.pop("why", ""), asked.pop("seed", None)
        if not isinstance(why, str):
            raise invalid("why", "why: must be text", "invalid_type")
        if seed is not None and (type(seed) is not int or not 0 <= seed <= MOST_SEED):
            raise invalid("seed", f"seed: must be a whole number from 0 to {MOST_SEED}")
        try:
            return JSONResponse({"experiment": await backend.start_experiment(asked, by[:200], why[:500], seed)})
        except ExperimentError as error:
            raise _refused(error, 409 if "is running" in str(error) else 400) from None
        except Exception as error:
            raise from_exception(error) from error

    @router.delete("/experiment")
    async def delete_experiment(request: Request, by: str = "admin", why: str = "") -> Response:
        """Ends the one that is running; its pair under way is given up."""
        authorize(backend, request)
        try:
            return JSONResponse({"experiment": await backend.stop_experiment(by[:200], why[:500])})
        except ExperimentError as error:
            raise _refused(error, 409) from None
        except Exception as error:
            raise from_exception(error) from error

    return router


def _refused(error: ExperimentError, status: int) -> ApiError:
    field: Any = str(error).partition(":")[0]
    named = field if field.isidentifier() else None
    return ApiError(status, str(error), param=named, code="invalid_experiment")
