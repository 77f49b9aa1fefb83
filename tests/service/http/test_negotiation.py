"""Tests of content negotiation."""

from __future__ import annotations

import json

import httpx
import pytest

from tests.service.fixtures import check_error


@pytest.mark.parametrize(
    ("accept", "media"),
    [
        ("*/*", "application/json"),
        ("image/*", "image/png"),
        ("IMAGE/PNG", "image/png"),
        ("application/*", "application/json"),
        ("text/html, application/zip", "application/zip"),
        ("application/json;q=0.5, image/png", "image/png"),
        ("application/json;q=0.5, image/png;q=0.2", "application/json"),
        ("application/json;q=0, */*;q=0.1", "image/png"),
        ("application/*;q=0, */*", "image/png"),
        ("image/png;q=wrong, application/zip", "application/zip"),
        ("image/png;q=9, application/zip", "application/zip"),
        ("image/png;q=1.5, application/zip", "application/zip"),
        ("", "application/json"),
        (",", "application/json"),
        ("application/x-npy", "application/x-npy"),
        ("application/json, application/*;q=0", "application/json"),  # the more specific range wins
        ("image/png;q=0.5, image/*;q=0", "image/png"),
        ("application/json;q=0.2, */*", "image/png"),
        ("image/png, */*", "image/png"),
        ("*/*, image/png", "application/json"),
        ("text/event-stream", "text/event-stream; charset=utf-8"),
    ],
)
def test_the_best_acceptable_type(client: httpx.Client, accept: str, media: str) -> None:
    reply = client.post("/v1/samples", json={"n": 2}, headers={"Accept": accept})
    assert reply.status_code == 200
    assert reply.headers["content-type"] == media


def test_several_accept_lines_are_one(client: httpx.Client) -> None:
    lines = [("Accept", "text/html"), ("Accept", "image/png")]
    reply = client.post("/v1/samples", json={"n": 2}, headers=lines)
    assert reply.headers["content-type"] == "image/png"


def test_nothing_acceptable(client: httpx.Client) -> None:
    for accept in ("image/png;q=0, text/html", "text/html,"):
        reply = client.post("/v1/samples", json={}, headers={"Accept": accept})
        check_error(reply, 406, "not_acceptable", "accept")


@pytest.mark.parametrize(
    ("field", "accept"),
    [
        ({"granularity": "row"}, "application/json"),
        ({"granularity": "pixel"}, "image/png"),
        ({"output": "values"}, "image/png"),
        ({"output": "values"}, "application/zip"),
        ({"output": "values"}, "application/x-npy"),
    ],
)
def test_a_field_that_would_be_ignored_is_refused(
    client: httpx.Client, field: dict[str, str], accept: str
) -> None:
    reply = client.post("/v1/samples", json=field, headers={"Accept": accept})
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == next(iter(field))


def test_a_stream_gives_values_too(client: httpx.Client) -> None:
    body = {"stream": True, "output": "values", "seed": 5}
    lines = client.post("/v1/samples", json=body).text.splitlines()
    data = json.loads(lines[lines.index("event: image") + 1].removeprefix("data: "))
    plain = client.post("/v1/samples", json={"output": "values", "seed": 5}).json()
    assert data["values"] == plain["images"][0]["values"]
    assert "png" not in data
