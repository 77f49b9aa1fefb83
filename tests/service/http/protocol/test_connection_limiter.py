"""Tests of connections without sockets, with a fake clock."""

from __future__ import annotations

import asyncio

import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from scanline.service.http.protocol import connection_limiter
from scanline.service.http.protocol.connection import (
    MAX_PIPELINED,
    MIN_READ_BYTES,
    PEER_CHECK_SECONDS,
    BoundedHttpProtocol,
)
from scanline.service.http.protocol.connection_limiter import ConnectionLimits
from tests.fake_clock import run_skipping
from tests.service.http.protocol.fake_transport import (
    GET,
    LIMITS,
    FakeServer,
    FakeTransport,
    reply_at_once,
    reply_late,
)

PUT = b"PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n"


@pytest.mark.parametrize(
    ("left", "seconds"),
    [(5 * MIN_READ_BYTES, 2), (10 * MIN_READ_BYTES - 1, 1)],
    ids=["half", "a byte"],
)
def test_a_client_that_reads_too_slowly_is_aborted(left: int, seconds: int) -> None:
    async def read_some() -> None:
        server = FakeServer(reply_late)
        connection, transport = server.connect()
        connection.data_received(GET)
        transport.unread = 10 * MIN_READ_BYTES
        connection.pause_writing()
        transport.unread = left
        await asyncio.sleep(seconds - 0.5)
        aborted = transport.aborted
        await asyncio.sleep(1)
        connection.connection_lost(None)  # stops its timers
        assert not aborted
        assert transport.aborted
        assert server.closed_count("unread") == 1

    run_skipping(read_some())


def test_a_disconnect_reaches_the_first_of_two_pipelined_requests() -> None:
    async def ask_twice_and_leave() -> None:
        messages: list[str] = []

        async def wait_for_the_end(scope: Scope, receive: Receive, send: Send) -> None:
            while (message := await receive())["type"] == "http.request":
                pass
            messages.append(message["type"])

        server = FakeServer(wait_for_the_end)
        for how in ("leaves", "is refused"):
            connection, _ = server.connect()
            connection.data_received(GET + GET)
            await asyncio.sleep(0.1)
            assert not messages
            if how == "leaves":
                connection.connection_lost(None)
            else:
                connection.data_received(b"no HTTP\r\n\r\n")
            await asyncio.sleep(0.1)
            assert messages == ["http.disconnect"]
            messages.clear()

    run_skipping(ask_twice_and_leave())


def test_a_disconnect_stops_the_write_timeout() -> None:
    async def leave() -> None:
        server = FakeServer(reply_at_once)
        connection, transport = server.connect()
        transport.unread = 10 * MIN_READ_BYTES
        connection.pause_writing()
        connection.connection_lost(None)
        await asyncio.sleep(5)
        assert (server.closed_count("unread"), server.closed_count("late")) == (0, 0)

    run_skipping(leave())


def test_a_disconnect_stops_the_peer_check(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checks: list[BoundedHttpProtocol] = []

    def check(connection: BoundedHttpProtocol) -> bool:
        checks.append(connection)
        return False

    monkeypatch.setattr(BoundedHttpProtocol, "_peer_closed", check)

    async def leave() -> None:
        connection, _ = FakeServer(reply_late).connect()
        connection.data_received(GET * 2)
        await asyncio.sleep(PEER_CHECK_SECONDS * 1.5)
        assert len(checks) == 1
        connection.connection_lost(None)
        await asyncio.sleep(PEER_CHECK_SECONDS * 5)
        assert len(checks) == 1

    run_skipping(leave())


def test_unread_replies_are_limited_in_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection_limiter, "MAX_UNSENT_BYTES", 1000)

    async def ask_and_read_nothing() -> None:
        server = FakeServer(reply_at_once)
        clients = [server.connect() for _ in range(4)]

        def set_unread(who: int, unread: int) -> None:
            connection, transport = clients[who]
            transport.unread = unread
            connection.pause_writing()

        for who in range(2):
            set_unread(who, 400)
        clients[0][0].resume_writing()  # it has read everything
        set_unread(2, 400)
        assert not any(transport.aborted for _, transport in clients)
        set_unread(3, 400)
        assert [transport.aborted for _, transport in clients] == [False, True, False, False]
        set_unread(0, 1001)
        assert [transport.aborted for _, transport in clients] == [True, True, True, True]
        assert server.closed_count("unread") == 4
        clients = [server.connect() for _ in range(1999)]
        for who in range(1998):
            set_unread(who, 1)
            clients[who][1].aborted = False
        set_unread(1998, 1000)
        assert [transport.aborted for _, transport in clients[998:]] == [True] * 1000 + [False]

    run_skipping(ask_and_read_nothing())


def test_each_of_many_new_connections_replaces_another() -> None:
    """The aborted connections have not been reported as lost yet."""

    async def connect() -> None:
        server = FakeServer(reply_at_once, ConnectionLimits(connections=2))
        transports = [server.connect()[1] for _ in range(5)]
        assert [transport.aborted for transport in transports] == [True, True, True, False, False]
        assert server.closed_count("crowded") == 3

    run_skipping(connect())


