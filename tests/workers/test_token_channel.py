"""A worker's tokens on their way to endpoints: over real sockets, without Ray and without an engine."""

from __future__ import annotations

import asyncio
import asyncio.unix_events
import errno
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

import workers.token_inlet
import workers.token_outlet
from workers.admission import Admission
from workers.backend import Overloaded, WorkerError
from workers.deadlines import QUEUE_WAIT
from workers.open_requests import OpenRequests
from workers.request_ends import RequestEnds
from workers.sequence import Chunk, EngineRequest, SamplingParams
from workers.token_inlet import TokenInlet
from workers.token_outlet import EndpointLost, Outlet, Outlets
from workers.token_wire import EndpointAddress, encode, framed

WITHIN_S = 5.0


class Engine:
    """Keeps what it was told."""

    def __init__(self) -> None:
        self.submitted: list[str] = []
        self.cancelled: list[str] = []

    def submit(self, request: EngineRequest) -> None:
        self.submitted.append(request.request_id)


class Rig:
    """A worker's side, whose engine is the test, and as many endpoints as are asked for."""

    def __init__(self, limit: int = 8) -> None:
        self.engine = Engine()
        self.outlets = Outlets()
        self.requests = OpenRequests(Admission(limit), RequestEnds(), self.engine.submit, self.engine.cancelled.append)
        self.inlets: list[TokenInlet] = []

    def endpoint(self) -> TokenInlet:
        self.inlets.append(TokenInlet())
        return self.inlets[-1]

    async def call(self, request_id: str, inlet: TokenInlet) -> asyncio.Task[None]:
        """What a worker does with a request, up to where the engine has it."""
        outlet = await self.outlets.reach(await inlet.address())
        task = asyncio.create_task(self.requests.serve(asked(request_id), outlet))
        await asyncio.sleep(0)
        return task


def asked(request_id: str) -> EngineRequest:
    return EngineRequest(request_id, (1,), SamplingParams(4), "default")


def run(test: Callable[[Rig], Awaitable[Any]], limit: int = 8) -> Any:
    async def inside() -> Any:
        rig = Rig(limit)
        try:
            return await asyncio.wait_for(test(rig), WITHIN_S)
        finally:
            rig.outlets.close()
            for inlet in rig.inlets:
                inlet.stop()

    return asyncio.run(inside())


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


def test_a_step_is_one_message_to_each_endpoint_and_each_request_gets_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []
    send = Outlet.send
    monkeypatch.setattr(Outlet, "send", lambda self, chunks: (sent.append(len(chunks)), send(self, chunks))[1])

    async def test(rig: Rig) -> list[list[Chunk]]:
        one, other = rig.endpoint(), rig.endpoint()
        streams = [one.open("a"), one.open("b"), other.open("c")]
        calls = [await rig.call(*which) for which in (("a", one), ("b", one), ("c", other))]
        rig.requests.deliver([Chunk(name, (1,), name) for name in "abc"])
        rig.requests.deliver([Chunk(name, (2,), "", finish_reason="stop") for name in "abc"])
        await asyncio.gather(*calls)
        return [[await stream.get(), await stream.get()] for stream in streams]

    got = run(test)
    assert sent == [2, 1, 2, 1]
    assert [[(c.request_id, c.token_ids, c.finish_reason) for c in chunks] for chunks in got] == [
        [(name, (1,), None), (name, (2,), "stop")] for name in "abc"
    ]


@pytest.mark.parametrize(("local", "family"), [(None, "AF_UNIX"), ("\0nobody-listens", "AF_INET"), ("", "AF_INET")])
def test_an_endpoint_is_reached_by_the_machines_own_way_where_it_can_be(local: str | None, family: str) -> None:
    async def test(rig: Rig) -> tuple[str, str]:
        inlet = rig.endpoint()
        address = await inlet.address()
        outlet = await rig.outlets.reach(address if local is None else replace(address, local=local))
        stream = inlet.open("a")
        outlet.send([Chunk("a", (1,), "text")])
        return outlet._socket.family.name, (await stream.get()).text

    assert run(test) == (family, "text")


def test_requests_of_one_endpoint_share_one_connection() -> None:
    async def test(rig: Rig) -> bool:
        address = await rig.endpoint().address()
        first, second = await asyncio.gather(rig.outlets.reach(address), rig.outlets.reach(address))
        return first is second is await rig.outlets.reach(address)

    assert run(test)


