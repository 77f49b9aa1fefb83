"""Connections without a socket: what the server does by itself, by a clock that waits for none."""

from __future__ import annotations

import asyncio

import pytest
from starlette.types import Receive, Scope, Send

from scanline.service.http.protocol import connection_limiter
from scanline.service.http.protocol.connection import (
    MAX_PIPELINED,
    MIN_READ_BYTES,
    PEER_CHECK_SECONDS,
    BoundedHttpProtocol,
)
from scanline.service.http.protocol.connection_limiter import ConnectionLimits
from tests.fake_clock import run_skipping
from tests.fake_transport import GET, LIMITS, FakeServer, FakeTransport, reply, think


@pytest.mark.parametrize(
    ("left", "seconds"),
    [(5 * MIN_READ_BYTES, 2), (10 * MIN_READ_BYTES - 1, 1)],
    ids=["half", "a byte"],
)
def test_a_client_that_reads_too_slowly_is_aborted(left: int, seconds: int) -> None:
    async def read_some() -> None:
        server = FakeServer(think)
        connection, transport = server.enter()
        connection.data_received(GET)
        transport.unread = 10 * MIN_READ_BYTES
        connection.pause_writing()
        transport.unread = left
        await asyncio.sleep(seconds - 0.5)
        aborted = transport.aborted
        await asyncio.sleep(1)
        connection.connection_lost(None)  # or its timers go on for ever
        assert not aborted
        assert transport.aborted
        assert server.turned_away("unread") == 1

    run_skipping(read_some())


def test_a_disconnect_reaches_the_first_of_two_pipelined_requests() -> None:
    async def ask_twice_and_leave() -> None:
        told: list[str] = []

        async def wait_for_the_end(scope: Scope, receive: Receive, send: Send) -> None:
            while (message := await receive())["type"] == "http.request":
                pass
            told.append(message["type"])

        server = FakeServer(wait_for_the_end)
        for how in ("leaves", "is refused"):
            connection, _ = server.enter()
            connection.data_received(GET + GET)
            await asyncio.sleep(0.1)
            assert not told
            if how == "leaves":
                connection.connection_lost(None)
            else:
                connection.data_received(b"no HTTP\r\n\r\n")
            await asyncio.sleep(0.1)
            assert told == ["http.disconnect"]
            told.clear()

    run_skipping(ask_twice_and_leave())


def test_a_disconnect_stops_the_write_timeout() -> None:
    async def leave() -> None:
        server = FakeServer(reply)
        connection, transport = server.enter()
        transport.unread = 10 * MIN_READ_BYTES
        connection.pause_writing()
        connection.connection_lost(None)
        await asyncio.sleep(5)
        assert (server.turned_away("unread"), server.turned_away("late")) == (0, 0)

    run_skipping(leave())


def test_a_disconnect_stops_the_peer_check(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks: list[BoundedHttpProtocol] = []

    def look(connection: BoundedHttpProtocol) -> bool:
        looks.append(connection)
        return False

    monkeypatch.setattr(BoundedHttpProtocol, "_peer_closed", look)

    async def leave() -> None:
        connection, _ = FakeServer(think).enter()
        connection.data_received(GET * 2)
        await asyncio.sleep(PEER_CHECK_SECONDS * 1.5)
        assert len(looks) == 1
        connection.connection_lost(None)
        await asyncio.sleep(PEER_CHECK_SECONDS * 5)
        assert len(looks) == 1

    run_skipping(leave())


def test_unread_replies_are_limited_in_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection_limiter, "MAX_UNSENT_BYTES", 1000)

    async def ask_and_read_nothing() -> None:
        server = FakeServer(reply)
        guests = [server.enter() for _ in range(4)]

        def leave_unread(who: int, unread: int) -> None:
            connection, transport = guests[who]
            transport.unread = unread
            connection.pause_writing()

        for who in range(2):
            leave_unread(who, 400)
        guests[0][0].resume_writing()  # it has read everything, and counts no more
        leave_unread(2, 400)
        assert not any(transport.aborted for _, transport in guests)
        leave_unread(3, 400)
        assert [transport.aborted for _, transport in guests] == [False, True, False, False]
        leave_unread(0, 1001)
        assert [transport.aborted for _, transport in guests] == [True, True, True, True]
        assert server.turned_away("unread") == 4
        guests = [server.enter() for _ in range(1999)]
        for who in range(1998):
            leave_unread(who, 1)
            guests[who][1].aborted = False
        leave_unread(1998, 1000)
        assert [transport.aborted for _, transport in guests[998:]] == [True] * 1000 + [False]

    run_skipping(ask_and_read_nothing())


def test_each_of_many_new_connections_replaces_another() -> None:
    """Though none of those cut off is seen to have gone yet."""

    async def come() -> None:
        server = FakeServer(reply, ConnectionLimits(connections=2))
        wires = [server.enter()[1] for _ in range(5)]
        assert [transport.aborted for transport in wires] == [True, True, True, False, False]
        assert server.turned_away("crowded") == 3

    run_skipping(come())


