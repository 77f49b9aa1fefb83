"""Clients over raw sockets, and checks of their replies."""

from __future__ import annotations

import contextlib
import json
import re
import socket
from collections.abc import Iterator
from typing import Any

import httpx

from tests.service.fixtures import DEADLINE, build, talking_to

BODY = b'{"seed": 1}'
REQUEST_HEAD = b"POST /v1/samples HTTP/1.1\r\nHost: here\r\nContent-Type: application/json\r\n"
CHUNKED = REQUEST_HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
REQUEST = REQUEST_HEAD + b"Content-Length: %d\r\n\r\n%s" % (len(BODY), BODY)


@contextlib.contextmanager
def serve(**fields: Any) -> Iterator[httpx.Client]:
    _, app = build(fields)
    with talking_to(app) as client:
        yield client


def connect(client: httpx.Client) -> socket.socket:
    url = client.base_url
    assert url.port is not None
    return socket.create_connection((url.host, url.port), timeout=DEADLINE)


def read_all(connection: socket.socket) -> bytes:
    """Read until the server closes the connection."""
    parts = []
    while part := connection.recv(65536):
        parts.append(part)
    return b"".join(parts)


def check_error_reply(raw: bytes, status: int, code: str) -> None:
    """Check that a raw reply is a single JSON error that closes the connection."""
    head, _, body = raw.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    assert first.startswith(f"HTTP/1.1 {status} "), raw
    assert headers["content-type"] == "application/json"
    assert headers["connection"] == "close"
    assert headers["x-content-type-options"] == "nosniff"
    assert int(headers["content-length"]) == len(body)
    assert headers["x-request-id"].startswith("req_")
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == code


def closed_count(client: httpx.Client, reason: str) -> float:
    name = "scanline_connections_turned_away_total"
    found = re.search(rf'^{name}{{reason="{reason}"}} (\S+)$', client.get("/metrics").text, re.M)
    assert found
    return float(found[1])