def test_a_step_in_the_middle_of_requests_needs_no_event_loop() -> None:
    async def test(rig: Rig) -> list[tuple[int, ...]]:
        inlet = rig.endpoint()
        stream = inlet.open("a")
        call = await rig.call("a", inlet)
        first, second, last = Chunk("a", (1,), ""), Chunk("a", (2,), ""), Chunk("a", (3,), "", finish_reason="stop")
        assert not rig.requests.pass_on([first])
        rig.requests.deliver([first])
        assert await asyncio.to_thread(rig.requests.pass_on, [second])
        assert not rig.requests.pass_on([last])
        rig.requests.deliver([last])
        await call
        return [(await stream.get()).token_ids for _ in range(3)]

    assert run(test) == [(1,), (2,), (3,)]


def test_no_step_overtakes_one_that_the_event_loop_has_yet_to_deliver() -> None:
    async def test(rig: Rig) -> list[bool]:
        inlet = rig.endpoint()
        a, b = await rig.call("a", inlet), await rig.call("b", inlet)
        passed = [rig.requests.pass_on([Chunk("a", (1,), "")])]
        rig.requests.deliver([Chunk("a", (1,), "")])
        passed += [rig.requests.pass_on([Chunk("b", (1,), "")]), rig.requests.pass_on([Chunk("a", (2,), "")])]
        for chunk in (Chunk("b", (1,), ""), Chunk("a", (2,), "")):
            rig.requests.deliver([chunk])
        passed.append(rig.requests.pass_on([Chunk("a", (3,), ""), Chunk("b", (2,), "")]))
        for task in (a, b):
            task.cancel()
        return passed

    assert run(test) == [False, False, False, True]


def test_a_step_with_a_request_that_was_given_up_is_the_event_loops() -> None:
    async def test(rig: Rig) -> bool:
        inlet = rig.endpoint()
        call = await rig.call("a", inlet)
        rig.requests.deliver([Chunk("a", (1,), "")])
        rig.requests._handed_over = rig.requests._delivered
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        return rig.requests.pass_on([Chunk("a", (2,), "")])

    assert run(test) is False


def test_what_an_endpoint_is_slow_to_read_arrives_in_order() -> None:
    steps, text = 200, "x" * 50_000

    async def test(rig: Rig) -> list[int]:
        inlet = rig.endpoint()
        stream = inlet.open("a")
        call = await rig.call("a", inlet)

        def all_at_once() -> None:  # ten megabytes while nobody reads: more than a socket holds
            for n in range(steps):
                chunk = Chunk("a", (n,), text, finish_reason="stop" if n == steps - 1 else None)
                if not rig.requests.pass_on([chunk]):
                    rig.requests.deliver([chunk])

        all_at_once()
        await call
        return [(await stream.get()).token_ids[0] for _ in range(steps)]

    assert run(test) == list(range(steps))


def test_an_endpoint_that_reads_nothing_is_let_go_and_what_waits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers.token_outlet, "MOST_UNSENT_BYTES", 2**20)

    async def test(rig: Rig) -> tuple[BaseException | None, int]:
        inlet = rig.endpoint()
        call = await rig.call("a", inlet)
        outlet = await rig.outlets.reach(await inlet.address())
        most = 0
        for _ in range(400):
            outlet.send([Chunk("a", (1,), "x" * 50_000)])
            most = max(most, len(outlet._unsent))
        await asyncio.wait([call])
        return call.exception(), most

    with capture_logs() as lines:
        error, most = run(test)
    assert isinstance(error, EndpointLost)
    assert 2**20 < most < 2**20 + 60_000
    assert len(lines) == 1


def test_trouble_with_one_endpoint_is_not_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    broken: list[Outlet] = []
    send = Outlet.send

    def failing(self: Outlet, chunks: list[Chunk]) -> None:
        if self in broken:
            raise MemoryError
        send(self, chunks)

    monkeypatch.setattr(Outlet, "send", failing)

    async def test(rig: Rig) -> tuple[bool, BaseException | None, list[tuple[int, ...]]]:
        one, other = rig.endpoint(), rig.endpoint()
        stream = other.open("b")
        a, b = await rig.call("a", one), await rig.call("b", other)
        rig.requests.deliver([Chunk("a", (1,), ""), Chunk("b", (1,), "")])
        rig.requests._handed_over = rig.requests._delivered
        broken.append(await rig.outlets.reach(await one.address()))
        is_sent = rig.requests.pass_on([Chunk("a", (2,), ""), Chunk("b", (2,), "")])
        await asyncio.wait([a])
        b.cancel()
        return is_sent, a.exception(), [(await stream.get()).token_ids for _ in range(2)]

    with capture_logs():
        is_sent, error, got = run(test)
    assert is_sent
    assert isinstance(error, EndpointLost)
    assert got == [(1,), (2,)]