def test_the_client_with_the_most_connections_makes_room() -> None:
    """Its newest connection is closed, if the new client would not have more than it."""

    async def connect() -> None:
        server = FakeServer(reply_late, ConnectionLimits(connections=5))

        def ask(address: str) -> FakeTransport:
            connection, transport = server.connect(address)
            if transport.aborted:
                connection.connection_lost(None)
            else:
                connection.data_received(GET)
            return transport

        crowd = [ask("10.0.0.1") for _ in range(5)]
        assert b"full" in ask("10.0.0.1").sent
        assert server.closed_count("full") == 1
        assert not any(transport.aborted for transport in crowd)
        others = [ask("2001:db8::1"), ask("2001:db8::2")]  # of the same /64 network
        assert [transport.aborted for transport in crowd] == [False] * 3 + [True] * 2
        assert b"full" in ask("2001:db8::3").sent  # that would be more than the other's
        assert [transport.aborted for transport in crowd] == [False] * 3 + [True] * 2
        another = ask("10.0.0.2")
        assert [transport.aborted for transport in crowd] == [False] * 2 + [True] * 3
        assert not any(transport.aborted for transport in [*others, another])
        assert server.closed_count("share") == 3
        assert server.closed_count("full") == 2

    run_skipping(connect())


def test_a_connection_answered_before_its_body_ended_times_out() -> None:
    async def idle() -> None:
        server = FakeServer(reply_at_once)
        connection, transport = server.connect()
        connection.data_received(PUT)
        await asyncio.sleep(0.1)
        connection.data_received(b"12345")
        await asyncio.sleep(0.9)
        assert not transport.aborted
        await asyncio.sleep(0.2)
        assert transport.aborted
        assert server.closed_count("late") == 1

    run_skipping(idle())


@pytest.mark.parametrize(
    ("app", "data", "status"),
    [
        (reply_at_once, [GET], 204),
        (reply_at_once, [PUT, b"12345"], 204),  # answered before its body ended
        (reply_late, [GET, b"no HTTP\r\n\r\n"], 400),
    ],
    ids=["answered", "early", "rejected"],
)
def test_an_idle_connection_makes_room(app: ASGIApp, data: list[bytes], status: int) -> None:
    async def connect() -> None:
        server = FakeServer(app, ConnectionLimits(connections=1))
        first, transport = server.connect()
        first.data_received(data[0])
        await asyncio.sleep(0.1)
        for part in data[1:]:
            first.data_received(part)
        assert transport.sent.startswith(b"HTTP/1.1 %d " % status)
        _, second = server.connect()
        assert (transport.aborted, second.aborted) == (True, False)

    run_skipping(connect())


def test_pipelined_requests_are_limited() -> None:
    async def hurry() -> None:
        connection, transport = FakeServer(reply_late).connect()
        connection.data_received(GET * (1 + MAX_PIPELINED))
        assert not transport.aborted
        connection.data_received(GET)
        assert transport.aborted
        assert transport.sent == b""  # an error would pass for the first request's reply

    run_skipping(hurry())


def test_the_body_of_a_queued_request_does_not_time_out() -> None:
    async def queue() -> None:
        connection, transport = FakeServer(reply_late, LIMITS).connect()
        connection.data_received(GET)
        connection.data_received(PUT)
        await asyncio.sleep(10)
        assert not transport.aborted
        await asyncio.sleep(100)  # the first is answered, and the body has its usual timeout
        assert transport.sent.startswith(b"HTTP/1.1 204 ")

    run_skipping(queue())


def test_a_rejection_disconnects_the_application_at_once() -> None:
    messages: list[str] = []

    async def listen(scope: Scope, receive: Receive, send: Send) -> None:
        messages.append((await receive())["type"])

    async def break_off() -> None:
        connection, _ = FakeServer(listen).connect()
        connection.data_received(b"PUT / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        await asyncio.sleep(0)
        connection.data_received(b"no number\r\n")
        await asyncio.sleep(0.1)
        assert messages == ["http.disconnect"]

    run_skipping(break_off())


def test_lingering_connections_make_no_room() -> None:
    async def connect() -> None:
        server = FakeServer(reply_late, ConnectionLimits(connections=2))
        for _ in range(2):
            server.connect("10.0.0.1")[0].data_received(GET)
        more = [server.connect("10.0.0.1")[1] for _ in range(3)]
        assert all(b"full" in transport.sent for transport in more)
        assert server.closed_count("full") == 3

    run_skipping(connect())


def test_closed_lingering_connections_make_no_room() -> None:
    async def connect() -> None:
        server = FakeServer(reply_late, ConnectionLimits(connections=1))
        server.connect("10.0.0.1")[0].data_received(GET)
        for _ in range(connection_limiter.MAX_LINGERING + 3):
            connection, transport = server.connect("10.0.0.1")
            assert b"full" in transport.sent
            connection.connection_lost(None)

    run_skipping(connect())
