"""Invalid requests, and the errors that describe them."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from typing import Any

import pytest
from PIL import Image as Picture

from scanline.service.upload_limits import MAX_PIXELS
from tests.png import png_chunk
from tests.service.api.fixtures import LiveServer
from tests.service.fixtures import (
    GREY,
    build,
    check_error,
    encode,
    random_picture,
    talking_to,
)

WRONG_SAMPLES: list[tuple[dict[str, Any], str, str]] = [
    ({"colour": "red"}, "colour", "no such field"),
    ({"n": 0}, "n", "greater than or equal to 1; got 0"),
    ({"n": -1}, "n", "greater than or equal to 1"),
    ({"n": 21}, "n", "at most 20"),
    ({"n": 10**9}, "n", "at most 20"),
    ({"n": 10**400}, "n", "n:"),
    ({"n": 1.5}, "n", "integer"),
    ({"n": "1"}, "n", "integer"),
    ({"n": True}, "n", "integer"),
    ({"n": [1]}, "n", "integer"),
    ({"seed": -1}, "seed", "greater than or equal to 0"),
    ({"seed": 2**64}, "seed", "less than or equal to 18446744073709551615"),
    ({"seed": 1.5}, "seed", "integer"),
    ({"seed": 2.0**53}, "seed", "integer"),
    ({"seed": "1"}, "seed", 'must be a valid integer; got "1"'),
    ({"seed": True}, "seed", "integer"),
    ({"label": 3}, "label", "zero, one, a frog"),
    ({"model": "colour", "label": "a frog"}, "label", "; the model grey has this class"),
    ({"label": -1}, "label", "zero, one, a frog"),
    ({"label": "toad"}, "label", "zero, one, a frog"),
    ({"label": "\0"}, "label", "zero, one, a frog"),
    ({"label": 10**30}, "label", "zero, one, a frog"),
    ({"label": True}, "label", "label:"),
    ({"label": 1.5}, "label", "a valid integer, or must be a valid string; got 1.5"),
    ({"model": "colour", "label": 0}, "label", "no classes"),
    ({"temperature": -0.1}, "temperature", "greater than or equal to 0"),
    ({"temperature": 2.1}, "temperature", "less than or equal to 2"),
    ({"temperature": "1"}, "temperature", "number"),
    ({"temperature": float("nan")}, "temperature", "finite"),
    ({"temperature": float("inf")}, "temperature", "temperature:"),
    ({"stream": "yes"}, "stream", "boolean"),
    ({"granularity": "line"}, "granularity", "'pixel'"),
    ({"output": "gif"}, "output", "'values'"),
    ({"model": 3}, "model", "string"),
]


def test_contradicting_accept_and_stream_are_refused(api: LiveServer) -> None:
    accept = "text/event-stream"
    headers, picture = {"Accept": accept}, encode(random_picture(GREY))
    for reply in (
        api.client.post("/v1/samples", headers=headers, json={"stream": False}),
        api.complete(picture, accept=accept, stream="false"),
    ):
        message = check_error(reply, 400, "unsupported", "stream")
        assert f"stream is false, but Accept asks for {accept}: leave one out" in message


@pytest.mark.parametrize(("body", "param", "message"), WRONG_SAMPLES)
def test_errors_name_the_invalid_field(
    api: LiveServer, body: dict[str, Any], param: str, message: str
) -> None:
    reply = api.client.post(
        "/v1/samples", content=json.dumps(body), headers={"Content-Type": "application/json"}
    )
    assert message in check_error(reply, 400, param=param)
    assert reply.json()["error"]["type"] == "invalid_request_error"


def test_unknown_class_of_every_model_suggests_no_model(api: LiveServer) -> None:
    message = check_error(api.samples(label="toad"), 400, "unknown_class", "label")
    assert "has this class" not in message


@pytest.mark.parametrize("name", ["grew", "", "\0", "../grey", "grey\n", "\ud800"])
def test_unknown_model_is_404_and_lists_the_models(api: LiveServer, name: str) -> None:
    reply = api.client.post(
        "/v1/samples", content=json.dumps({"model": name}),
        headers={"Content-Type": "application/json"},
    )  # fmt: skip
    assert "grey, colour" in check_error(reply, 404, "model_not_found", "model")
    check_error(api.client.get("/v1/models/grew"), 404, "model_not_found", "model")


WRONG_BODIES: dict[str, bytes] = {
    "broken": b'{"n": 1',
    "empty": b"",
    "null": b"null",
    "a list": b"[]",
    "a number": b"3",
    "a string": b'"n"',
    "deep": b"[" * 50_000,
    "deep and closed": b'{"n":' + b"[" * 20_000 + b"]" * 20_000 + b"}",
    "deep objects": b'{"a":' * 8_000 + b"1" + b"}" * 8_000,
    "not UTF-8": b'{"model": "\xff\xfe"}',
    "a field of half a surrogate": b'{"\\ud800": 1}',
    "a long field": b'{"' + b"x" * 50_000 + b'": 1}',
    "many fields": json.dumps({f"field{j}": j for j in range(3_000)}).encode(),
    "a long number": b'{"n": ' + b"9" * 10_000 + b"}",
    "a huge exponent": b'{"temperature": 1e999}',
    "NUL": b"\0\0\0",
    "UTF-16": '{"n": 0}'.encode("utf-16"),
}


@pytest.mark.parametrize("name", WRONG_BODIES)
def test_invalid_bodies_are_400_with_a_short_message(api: LiveServer, name: str) -> None:
    reply = api.client.post(
        "/v1/samples", content=WRONG_BODIES[name], headers={"Content-Type": "application/json"}
    )
    message = check_error(reply, 400)
    assert len(message) < 1100  # long values are cut
    assert len(reply.json()["error"]["param"] or "") < 110


@pytest.mark.parametrize("path", ["samples", "distribution", "images/generations", "images/edits"])
def test_duplicate_json_keys_are_refused(api: LiveServer, path: str) -> None:
    """A JSON parser would silently ignore the first of them."""
    for body in (b'{"n": 1, "seed": 4, "n": 2}', b'{"a": [{"n": 1, "n": 1}]}'):
        headers = {"Content-Type": "Application/JSON; charset=utf-8"}
        reply = api.client.post(f"/v1/{path}", content=body, headers=headers)
        assert check_error(reply, 400) == "n: send it once"
        assert reply.json()["error"]["param"] == "n"


def test_a_body_with_another_content_type_is_415(api: LiveServer) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", "application/octet-stream"):
        reply = api.client.post("/v1/samples", content=b'{"n": 1}', headers={"Content-Type": kind})
        message = check_error(reply, 415, "unsupported_media_type", "content-type")
        assert "application/json" in message
    files = {"image": ("a.png", encode(random_picture()))}
    check_error(api.client.post("/v1/samples", files=files), 415, "unsupported_media_type")


def test_unknown_paths_methods_and_media_types(api: LiveServer) -> None:
    for path in (
        "/v1/nothing",
        "/nothing",
        "/static/nothing",
        "/v1",
        "/%00%0d%0a",
        "/v1/models/../../etc",
    ):
        check_error(api.client.get(path), 404)
    for method, path in (("GET", "/v1/samples"), ("PUT", "/v1/completions"), ("POST", "/livez"),
                         ("POST", "/static/x"), ("DELETE", "/v1/models")):  # fmt: skip
        check_error(api.client.request(method, path), 405)
    assert api.client.post("/static/app.js").headers["allow"] == "GET, HEAD"
    reply = api.client.post("/v1/samples", json={}, headers={"Accept": "text/html, audio/*"})
    assert "image/png" in check_error(reply, 406)


@pytest.mark.parametrize("root", ["", "/pictures"])
def test_errors_refer_to_an_existing_page(root: str) -> None:
    """Inside of a mount such as ``/static``, the root path is the mount's."""
    _, app = build({"root_path": root})
    with talking_to(app) as client:
        for method, path in (
            ("GET", "/static/nope.js"), ("POST", "/static/app.js"), ("GET", "/docs/static/nope"),
            ("GET", "/nope"), ("PUT", "/v1/models"),
        ):  # fmt: skip
            message = check_error(client.request(method, path), 404 if method == "GET" else 405)
            assert message.endswith(f"; see {root}/docs")
        assert client.get("/docs").status_code == 200