def test_what_waits_is_sent_before_a_worker_lets_go_of_an_endpoint() -> None:
    steps = 100

    async def test(rig: Rig) -> list[int]:
        inlet = rig.endpoint()
        stream = inlet.open("a")
        outlet = await rig.outlets.reach(await inlet.address())
        for n in range(steps):
            outlet.send([Chunk("a", (n,), "x" * 50_000)])
        assert outlet._unsent
        rig.outlets.close()
        got = [(await stream.get()).token_ids[0] for _ in range(steps)]
        await until(lambda: outlet.is_lost)
        return got

    assert run(test) == list(range(steps))


def test_after_a_failed_send_nothing_more_goes_out() -> None:
    class Short:
        """A socket without memory, once."""

        def __init__(self, real: Any) -> None:
            self._real, self._has_failed = real, False

        def __getattr__(self, name: str) -> Any:
            return getattr(self._real, name)

        def send(self, data: bytearray) -> int:
            if self._has_failed:
                return int(self._real.send(data))
            self._has_failed = True
            raise OSError(errno.ENOBUFS, "no buffer space")

    async def test(rig: Rig) -> tuple[bool, int]:
        inlet = rig.endpoint()
        stream = inlet.open("a")
        outlet = await rig.outlets.reach(await inlet.address())
        outlet._socket = Short(outlet._socket)  # type: ignore[assignment]
        for n in range(3):
            outlet.send([Chunk("a", (n,), "")])
        await until(lambda: outlet.is_lost and not inlet._sources)
        return outlet.is_lost, stream._waiting.qsize()

    assert run(test) == (True, 0)


def test_an_endpoint_that_may_have_no_unix_socket_is_reached_by_tcp(monkeypatch: pytest.MonkeyPatch) -> None:
    async def forbidden(*args: Any, **options: Any) -> None:
        raise PermissionError("not in this container")

    monkeypatch.setattr(asyncio.unix_events._UnixSelectorEventLoop, "create_unix_server", forbidden)

    async def test(rig: Rig) -> str:
        outlet = await rig.outlets.reach(await rig.endpoint().address())
        return outlet._socket.family.name

    with capture_logs():
        assert run(test) == "AF_INET"


def test_a_call_that_is_cancelled_ends_its_request_in_the_engine_and_the_others_go_on() -> None:
    async def test(rig: Rig) -> tuple[list[str], Chunk]:
        inlet = rig.endpoint()
        stream = inlet.open("b")
        a, b = await rig.call("a", inlet), await rig.call("b", inlet)
        a.cancel()
        await asyncio.gather(a, return_exceptions=True)
        rig.requests.deliver([Chunk("a", (1,), ""), Chunk("b", (1,), "", finish_reason="stop")])
        await b
        return rig.engine.cancelled, await stream.get()

    cancelled, chunk = run(test)
    assert cancelled == ["a"]
    assert chunk.finish_reason == "stop"


def test_an_endpoint_that_goes_away_ends_its_requests_and_nobody_elses() -> None:
    async def test(rig: Rig) -> tuple[BaseException | None, list[str], bool]:
        gone, stays = rig.endpoint(), rig.endpoint()
        a, b = await rig.call("a", gone), await rig.call("b", stays)
        await until(lambda: gone._sources)
        gone.stop()
        await asyncio.wait([a])
        is_open = not b.done()
        b.cancel()
        return a.exception(), rig.engine.cancelled[:1], is_open

    error, cancelled, is_open = run(test)
    assert isinstance(error, EndpointLost)
    assert cancelled == ["a"]
    assert is_open


def test_an_endpoint_that_cannot_be_reached_is_a_workers_error_and_nothing_is_left_of_it() -> None:
    async def test(rig: Rig) -> int:
        inlet = rig.endpoint()
        address = await inlet.address()
        inlet.stop()
        with pytest.raises(EndpointLost, match="cannot reach"):
            await rig.outlets.reach(address)
        await rig.outlets.reach(await rig.endpoint().address())
        return len(rig.outlets._outlets)

    with capture_logs():
        assert run(test) == 1


