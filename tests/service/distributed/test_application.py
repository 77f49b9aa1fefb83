"""Tests of the Ray Serve application's adaptation to Ray Serve's proxy."""

from __future__ import annotations

import pytest
from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient
from starlette.types import Receive, Scope, Send


async def reply_with_key(scope: Scope, receive: Receive, send: Send) -> None:
    (key,) = [value for name, value in scope["headers"] if name == b"x-key"]
    await PlainTextResponse(repr(key), headers={"X-Request-ID": "1"})(scope, receive, send)


@pytest.mark.filterwarnings("ignore")  # of Ray's own modules
def test_blanks_behind_headers_are_removed_and_the_request_id_is_left_to_the_proxy() -> None:
    pytest.importorskip("ray.serve", reason="Ray is not installed")
    from scanline.service.distributed.application import _RayProxyHeaders

    client = TestClient(_RayProxyHeaders(reply_with_key))
    reply = client.get("/", headers={"X-Key": "a b \t"})
    assert reply.text == "b'a b'"
    assert "x-request-id" not in reply.headers
