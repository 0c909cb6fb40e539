"""One x-request-id an answer, also behind Ray's proxy, which adds one by itself."""

import asyncio
import warnings
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from workers.api import create_app
from workers.request_identity import PROXY_CALLBACK

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of Ray's own use of Pydantic
    from ray._common.utils import import_attr
    from ray.serve._private.http_util import _apply_middlewares

Proxied = Callable[..., list[str]]


@pytest.fixture
def ids_behind_the_proxy(backend: Any) -> Proxied:
    """The ids in the answer to a request with these headers, through the layers that Ray's proxy puts around it."""

    def ask(headers: dict[str, str], *, configured: bool = True) -> list[str]:
        (path,) = PROXY_CALLBACK.values()
        app = _apply_middlewares(create_app(backend), import_attr(path)() if configured else [])

        async def send() -> list[str]:
            transport = httpx.ASGITransport(app, client=("127.0.0.1", 1))
            async with httpx.AsyncClient(transport=transport, base_url="http://kadence") as http:
                return (await http.get("/health", headers=headers)).headers.get_list("x-request-id")

        return asyncio.run(send())

    return ask


def test_the_clients_id_comes_back_once(ids_behind_the_proxy: Proxied) -> None:
    assert ids_behind_the_proxy({"x-request-id": "mine-1"}) == ["mine-1"]


@pytest.mark.parametrize("headers", [{}, {"x-request-id": "a b"}, {"x-request-id": "x" * 200}])
def test_without_a_sane_one_there_is_one_of_ours(ids_behind_the_proxy: Proxied, headers: dict[str, str]) -> None:
    (given,) = ids_behind_the_proxy(headers)
    assert given.startswith("req-")


def test_the_proxy_alone_would_send_it_twice(ids_behind_the_proxy: Proxied) -> None:
    assert len(ids_behind_the_proxy({}, configured=False)) == 2
