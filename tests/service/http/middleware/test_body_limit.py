"""Tests of the limits on request bodies."""

from __future__ import annotations

import asyncio
import codecs
import dataclasses
import gzip
import json
from collections.abc import Iterator

import httpx
import pytest
from starlette.types import Message, Receive, Scope, Send

from scanline.service.http.errors import ApiError
from scanline.service.http.middleware import body_limit
from scanline.service.http.middleware.body_limit import BodyLimitMiddleware
from tests.service.fake_decoders import FakeDecoder
from tests.service.fixtures import (
    COLOUR,
    build,
    check_error,
    encode,
    random_picture,
    talking_to,
)

JSON = {"Content-Type": "application/json"}


LIMIT = 100_000  # bytes of JSON


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    _, app = build({"max_json": LIMIT})
    with talking_to(app) as client:
        yield client


@pytest.mark.parametrize(
    "large", [b"[" * 50_000, b'{"":' * 20_000, b"[]," * 30_000, b'"":0,' * 2000, b"[]," * 998]
)
def test_json_with_too_many_nodes_is_not_parsed(client: httpx.Client, large: bytes) -> None:
    for path in ("/v1/distribution", "/v1/images/edits"):
        reply = client.post(path, content=b'{"values":[' + large, headers=JSON)
        assert "lists, objects and names" in check_error(reply, 400, "too_many")
    most = b'{"values":[' + b"[]," * 996 + b"[]]}"
    check_error(client.post("/v1/distribution", content=most, headers=JSON), 400, "int_type")


def test_json_has_a_smaller_limit_than_forms(client: httpx.Client) -> None:
    large = "x" * LIMIT
    for path in ("/v1/samples", "/v1/images/edits"):
        message = check_error(client.post(path, json={"model": large}), 413, "too_large")
        assert "multipart/form-data" in message
    files = {"image": encode(random_picture()) + large.encode()}
    form = client.build_request("POST", "/v1/completions", files=files, data={"known_rows": "1"})
    kind = form.headers["content-type"].replace("multipart/form-data;", "Multipart/Form-Data ;")
    for content_type in (form.headers["content-type"], kind):
        headers = {"Content-Type": content_type}
        reply = client.post("/v1/completions", content=form.read(), headers=headers)
        assert reply.status_code == 200, reply.text


def test_json_limit_follows_the_largest_model() -> None:
    config = dataclasses.replace(COLOUR, height=80, width=80)
    values = config.values
    _, app = build({}, {"large": FakeDecoder(config, 1)})
    with talking_to(app) as client:
        body = json.dumps({"values": [255] * (values - 3)}).encode()
        reply = client.post("/v1/distribution", content=body, headers=JSON)
        assert reply.status_code == 200, reply.text
        body += b" " * (65_536 + 6 * values + 1 - len(body))
        reply = client.post("/v1/distribution", content=body, headers=JSON)
        check_error(reply, 413, "too_large")


def test_a_compressed_body_is_415(client: httpx.Client) -> None:
    body = gzip.compress(json.dumps({"seed": 1}).encode())
    reply = client.post("/v1/samples", content=body, headers=JSON | {"Content-Encoding": "gzip"})
    check_error(reply, 415, "unsupported_encoding")
    assert reply.headers["accept-encoding"] == "identity"
    for plain in ("identity", ""):
        reply = client.post("/v1/samples", json={"seed": 1}, headers={"Content-Encoding": plain})
        assert reply.status_code == 200


@pytest.mark.parametrize("announced", [True, False])
def test_a_body_of_exactly_the_limit_is_accepted(announced: bool) -> None:
    taken: list[int] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        taken.append(len((await receive())["body"]))

    async def send(message: Message) -> None:
        taken.append(message.get("status", 0))

    async def ask(size: int) -> None:
        async def receive() -> Message:
            return {"type": "http.request", "body": b"x" * size}

        length = [(b"content-length", str(size).encode())] if announced else []
        scope = {"type": "http", "method": "POST", "headers": length, "state": {"caller": ""}}
        await BodyLimitMiddleware(app, 0, lambda: 100)(scope, receive, send)

    asyncio.run(ask(100))
    assert taken == [100]


@pytest.mark.parametrize(("length", "status"), [(b"9" * 5000, 413), (b"0" * 5000 + b"9", 200)])
def test_content_length_with_thousands_of_digits(length: bytes, status: int) -> None:
    sent: list[int] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        sent.append(200)

    async def receive() -> Message:
        return {"type": "http.request", "body": b""}

    async def send(message: Message) -> None:
        sent.append(message.get("status", 0))

    headers = [(b"content-length", length)]
    scope = {"type": "http", "method": "POST", "headers": headers, "state": {"caller": ""}}
    asyncio.run(BodyLimitMiddleware(app, 0, lambda: 100)(scope, receive, send))
    assert sent[0] == status


@pytest.mark.parametrize("charset", ["punycode", '"UTF-16"', "undefined", "x" * 1000, "utf-8 "])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/images/edits", "/v1/score"])
def test_a_form_must_be_utf_8(
    client: httpx.Client, path: str, charset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python takes minutes to decode Punycode, and caches the names of unknown codecs."""
    looked_up: list[str] = []
    lookup = codecs.lookup

    def watched(name: str) -> codecs.CodecInfo:
        looked_up.append(name)
        return lookup(name)

    monkeypatch.setattr(codecs, "lookup", watched)
    form = b'--x\r\nContent-Disposition: form-data; name="n"\r\n\r\nno\r\n--x--\r\n'
    headers = {"Content-Type": f"multipart/form-data; charset={charset}; boundary=x"}
    reply = client.post(path, content=form, headers=headers)
    if charset == "utf-8 ":
        check_error(reply, 400)
    else:
        assert "in UTF-8" in check_error(reply, 415, "unsupported_encoding")
        assert looked_up == []


@pytest.mark.parametrize(("share", "form", "other"), [(100, 40, 10), (1, 50, 10), (1, 40, 50)])
def test_bodies_in_progress_are_limited_per_caller_and_in_all(
    monkeypatch: pytest.MonkeyPatch, share: int, form: int, other: int
) -> None:
    """A caller may always have two of the largest bodies; answered requests do not count."""
    monkeypatch.setattr(body_limit, "MIN_SHARE_BYTES", share)

    async def ask() -> None:
        go_on, refused = asyncio.Event(), list[str]()

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            await receive()
            await go_on.wait()

        middleware = BodyLimitMiddleware(app, form, lambda: other)

        async def send(message: Message) -> None: ...

        async def upload(caller: str) -> None:
            async def receive() -> Message:
                return {"type": "http.request", "body": b"x" * 40}

            headers = [(b"content-type", b"multipart/form-data; boundary=x")]
            scope = {
                "type": "http", "method": "POST", "headers": headers, "state": {"caller": caller},
            }  # fmt: skip
            try:
                await middleware(scope, receive, send)
            except ApiError as error:
                closes = (error.headers or {}).get("Connection")  # more may come
                whose = "yours" if "your requests" in str(error.detail) else "all"
                refused.append(f"{caller} {error.status_code} {whose} {closes}")

        tasks = [asyncio.create_task(upload(caller)) for caller in "aaabbccddeef"]
        await asyncio.sleep(0.01)
        assert refused == ["a 429 yours close", "f 429 all close"]
        go_on.set()
        await asyncio.gather(*tasks)
        await asyncio.gather(*(upload("a") for _ in range(2)))
        assert len(refused) == 2
        assert not middleware._caller_bytes  # no entry is left behind

    asyncio.run(ask())
