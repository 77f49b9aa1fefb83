"""Tests of request framing (RFC 9110 and 9112)."""

from __future__ import annotations

import asyncio

import pytest
from starlette.types import Receive, Scope, Send

from scanline.service.http.protocol.connection import MAX_HEADERS
from tests.fake_clock import run_skipping
from tests.service.http.protocol.fake_transport import GET, FakeServer, reply_at_once


@pytest.mark.parametrize(("more", "status"), [(0, b"204"), (1, b"431")], ids=["all", "one more"])
def test_the_number_of_headers_is_limited(more: int, status: bytes) -> None:
    async def ask() -> None:
        connection, transport = FakeServer(reply_at_once).connect()
        others = b"X-A: b\r\n" * (MAX_HEADERS - 1 + more)
        connection.data_received(b"GET / HTTP/1.1\r\nHost: x\r\n" + others + b"\r\n")
        await asyncio.sleep(0.1)
        assert transport.sent.split()[1] == status
        connection.connection_lost(None)

    run_skipping(ask())


def test_blanks_around_header_values_are_stripped() -> None:
    """RFC 9112, section 5: they come before and after the value."""
    seen: list[tuple[bytes, bytes]] = []

    async def note(scope: Scope, receive: Receive, send: Send) -> None:
        seen.extend(scope["headers"])
        await reply_at_once(scope, receive, send)

    async def ask() -> None:
        connection, transport = FakeServer(note).connect()
        head = b"GET / HTTP/1.1\r\nHost: x \r\nX-A:b\t \r\nX-B: \t c  d \r\nX-C:  \r\n\r\n"
        for at in range(len(head)):
            connection.data_received(head[at : at + 1])
        await asyncio.sleep(0.1)
        assert transport.sent.split()[1] == b"204"
        connection.connection_lost(None)

    run_skipping(ask())
    assert seen == [(b"host", b"x"), (b"x-a", b"b"), (b"x-b", b"c  d"), (b"x-c", b"")]


def test_a_blank_behind_expect_does_not_stop_the_body() -> None:
    async def ask() -> None:
        connection, transport = FakeServer(echo).connect()
        head = b"PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 2 \r\nExpect: 100-continue \r\n\r\n"
        connection.data_received(head)
        await asyncio.sleep(0.1)
        assert transport.sent.startswith(b"HTTP/1.1 100 ")
        connection.data_received(b"ab")
        await asyncio.sleep(0.1)
        assert transport.sent.endswith(b"ab")
        connection.connection_lost(None)

    run_skipping(ask())


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Reply with the request's body."""
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
def test_a_body_after_an_upgrade_offer_is_not_parsed_as_a_request(
    length: str, body: bytes, at_once: int
) -> None:
    """Java's HTTP client offers an upgrade to HTTP/2 with every request."""
    upgrade = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c"
    head = f"PUT /a HTTP/1.1\r\nHost: x\r\n{upgrade}\r\n{length}\r\n\r\n".encode()
    sent = (head + body) * 2 + GET

    async def smuggle() -> None:
        server = FakeServer(echo)
        connection, transport = server.connect()
        for start in range(0, len(sent), at_once):
            connection.data_received(sent[start : start + at_once])
        await asyncio.sleep(0.1)
        replies = transport.sent.split(b"HTTP/1.1 200 OK\r\n")[1:]
        assert [reply.endswith(b"\r\n\r\n" + GET) for reply in replies] == [True, True, False]
        connection.connection_lost(None)

    run_skipping(smuggle())


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_a_body_after_an_upgrade_offer_with_connection_close(version: str) -> None:
    upgrade = "Connection: close, Upgrade\r\nUpgrade: h2c"
    head = f"PUT /a HTTP/{version}\r\nHost: x\r\n{upgrade}\r\nContent-Length: {len(GET)}\r\n\r\n"

    async def ask() -> None:
        connection, transport = FakeServer(echo).connect()
        connection.data_received(head.encode() + GET + GET)
        await asyncio.sleep(0.1)
        assert transport.sent.count(b"HTTP/1.1 200 OK\r\n") == 1
        assert transport.sent.endswith(b"\r\n\r\n" + GET)
        assert transport.aborted  # or closed
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
def test_headers_follow_rfc_9112(head: str, status: int) -> None:
    async def ask() -> None:
        connection, transport = FakeServer(reply_at_once).connect()
        connection.data_received(f"{head}\r\n\r\n".encode())
        await asyncio.sleep(0.1)
        assert transport.sent.startswith(f"HTTP/1.1 {status} ".encode())
        assert (b"malformed" in transport.sent) is (status != 204)

    run_skipping(ask())
