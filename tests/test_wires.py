"""Connections without a socket: what the server does by itself, by a clock that waits for none."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvicorn
from prometheus_client import Counter
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from scanline.service.http import door
from scanline.service.http.connections import (
    LOOK_SECONDS,
    MAX_HEADERS,
    MAX_PIPELINED,
    SENT_BYTES,
    Connection,
)
from scanline.service.http.door import Bounds, Door
from tests.clocks import run_skipping

BOUNDS = Bounds(header_seconds=1, body_seconds=1, send_seconds=1)
GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class Wire(asyncio.Transport):
    """A client's end: what it was sent, how much of it is unread, and whether it was cut off."""

    def __init__(self, address: str = "") -> None:
        super().__init__({"peername": (address, 1)} if address else None)
        self.sent, self.unread, self.aborted = b"", 0, False

    def write(self, data: Any) -> None:
        self.sent += bytes(data)

    def get_write_buffer_size(self) -> int:
        return self.unread

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def write_eof(self) -> None: ...

    def can_write_eof(self) -> bool:
        return True

    def is_closing(self) -> bool:
        return self.aborted

    def abort(self) -> None:
        self.aborted = True

    def close(self) -> None:
        self.aborted = True


class Hall:
    """A server's connections, each with its wire."""

    def __init__(self, app: App, bounds: Bounds = BOUNDS) -> None:
        self.away = Counter("away", "Away.", ["reason"], registry=None)
        replies = Counter("replies", "Replies.", ["route", "method", "status"], registry=None)
        refusals = Counter("refusals", "Refusals.", ["code"], registry=None)
        self.door = Door(bounds, self.away, replies, refusals)
        self._config = uvicorn.Config(app, log_config=None, ws="none", lifespan="off")
        self._state = ServerState()

    def enter(self, address: str = "") -> tuple[Connection, Wire]:
        """Let another client in."""
        loop, wire = asyncio.get_running_loop(), Wire(address)
        connection = Connection(self._config, self._state, {}, loop, door=self.door)
        connection.connection_made(wire)
        return connection, wire

    def turned_away(self, reason: str) -> float:
        return float(self.away.labels(reason)._value.get())