def test_head_is_get_without_a_body(api: LiveServer) -> None:
    plain = {"Accept-Encoding": "identity"}
    for path in ("/", "/livez", "/readyz", "/v1/models", "/static/app.js"):
        head, get = (ask(path, headers=plain) for ask in (api.client.head, api.client.get))
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-length"] == str(len(get.content))
    metrics = api.client.get("/metrics").text
    for method in ("GET", "HEAD"):
        assert f'{{method="{method}",route="/livez",status="200"}} 1.0' in metrics
    check = api.client.head("/v1/samples")
    assert check.status_code == 405
    assert check.headers["allow"] == "POST"
    assert api.client.post("/livez").headers["allow"] == "GET, HEAD"
    assert api.client.put("/v1/models/reload").headers["allow"] == "POST", "it is no model's name"


def bomb(width: int, height: int) -> bytes:
    """Return a PNG whose header claims more pixels than it has."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    pixels = zlib.compress(b"\0" * 1000)
    chunks = ((b"IHDR", header), (b"IDAT", pixels), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(png_chunk(*chunk) for chunk in chunks)


def test_unusable_pictures_are_400(api: LiveServer) -> None:
    good = encode(random_picture())
    side = int(MAX_PIXELS**0.5) + 1
    wrong: dict[str, tuple[bytes, str]] = {
        "no picture": (b"hello", "not an image of a supported format"),
        "nothing": (b"", "not an image of a supported format"),
        "half": (good[: len(good) // 2], "damaged"),
        "cut short": (good[:20], "damaged"),
        "claims to be huge": (bomb(50_000, 50_000), "too large"),
        "claims to be large": (bomb(9_000, 9_000), "make it smaller"),
        "highly compressed": (encode(Picture.new("1", (side, side))), "make it smaller"),
        "an SVG": (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "not an image"),
        "a PDF": (b"%PDF-1.4\n", "not an image"),
        "an EPS": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 5 6\n", "not an image"),
    }
    for name, (data, message) in wrong.items():
        reply = api.complete(data, known_rows=1)
        assert message in check_error(reply, 400, "invalid_image", "image"), name


def test_invalid_completions_are_refused(api: LiveServer) -> None:
    good = encode(random_picture())
    transparent = encode(Picture.new("LA", (5, 6)))
    assert "known_rows" in check_error(api.complete(good), 400, param="image")
    assert "0 to 5" in check_error(api.complete(good, known_rows=6), 400, param="known_rows")
    check_error(api.complete(good, known_rows=-1), 400, param="known_rows")
    check_error(api.complete(good, known_rows="two"), 400, param="known_rows")
    both = api.complete(good, transparent, known_rows=1)
    assert "not both" in check_error(both, 400, param="mask")
    assert "nothing to draw" in check_error(api.complete(good, good), 400, param="mask")
    wide = Picture.new("LA", (24, 6), (9, 255))
    marked = wide.copy()
    marked.paste((0, 0), (0, 0, 4, 6))  # outside of the part that `cover` keeps
    gone = api.complete(encode(wide), encode(marked), fit="cover")
    assert "crops away the whole part that the mask marks" in check_error(gone, 400, param="mask")
    gone = api.complete(encode(marked), fit="cover")
    assert "crops away the whole transparent part" in check_error(gone, 400, param="image")
    assert api.complete(encode(marked), fit="contain").status_code == 200
    small = encode(Picture.new("LA", (2, 2)))
    assert "the mask is 2 × 2" in check_error(api.complete(good, small), 400, param="mask")
    check_error(api.complete(good, b"no mask"), 400, param="mask")
    check_error(api.complete(good, known_rows=1, fit="stretch"), 400, param="fit")
    check_error(api.complete(good, known_rows=1, colour=1), 400, param="colour")
    check_error(api.complete(good, known_rows=1, model="no"), 404, param="model")
    check_error(api.complete(good, known_rows=1, label="toad"), 400, param="label")
    check_error(api.complete(good, known_rows=1, n=0), 400, param="n")
    check_error(api.complete(good, known_rows=1, n=10**9), 400, param="n")
    for seed in (-1, 2**64, 1.5, "x", "true"):
        check_error(api.complete(good, known_rows=1, seed=seed), 400, param="seed")
    for temperature in ("nan", "inf", -1, 3, "hot"):
        reply = api.complete(good, known_rows=1, temperature=temperature)
        check_error(reply, 400, param="temperature")
    check_error(api.client.post("/v1/completions", data={"known_rows": "1"}), 400, param="image")
    text = api.client.post("/v1/completions", data={"image": "text", "known_rows": "1"})
    check_error(text, 400, param="image")
    check_error(api.client.post("/v1/completions"), 415, "unsupported_media_type")
    check_error(api.client.post("/v1/completions", json={"image": "x"}), 415)


@pytest.mark.parametrize("route", ["completions", "score", "images/edits"])
def test_malformed_forms_are_refused_with_the_reason(api: LiveServer, route: str) -> None:
    part = b'--x\r\nContent-Disposition: form-data; name="seed"\r\n\r\n%b\r\n'
    wrong = {
        "boundary": (b"--x", ""),
        "does not contain the boundary": (b"junk", "; boundary=x"),
        '"name" must be provided': (b"--x\r\nContent-Type: a/b\r\n\r\n1\r\n--x--", "; boundary=x"),
        "Too many fields": (part % b"1" * 1001 + b"--x--\r\n", "; boundary=x"),
    }
    for reason, (body, boundary) in wrong.items():
        headers = {"Content-Type": f"multipart/form-data{boundary}"}
        reply = api.client.post(f"/v1/{route}", content=body, headers=headers)
        message = check_error(reply, 400, "form_invalid")
        assert message.startswith("the form cannot be read (")
        assert reason in message
        assert "images as files" in message
    refused = 'scanline_refused_total{reason="form_invalid"}'
    assert refused in api.client.get("/metrics").text


def test_bodies_over_the_limit_are_413(api: LiveServer) -> None:
    large = b"x" * 1_500_000
    check_error(api.client.post("/v1/samples", content=large), 413, "too_large")
    check_error(api.complete(large, known_rows=1), 413, "too_large")

    def parts() -> Iterator[bytes]:
        for _ in range(30):
            yield b"x" * 50_000

    chunked = api.client.post(
        "/v1/samples", content=parts(), headers={"Content-Type": "application/json"}
    )
    check_error(chunked, 413, "too_large")