def test_a_connection_that_was_lost_is_made_anew() -> None:
    async def test(rig: Rig) -> tuple[bool, str]:
        inlet = rig.endpoint()
        address = await inlet.address()
        first = await rig.outlets.reach(address)
        first.close()
        await until(lambda: first.is_lost)
        stream = inlet.open("a")
        call = await rig.call("a", inlet)
        rig.requests.deliver([Chunk("a", (1,), "text", finish_reason="stop")])
        await call
        return await rig.outlets.reach(address) is first, (await stream.get()).text

    assert run(test) == (False, "text")


def test_who_has_to_make_room_is_told_by_its_call_and_gets_no_token() -> None:
    async def test(rig: Rig) -> tuple[BaseException | None, list[str]]:
        inlet = rig.endpoint()
        flood = [await rig.call(name, inlet) for name in "ab"]
        outlet = await rig.outlets.reach(await inlet.address())
        request = EngineRequest("c", (1,), SamplingParams(4), "default", tenant="other")
        late = asyncio.create_task(rig.requests.serve(request, outlet))
        await asyncio.wait([flood[1]])
        for task in (flood[0], late):
            task.cancel()
        return flood[1].exception(), rig.engine.cancelled[:1]

    error, cancelled = run(test, limit=2)
    assert isinstance(error, Overloaded)
    assert cancelled == ["b"]


def test_a_request_that_waited_too_long_is_overload() -> None:
    async def test(rig: Rig) -> None:
        call = await rig.call("a", rig.endpoint())
        rig.requests.deliver([Chunk("a", (), "", finish_reason="error", error=QUEUE_WAIT)])
        await call

    with pytest.raises(Overloaded, match="too long"):
        run(test)


def test_a_stream_whose_worker_is_gone_fails_even_if_its_call_never_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers.token_inlet, "LATE_S", 0.02)

    async def test(rig: Rig) -> str:
        inlet = rig.endpoint()
        stream = inlet.open("a")
        call = await rig.call("a", inlet)
        rig.requests.deliver([Chunk("a", (1,), "begun")])
        text = (await stream.get()).text
        rig.outlets.close()
        with pytest.raises(WorkerError, match="went away"):
            await stream.get()
        await asyncio.gather(call, return_exceptions=True)
        return text

    assert run(test) == "begun"


def test_nothing_is_kept_of_streams_that_are_closed() -> None:
    async def test(rig: Rig) -> tuple[int, int]:
        inlet = rig.endpoint()
        for n in range(3):
            stream = inlet.open(f"{n}")
            call = await rig.call(f"{n}", inlet)
            rig.requests.deliver([Chunk(f"{n}", (1,), "", finish_reason="stop")])
            await call
            await stream.get()
            inlet.close(f"{n}")
            stream.fail_late("too late to matter")
        return inlet.open_streams, len(rig.requests._open)

    assert run(test) == (0, 0)


@pytest.mark.parametrize("said", [framed(b"guess"), framed(b"x" * 300), encode([Chunk("a", (1,), "injected")])])
def test_who_does_not_say_the_secret_brings_nothing(said: bytes) -> None:
    async def test(rig: Rig) -> int:
        inlet = rig.endpoint()
        stream = inlet.open("a")
        address = await inlet.address()
        reader, writer = await asyncio.open_connection(address.host, address.port)
        writer.write(said + encode([Chunk("a", (1,), "injected")]))
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
        writer.close()
        return stream._waiting.qsize()

    with capture_logs() as lines:
        assert run(test) == 0
    assert [line["reason"] for line in lines] == ["not a worker's"]


def test_who_says_nothing_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers.token_inlet, "GREET_WITHIN_S", 0.02)

    async def test(rig: Rig) -> int:
        address = await (inlet := rig.endpoint()).address()
        reader, writer = await asyncio.open_connection(address.host, address.port)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
        writer.close()
        await until(lambda: not inlet._sources)
        return len(inlet._sources)

    assert run(test) == 0


def test_an_address_is_a_value_that_connections_are_kept_by() -> None:
    assert EndpointAddress("h", 1, "s") == EndpointAddress("h", 1, "s")