async def reply(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer at once, whatever the body."""
    headers = [(b"content-length", b"0")]
    await send({"type": "http.response.start", "status": 204, "headers": headers})
    await send({"type": "http.response.body"})


async def think(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer after a long time."""
    await asyncio.sleep(100)
    await reply(scope, receive, send)


@pytest.mark.parametrize(
    ("left", "seconds"), [(5 * SENT_BYTES, 2), (10 * SENT_BYTES - 1, 1)], ids=["half", "a byte"]
)
def test_one_that_stops_reading_or_reads_a_byte_at_a_time_is_cut_off(
    left: int, seconds: int
) -> None:
    async def read_some() -> None:
        hall = Hall(think)
        connection, wire = hall.enter()
        connection.data_received(GET)
        wire.unread = 10 * SENT_BYTES
        connection.pause_writing()
        wire.unread = left
        await asyncio.sleep(seconds - 0.5)
        aborted = wire.aborted
        await asyncio.sleep(1)
        connection.connection_lost(None)  # or its timers go on for ever
        assert not aborted
        assert wire.aborted
        assert hall.turned_away("unread") == 1

    run_skipping(read_some())


def test_who_leaves_with_a_second_request_sent_is_missed_by_the_first() -> None:
    async def ask_twice_and_leave() -> None:
        told: list[str] = []

        async def wait_for_the_end(scope: Scope, receive: Receive, send: Send) -> None:
            while (message := await receive())["type"] == "http.request":
                pass
            told.append(message["type"])

        hall = Hall(wait_for_the_end)
        for how in ("leaves", "is refused"):
            connection, _ = hall.enter()
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


def test_who_has_left_with_a_reply_unread_is_not_cut_off_later() -> None:
    async def leave() -> None:
        hall = Hall(reply)
        connection, wire = hall.enter()
        wire.unread = 10 * SENT_BYTES
        connection.pause_writing()
        connection.connection_lost(None)
        await asyncio.sleep(5)
        assert (hall.turned_away("unread"), hall.turned_away("late")) == (0, 0)

    run_skipping(leave())


def test_who_has_left_with_a_request_queued_is_looked_for_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks: list[Connection] = []

    def look(connection: Connection) -> bool:
        looks.append(connection)
        return False

    monkeypatch.setattr(Connection, "_left", look)

    async def leave() -> None:
        connection, _ = Hall(think).enter()
        connection.data_received(GET * 2)
        await asyncio.sleep(LOOK_SECONDS * 1.5)
        assert len(looks) == 1
        connection.connection_lost(None)
        await asyncio.sleep(LOOK_SECONDS * 5)
        assert len(looks) == 1

    run_skipping(leave())


@pytest.mark.parametrize(("more", "status"), [(0, b"204"), (1, b"431")], ids=["all", "one more"])
def test_a_head_may_have_so_many_headers_and_no_more(more: int, status: bytes) -> None:
    async def ask() -> None:
        connection, wire = Hall(reply).enter()
        others = b"X-A: b\r\n" * (MAX_HEADERS - 1 + more)
        connection.data_received(b"GET / HTTP/1.1\r\nHost: x\r\n" + others + b"\r\n")
        await asyncio.sleep(0.1)
        assert wire.sent.split()[1] == status
        connection.connection_lost(None)

    run_skipping(ask())


def test_of_replies_that_nobody_reads_the_oldest_are_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(door, "UNSENT_BYTES", 1000)

    async def ask_and_read_nothing() -> None:
        hall = Hall(reply)
        guests = [hall.enter() for _ in range(4)]

        def leave_unread(who: int, unread: int) -> None:
            connection, wire = guests[who]
            wire.unread = unread
            connection.pause_writing()

        for who in range(2):
            leave_unread(who, 400)
        guests[0][0].resume_writing()  # it has read everything, and counts no more
        leave_unread(2, 400)
        assert not any(wire.aborted for _, wire in guests)
        leave_unread(3, 400)
        assert [wire.aborted for _, wire in guests] == [False, True, False, False]
        leave_unread(0, 1001)
        assert [wire.aborted for _, wire in guests] == [True, True, True, True]
        assert hall.turned_away("unread") == 4
        guests = [hall.enter() for _ in range(1999)]
        for who in range(1998):
            leave_unread(who, 1)
            guests[who][1].aborted = False
        leave_unread(1998, 1000)
        assert [wire.aborted for _, wire in guests[998:]] == [True] * 1000 + [False]

    run_skipping(ask_and_read_nothing())


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with the body."""
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message["body"], message["more_body"]
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


@pytest.mark.parametrize("at_once", [1, 7, 1000])
@pytest.mark.parametrize(
    ("length", "body"),
    [
        (f"Content-Length: {len(GET)}", GET),
        ("Transfer-Encoding: chunked", b"%x\r\n%s\r\n0\r\nX: y\r\n\r\n" % (len(GET), GET)),
    ],
    ids=["whole", "chunked"],
)
def test_a_body_behind_an_upgrade_is_a_body_and_no_request(
    length: str, body: bytes, at_once: int
) -> None:
    """As Java's client sends every one: it offers HTTP/2."""
    upgrade = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c"
    head = f"PUT /a HTTP/1.1\r\nHost: x\r\n{upgrade}\r\n{length}\r\n\r\n".encode()
    sent = (head + body) * 2 + GET

    async def smuggle() -> None:
        hall = Hall(echo)
        connection, wire = hall.enter()
        for start in range(0, len(sent), at_once):
            connection.data_received(sent[start : start + at_once])
        await asyncio.sleep(0.1)
        replies = wire.sent.split(b"HTTP/1.1 200 OK\r\n")[1:]
        assert [reply.endswith(b"\r\n\r\n" + GET) for reply in replies] == [True, True, False]
        connection.connection_lost(None)

    run_skipping(smuggle())


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_a_body_behind_an_upgrade_is_read_of_one_who_will_go(version: str) -> None:
    upgrade = "Connection: close, Upgrade\r\nUpgrade: h2c"
    head = f"PUT /a HTTP/{version}\r\nHost: x\r\n{upgrade}\r\nContent-Length: {len(GET)}\r\n\r\n"

    async def ask() -> None:
        connection, wire = Hall(echo).enter()
        connection.data_received(head.encode() + GET + GET)
        await asyncio.sleep(0.1)
        assert wire.sent.count(b"HTTP/1.1 200 OK\r\n") == 1
        assert wire.sent.endswith(b"\r\n\r\n" + GET)
        assert wire.aborted  # that is, closed
        connection.connection_lost(None)

    run_skipping(ask())


@pytest.mark.parametrize(
    ("head", "status"),
    [
        ("GET / HTTP/1.1\r\nHost: x", 204),
        ("GET / HTTP/1.0", 204),
        ("PUT / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: Chunked\r\n\r\n0", 204),
        ("GET / HTTP/1.1", 400),
        ("GET / HTTP/1.1\r\nHost: x\r\nHost: y", 400),
        ("PUT / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0", 400),
        ("GET / HTTP/2.0\r\nHost: x", 505),
        ("PUT / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0", 501),
    ],
)
def test_heads_are_those_of_rfc_9112(head: str, status: int) -> None:
    async def ask() -> None:
        connection, wire = Hall(reply).enter()
        connection.data_received(f"{head}\r\n\r\n".encode())
        await asyncio.sleep(0.1)
        assert wire.sent.startswith(f"HTTP/1.1 {status} ".encode())
        assert (b"malformed" in wire.sent) is (status != 204)

    run_skipping(ask())


def test_of_many_that_come_at_once_each_takes_the_place_of_another() -> None:
    """Though none of those cut off is seen to have gone yet."""

    async def come() -> None:
        hall = Hall(reply, Bounds(connections=2))
        wires = [hall.enter()[1] for _ in range(5)]
        assert [wire.aborted for wire in wires] == [True, True, True, False, False]
        assert hall.turned_away("crowded") == 3

    run_skipping(come())


def test_where_all_are_busy_one_of_the_client_that_has_the_most_makes_room() -> None:
    """The newest of them, and for a client that then has no more than they."""

    async def come() -> None:
        hall = Hall(think, Bounds(connections=5))

        def ask(address: str) -> Wire:
            connection, wire = hall.enter(address)
            if wire.aborted:
                connection.connection_lost(None)
            else:
                connection.data_received(GET)
            return wire

        crowd = [ask("10.0.0.1") for _ in range(5)]
        assert b"full" in ask("10.0.0.1").sent
        assert hall.turned_away("full") == 1
        assert not any(wire.aborted for wire in crowd)
        others = [ask("2001:db8::1"), ask("2001:db8::2")]  # of one network
        assert [wire.aborted for wire in crowd] == [False] * 3 + [True] * 2
        assert b"full" in ask("2001:db8::3").sent  # who would have as many
        assert [wire.aborted for wire in crowd] == [False] * 3 + [True] * 2
        another = ask("10.0.0.2")
        assert [wire.aborted for wire in crowd] == [False] * 2 + [True] * 3
        assert not any(wire.aborted for wire in [*others, another])
        assert hall.turned_away("share") == 3
        assert hall.turned_away("full") == 2

    run_skipping(come())


def test_one_that_was_answered_before_its_body_ended_may_not_idle_for_ever() -> None:
    async def idle() -> None:
        hall = Hall(reply)
        connection, wire = hall.enter()
        connection.data_received(b"PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n")
        await asyncio.sleep(0.1)
        connection.data_received(b"12345")
        await asyncio.sleep(0.9)
        assert not wire.aborted
        await asyncio.sleep(0.2)
        assert wire.aborted
        assert hall.turned_away("late") == 1

    run_skipping(idle())


def test_one_that_has_its_answer_makes_room() -> None:
    async def idle() -> None:
        hall = Hall(reply, Bounds(connections=1))
        first, wire = hall.enter()
        first.data_received(GET)
        await asyncio.sleep(0.1)
        assert wire.sent.startswith(b"HTTP/1.1 204 ")
        _, next_one = hall.enter()
        assert (wire.aborted, next_one.aborted) == (True, False)

    run_skipping(idle())


def test_one_that_was_refused_makes_room() -> None:
    """Behind a request that is being worked on, and now for nobody."""

    async def refuse() -> None:
        hall = Hall(think, Bounds(connections=1))
        first, wire = hall.enter()
        first.data_received(GET)
        first.data_received(b"no HTTP\r\n\r\n")
        assert wire.sent.startswith(b"HTTP/1.1 400 ")
        _, next_one = hall.enter()
        assert (wire.aborted, next_one.aborted) == (True, False)

    run_skipping(refuse())


def test_so_many_requests_may_be_sent_before_the_first_is_answered_and_no_more() -> None:
    async def hurry() -> None:
        connection, wire = Hall(think).enter()
        connection.data_received(GET * (1 + MAX_PIPELINED))
        assert not wire.aborted
        connection.data_received(GET)
        assert wire.aborted
        assert wire.sent == b""  # which the client would take for the first one's answer

    run_skipping(hurry())


def test_the_body_of_a_request_in_the_queue_is_not_late() -> None:
    async def queue() -> None:
        connection, wire = Hall(think, BOUNDS).enter()
        connection.data_received(GET)
        connection.data_received(b"PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n")
        await asyncio.sleep(10)
        assert not wire.aborted
        await asyncio.sleep(100)  # the first is answered, and it has the time of any other
        assert wire.sent.startswith(b"HTTP/1.1 204 ")

    run_skipping(queue())


def test_the_application_hears_at_once_that_its_client_was_refused() -> None:
    heard: list[str] = []

    async def listen(scope: Scope, receive: Receive, send: Send) -> None:
        heard.append((await receive())["type"])

    async def break_off() -> None:
        connection, _ = Hall(listen).enter()
        connection.data_received(b"PUT / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        await asyncio.sleep(0)
        connection.data_received(b"no number\r\n")
        await asyncio.sleep(0.1)
        assert heard == ["http.disconnect"]

    run_skipping(break_off())


def test_one_that_was_answered_before_its_body_ended_makes_room_all_the_same() -> None:
    async def go_on() -> None:
        hall = Hall(reply, Bounds(connections=1))
        first, wire = hall.enter()
        first.data_received(b"PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n")
        await asyncio.sleep(0.1)
        assert wire.sent.startswith(b"HTTP/1.1 204 ")
        first.data_received(b"12345")
        _, next_one = hall.enter()
        assert (wire.aborted, next_one.aborted) == (True, False)

    run_skipping(go_on())


def test_refused_ones_that_have_not_gone_yet_make_no_room() -> None:
    async def come() -> None:
        hall = Hall(think, Bounds(connections=2))
        for _ in range(2):
            hall.enter("10.0.0.1")[0].data_received(GET)
        more = [hall.enter("10.0.0.1")[1] for _ in range(3)]
        assert all(b"full" in wire.sent for wire in more)
        assert hall.turned_away("full") == 3

    run_skipping(come())


def test_refused_ones_that_have_gone_make_no_room_either() -> None:
    async def come() -> None:
        hall = Hall(think, Bounds(connections=1))
        hall.enter("10.0.0.1")[0].data_received(GET)
        for _ in range(door.HEARD_OUT + 3):
            connection, wire = hall.enter("10.0.0.1")
            assert b"full" in wire.sent
            connection.connection_lost(None)

    run_skipping(come())
