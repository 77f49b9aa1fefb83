"""Tests of multipart forms in the unusual shapes that clients send."""

from __future__ import annotations

import io
from collections.abc import Iterator

import httpx
import numpy as np
import pytest

from tests.service.fixtures import build, check_error, encode, random_picture, talking_to

PNG = encode(random_picture())
FIELDS = (b'Content-Disposition: form-data; name="known_rows"', b"2")
HEADERS = {"Content-Type": "multipart/form-data; boundary=xyz"}


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    _, app = build()
    with talking_to(app) as client:
        yield client


def form(disposition: str, before: bytes = b"", after: bytes = b"") -> bytes:
    """Return a form with the number of known rows and a picture."""
    head = f'Content-Disposition: form-data; name="image"{disposition}\r\nContent-Type: image/png'
    parts = [FIELDS, (head.encode(), PNG)]
    body = b"".join(b"--xyz\r\n%b\r\n\r\n%b\r\n" % part for part in parts)
    return before + body + b"--xyz--\r\n" + after


def known_rows(client: httpx.Client, body: bytes | Iterator[bytes]) -> np.ndarray:
    """Complete the form's picture, and return its first two rows."""
    headers = HEADERS | {"Accept": "application/x-npy"}
    reply = client.post("/v1/completions", content=body, headers=headers)
    assert reply.status_code == 200, reply.text
    rows: np.ndarray = np.load(io.BytesIO(reply.content))[0, :2, :, 0]
    return rows


EXPECTED = np.asarray(random_picture())[:2]


@pytest.mark.parametrize(
    "disposition",
    [
        "; filename*=UTF-8''bild%C3%A4.png",
        "; FileName* = utf-8'en'a.png",
        "; filename*0*=UTF-8''a; filename*1=.png",
        "; filename=\"a.png\"; filename*=UTF-8''b.png",
        '; filename=""',
    ],
)
def test_a_part_with_any_kind_of_file_name_is_a_file(
    client: httpx.Client, disposition: str
) -> None:
    assert np.array_equal(known_rows(client, form(disposition)), EXPECTED)
    both = client.post("/v1/score", content=form(disposition), headers=HEADERS)
    check_error(both, 400, "extra_forbidden", "known_rows")  # and not the image
    for path in ("/v1/images/edits", "/v1/verify"):
        reply = client.post(path, content=form(disposition), headers=HEADERS)
        assert "must be a file" not in reply.text


def test_a_file_name_inside_of_another_parameter_is_none(client: httpx.Client) -> None:
    body = form("; x=\"; filename*=UTF-8''a.png\"")
    reply = client.post("/v1/completions", content=body, headers=HEADERS)
    assert "must be a file" in check_error(reply, 400, param="image")


@pytest.mark.parametrize(
    "before",
    [
        b"This is a multi-part message in MIME format.\r\n",
        b"\r\n",
        b"\n",
        b"--\r\n-xyz --xyz\r\n",
        b"a--xyz\r\nno boundary\r\n",
        b"text " * 50_000 + b"\r\n",
    ],
    ids=["text", "line", "newline", "hyphens", "inside", "long"],
)
def test_the_preamble_and_the_epilogue_of_a_form_are_skipped(
    client: httpx.Client, before: bytes
) -> None:
    body = form('; filename="a.png"', before, b"This is the epilogue.\r\n--xyz\r\n")
    assert np.array_equal(known_rows(client, body), EXPECTED)
    if len(body) < 2000:
        pieces = (body[i : i + 1] for i in range(len(body)))  # the boundary arrives in pieces
        assert np.array_equal(known_rows(client, pieces), EXPECTED)


def test_a_form_without_its_boundary_is_refused(client: httpx.Client) -> None:
    other = form('; filename="a.png"').replace(b"--xyz", b"--other")
    reply = client.post("/v1/completions", content=other, headers=HEADERS)
    assert "the boundary of its Content-Type" in check_error(reply, 400, "form_invalid")
    nothing = client.post("/v1/completions", content=b"", headers=HEADERS)
    check_error(nothing, 400, "missing", "image")