def test_the_client_with_the_most_connections_makes_room() -> None:
    """The newest of them, and for a client that then has no more than they."""

    async def come() -> None:
        server = FakeServer(think, ConnectionLimits(connections=5))

        def ask(address: str) -> FakeTransport:
            connection, transport = server.enter(address)
            if transport.aborted:
                connection.connection_lost(None)
            else:
                connection.data_received(GET)
            return transport

        crowd = [ask("10.0.0.1") for _ in range(5)]
        assert b"full" in ask("10.0.0.1").sent
        assert server.turned_away("full") == 1
        assert not any(transport.aborted for transport in crowd)
        others = [ask("2001:db8::1"), ask("2001:db8::2")]  # of one network
        assert [transport.aborted for transport in crowd] == [False] * 3 + [True] * 2
        assert b"full" in ask("2001:db8::3").sent  # who would have as many
        assert [transport.aborted for transport in crowd] == [False] * 3 + [True] * 2
        another = ask("10.0.0.2")
        assert [transport.aborted for transport in crowd] == [False] * 2 + [True] * 3
        assert not any(transport.aborted for transport in [*others, another])
        assert server.turned_away("share") == 3
        assert server.turned_away("full") == 2

    run_skipping(come())


def test_a_connection_answered_before_its_body_ended_times_out() -> None:
    async def idle() -> None:
        server = FakeServer(reply)
        connection, transport = server.enter()
        connection.data_received(b"PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n")
        await asyncio.sleep(0.1)
        connection.data_received(b"12345")
        await asyncio.sleep(0.9)
        assert not transport.aborted
        await asyncio.sleep(0.2)
        assert transport.aborted
        assert server.turned_away("late") == 1

    run_skipping(idle())


def test_an_answered_connection_makes_room() -> None:
    async def idle() -> None:
        server = FakeServer(reply, ConnectionLimits(connections=1))
        first, transport = server.enter()
        first.data_received(GET)
        await asyncio.sleep(0.1)
        assert transport.sent.startswith(b"HTTP/1.1 204 ")
        _, next_one = server.enter()
        assert (transport.aborted, next_one.aborted) == (True, False)

    run_skipping(idle())


def test_a_rejected_connection_makes_room() -> None:
    """Behind a request that is being worked on, and now for nobody."""

    async def refuse() -> None:
        server = FakeServer(think, ConnectionLimits(connections=1))
        first, transport = server.enter()
        first.data_received(GET)
        first.data_received(b"no HTTP\r\n\r\n")
        assert transport.sent.startswith(b"HTTP/1.1 400 ")
        _, next_one = server.enter()
        assert (transport.aborted, next_one.aborted) == (True, False)

    run_skipping(refuse())


def test_pipelined_requests_are_limited() -> None:
    async def hurry() -> None:
        connection, transport = FakeServer(think).enter()
        connection.data_received(GET * (1 + MAX_PIPELINED))
        assert not transport.aborted
        connection.data_received(GET)
        assert transport.aborted
        assert transport.sent == b""  # which the client would take for the first one's answer

    run_skipping(hurry())


def test_the_body_of_a_queued_request_does_not_time_out() -> None:
    async def queue() -> None:
        connection, transport = FakeServer(think, LIMITS).enter()
        connection.data_received(GET)
        connection.data_received(b"PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n")
        await asyncio.sleep(10)
        assert not transport.aborted
        await asyncio.sleep(100)  # the first is answered, and it has the time of any other
        assert transport.sent.startswith(b"HTTP/1.1 204 ")

    run_skipping(queue())


def test_a_rejection_disconnects_the_application_at_once() -> None:
    heard: list[str] = []

    async def listen(scope: Scope, receive: Receive, send: Send) -> None:
        heard.append((await receive())["type"])

    async def break_off() -> None:
        connection, _ = FakeServer(listen).enter()
        connection.data_received(b"PUT / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        await asyncio.sleep(0)
        connection.data_received(b"no number\r\n")
        await asyncio.sleep(0.1)
        assert heard == ["http.disconnect"]

    run_skipping(break_off())


def test_a_connection_answered_before_its_body_ended_makes_room() -> None:
    async def go_on() -> None:
        server = FakeServer(reply, ConnectionLimits(connections=1))
        first, transport = server.enter()
        first.data_received(b"PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n")
        await asyncio.sleep(0.1)
        assert transport.sent.startswith(b"HTTP/1.1 204 ")
        first.data_received(b"12345")
        _, next_one = server.enter()
        assert (transport.aborted, next_one.aborted) == (True, False)

    run_skipping(go_on())


def test_lingering_connections_make_no_room() -> None:
    async def come() -> None:
        server = FakeServer(think, ConnectionLimits(connections=2))
        for _ in range(2):
            server.enter("10.0.0.1")[0].data_received(GET)
        more = [server.enter("10.0.0.1")[1] for _ in range(3)]
        assert all(b"full" in transport.sent for transport in more)
        assert server.turned_away("full") == 3

    run_skipping(come())


def test_closed_lingering_connections_make_no_room() -> None:
    async def come() -> None:
        server = FakeServer(think, ConnectionLimits(connections=1))
        server.enter("10.0.0.1")[0].data_received(GET)
        for _ in range(connection_limiter.MAX_LINGERING + 3):
            connection, transport = server.enter("10.0.0.1")
            assert b"full" in transport.sent
            connection.connection_lost(None)

    run_skipping(come())
