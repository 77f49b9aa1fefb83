"""Tests of the connection's limits and timeouts, over real sockets."""

from __future__ import annotations

import contextlib
import logging
import re
import select
import socket
import threading
import time
from collections.abc import Iterator

import httpx
import pytest

from tests.service.fake_decoders import FakeDecoder
from tests.service.fixtures import DEADLINE, GREY, build, talking_to, until
from tests.service.http.protocol.raw_connections import (
    BODY,
    CHUNKED,
    REQUEST,
    REQUEST_HEAD,
    check_error_reply,
    closed_count,
    connect,
    read_all,
    serve,
)
from tests.sse_client import parse_sse

QUICK = {"header_seconds": 1.0, "body_seconds": 1.0, "send_seconds": 1.0, "keep_alive_seconds": 1.0}


@pytest.fixture(scope="module")
def patient() -> Iterator[httpx.Client]:
    with serve() as client:
        yield client


@pytest.fixture(scope="module")
def quick() -> Iterator[httpx.Client]:
    with serve(**QUICK) as client:
        yield client


def send_until_rejected(connection: socket.socket, first: bytes, again: bytes, most: int) -> bytes:
    """Send ``first``, then ``again`` up to ``most`` bytes in all; return the reply."""
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        connection.sendall(first)
        for _ in range(most // len(again)):
            connection.sendall(again)
    return read_all(connection)


ENDLESS = {
    "header lines": (b"GET /livez HTTP/1.1\r\nHost: x\r\n", b"X-A: b\r\n" * 100, 431, "too_many"),
    "long header lines": (
        b"GET /livez HTTP/1.1\r\nHost: x\r\n", b"X-A: %s\r\n" % (b"b" * 8000), 431, "too_large"
    ),
    "one header": (b"GET /livez HTTP/1.1\r\nX-A: ", b"b" * 4096, 431, "too_large"),
    "one header's name": (b"GET /livez HTTP/1.1\r\nX", b"b" * 4096, 431, "too_large"),
    "URL": (b"GET /", b"b" * 4096, 414, "too_long"),
    "trailers": (CHUNKED + b"1\r\n{\r\n0\r\n", b"X-A: b\r\n" * 100, 431, "too_large"),
    "one trailer": (CHUNKED + b"0\r\nX-A: ", b"b" * 4096, 431, "too_large"),
    "chunk extension": (CHUNKED + b"1;a=", b"b" * 4096, 431, "too_large"),
}  # fmt: skip


@pytest.mark.parametrize("what", ENDLESS)
def test_endless_headers_and_trailers_are_refused(patient: httpx.Client, what: str) -> None:
    first, again, status, code = ENDLESS[what]
    with connect(patient) as connection:
        check_error_reply(send_until_rejected(connection, first, again, 2_000_000), status, code)
    assert patient.get("/livez").text == "ok\n"


@pytest.mark.parametrize(
    "junk",
    [b"\0\xff" * 100, b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n",
     b"CONNECT here:80 HTTP/1.1\r\n\r\n", b"GET /\xff HTTP/1.1\r\n\r\n",
     b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", CHUNKED + b"no number\r\n"],
)  # fmt: skip
def test_malformed_http_gets_a_json_error(patient: httpx.Client, junk: bytes) -> None:
    with connect(patient) as connection:
        connection.sendall(junk)
        check_error_reply(read_all(connection), 400, "malformed")


def test_a_rejection_is_counted_and_logged(
    patient: httpx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    def counted() -> list[float]:
        shown = patient.get("/metrics").text
        labels = (
            '{method="other",route="other",status="414"}',
            '_refused_total{reason="too_long"}',
        )
        found = [re.search(rf"{re.escape(label)} (\S+)", shown) for label in labels]
        return [float(one[1]) if one else 0.0 for one in found]

    before = counted()
    with caplog.at_level(logging.INFO, "scanline.connections"), connect(patient) as connection:
        connection.sendall(b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\n\r\n")
        check_error_reply(read_all(connection), 414, "too_long")
    assert counted() == [one + 1 for one in before]
    assert "414 the URL exceeds 8,192 bytes" in caplog.text


def test_large_headers_within_the_limits_are_accepted(patient: httpx.Client) -> None:
    headers = {f"X-{j}": "b" * 200 for j in range(90)}
    assert patient.get("/livez?" + "a" * 8000, headers=headers).status_code == 200


def test_trailers_are_ignored(patient: httpx.Client) -> None:
    with connect(patient) as connection:
        chunk = b"%x\r\n%s\r\n" % (len(BODY), BODY)
        connection.sendall(CHUNKED + chunk + b"0\r\nAccept: image/png\r\nConnection: close\r\n\r\n")
        head = connection.recv(65536)
        assert head.startswith(b"HTTP/1.1 200 ")
        assert b"content-type: application/json" in head


def test_pipelined_and_upgraded_requests_are_answered_in_order(patient: httpx.Client) -> None:
    h2c = b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"
    last = b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    with connect(patient) as connection:
        connection.sendall(h2c + REQUEST + REQUEST + last)
        raw = read_all(connection)
    assert raw.count(b"HTTP/1.1 200 ") == 4
    assert raw.count(b'"object":"generation"') == 2


def test_http_1_0_replies_are_not_chunked(patient: httpx.Client) -> None:
    body = b'{"seed": 1, "stream": true}'
    head = (REQUEST_HEAD + b"Content-Length: %d\r\n\r\n" % len(body)).replace(
        b"HTTP/1.1", b"HTTP/1.0"
    )
    with connect(patient) as connection:
        connection.sendall(head + body)
        headers, _, content = read_all(connection).partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in headers.lower()
    assert [event.name for event in parse_sse(content)][-1] == "completed"
    with connect(patient) as connection:
        connection.sendall(b"GET /livez HTTP/1.0\r\n\r\n")
        headers, _, content = read_all(connection).partition(b"\r\n\r\n")
    assert b"content-length: 3" in headers
    assert content == b"ok\n"


def test_a_flood_of_pipelined_requests_is_aborted(patient: httpx.Client) -> None:
    received = b""
    with connect(patient) as connection, contextlib.suppress(ConnectionResetError):
        received = send_until_rejected(connection, b"", REQUEST * 100, 2_000_000)
    assert received.count(b"200 OK") < 200
    assert patient.get("/livez").status_code == 200


def test_an_incomplete_request_times_out(quick: httpx.Client) -> None:
    for half in (b"G", b"GET /livez HTTP/1.1\r\nX-A", REQUEST[:-1], CHUNKED + b"5\r\n{"):
        with connect(quick) as connection:
            connection.sendall(half)
            check_error_reply(read_all(connection), 408, "timeout")
    # Sending a byte now and then does not help.
    with connect(quick) as connection:
        stop = threading.Event()

        def drip() -> None:
            with contextlib.suppress(OSError):
                connection.sendall(b"GET /livez HTTP/1.1\r\nX-A: ")
                while not stop.wait(0.02):
                    connection.sendall(b"b")

        dripping = threading.Thread(target=drip)
        dripping.start()
        check_error_reply(read_all(connection), 408, "timeout")
        stop.set()
        dripping.join()


def test_a_client_that_goes_on_after_a_rejection_is_rejected_once(
    quick: httpx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    before = closed_count(quick, "late")
    with connect(quick) as connection, caplog.at_level(logging.INFO):
        connection.sendall(b"GET /livez HTTP/1.1\r\nno header\r\n\r\n")
        check_error_reply(read_all(connection), 400, "malformed")
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            while True:  # longer than the timeout for headers
                connection.sendall(b"x")
                time.sleep(0.02)
    assert closed_count(quick, "late") == before
    assert [r.getMessage() for r in caplog.records if r.name == "asyncio"] == []


def test_idle_connections_time_out(quick: httpx.Client) -> None:
    with connect(quick) as silent:
        assert read_all(silent) == b""
    with connect(quick) as idle:
        idle.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
        assert read_all(idle).endswith(b"ok\n")
    with connect(quick) as blank, contextlib.suppress(BrokenPipeError, ConnectionResetError):
        while True:  # blank lines do not begin a request
            blank.sendall(b"\r\n")
            with contextlib.suppress(TimeoutError):
                blank.settimeout(0.05)
                if blank.recv(1) == b"":
                    break


def test_a_refused_body_that_goes_on_is_aborted(quick: httpx.Client) -> None:
    with connect(quick) as connection, contextlib.suppress(BrokenPipeError, ConnectionResetError):
        connection.sendall(b"POST /nowhere HTTP/1.1\r\nHost: x\r\nContent-Length: 60000\r\n\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 404 ")
        connection.settimeout(0.05)
        while True:
            connection.sendall(b"x")
            with contextlib.suppress(TimeoutError):
                if connection.recv(1) == b"":
                    break


def test_a_client_that_does_not_read_is_aborted(quick: httpx.Client) -> None:
    before = closed_count(quick, "unread")
    with connect(quick) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        # More than the kernel buffers for a socket.
        connection.sendall(
            b"GET /docs/static/swagger-ui-bundle.js HTTP/1.1\r\nHost: x\r\n\r\n" * 12
        )
        until(lambda: closed_count(quick, "unread") == before + 1, "the timeout")


@pytest.mark.skipif(not hasattr(select, "POLLRDHUP"), reason="needs POLLRDHUP")
def test_requests_of_disconnected_clients_are_dropped() -> None:
    app_state, app = build({}, {"fake": FakeDecoder(GREY, 8)})
    held, go_on = threading.Event(), threading.Event()

    async def busy() -> None:
        held.set()
        go_on.wait(DEADLINE)

    app.add_api_route("/busy", busy)
    with talking_to(app) as client:
        with connect(client) as first:
            first.sendall(b"GET /busy HTTP/1.1\r\nHost: x\r\n\r\n")
            assert held.wait(DEADLINE)
            for _ in range(20):  # the server accepts them only after they have disconnected
                with connect(client) as connection:
                    connection.sendall(REQUEST)
            go_on.set()
            assert first.recv(65536).startswith(b"HTTP/1.1 200 ")
        until(lambda: closed_count(client, "left") == 20, "20 dropped requests")
        assert client.post("/v1/samples", json={}).status_code == 200
        engine = app_state.models["fake"].engine
        assert engine.queue.waiting == 0
        kept = re.findall(r"^scanline_images_total.* (\S+)$", client.get("/metrics").text, re.M)
        assert sum(map(float, kept)) == 1  # none was started for the others


def test_idle_connections_make_room(caplog: pytest.LogCaptureFixture) -> None:
    with (
        serve(max_connections=4) as client,
        caplog.at_level(logging.WARNING, "scanline.connections"),
        contextlib.ExitStack() as stack,
    ):
        silent = [stack.enter_context(connect(client)) for _ in range(20)]
        silent[-1].sendall(
            b"POST /v1/samples HTTP/1.1\r\nHost: x\r\n"
        )  # an incomplete request counts as idle
        silent[-2].sendall(REQUEST_HEAD + b"Content-Length: 9\r\n\r\n{")
        with connect(client) as other:
            other.sendall(REQUEST)
            assert other.recv(65536).startswith(b"HTTP/1.1 200 ")
        with contextlib.suppress(ConnectionResetError):
            assert silent[0].recv(1) == b""
        assert closed_count(client, "crowded") >= 16
        assert closed_count(client, "full") == 0
    assert caplog.text.count("all 4 connections are taken: the longest idle is closed") == 1


@pytest.mark.parametrize("length", ["0" * 5000 + "2", "9" * 5000], ids=["small", "huge"])
def test_content_length_of_thousands_of_digits_is_valid(patient: httpx.Client, length: str) -> None:
    head = f"POST /v1/samples HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}"
    with connect(patient) as connection:
        connection.sendall(f"{head}\r\nContent-Type: application/json\r\n\r\n{{}}".encode())
        reply = read_all(connection)
    assert reply.startswith(b"HTTP/1.1 200" if length[0] == "0" else b"HTTP/1.1 4"), reply
