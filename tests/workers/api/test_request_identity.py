"""One x-request-id an answer."""

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from workers.api import create_app

Ask = Callable[..., list[str]]


@pytest.fixture
def ids(backend: Any) -> Ask:
    """The ids in the answer to a request with these headers."""

    def ask(headers: dict[str, str]) -> list[str]:
        async def send() -> list[str]:
            transport = httpx.ASGITransport(create_app(backend), client=("127.0.0.1", 1))
            async with httpx.AsyncClient(transport=transport, base_url="http://kadence") as http:
                return (await http.get("/health", headers=headers)).headers.get_list("x-request-id")

        return asyncio.run(send())

    return ask


def test_the_clients_id_comes_back_once(ids: Ask) -> None:
    assert ids({"x-request-id": "mine-1"}) == ["mine-1"]


@pytest.mark.parametrize("headers", [{}, {"x-request-id": "a b"}, {"x-request-id": "x" * 200}])
def test_without_a_sane_one_there_is_one_of_ours(ids: Ask, headers: dict[str, str]) -> None:
    (given,) = ids(headers)
    assert given.startswith("req-")
