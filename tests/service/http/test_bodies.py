"""Tests of request bodies and queries: validation, limits and cost."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from PIL import Image
from pydantic import ValidationError

from scanline.service.api.requests import DistributionRequest
from scanline.service.http import bodies
from tests.service.fixtures import (
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


@pytest.mark.parametrize("path", ["/v1/samples", "/v1/distribution", "/v1/images/edits"])
@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"[" * 990, "nested too deeply"),
        (b'{"model": "\xff\xfe"}', "not UTF-8"),
        (b'{"seed": ' + b"1" * 5000 + b"}", "too many digits"),
        (b'{"seed": 1', "not valid JSON"),
    ],
)
def test_invalid_json_is_400_and_says_why(
    client: httpx.Client, path: str, body: bytes, says: str
) -> None:
    reply = client.post(path, content=body, headers=JSON)
    assert says in check_error(reply, 400, "json_invalid")
    assert reply.json()["error"]["param"] is None  # a position in the text is not a field


@pytest.mark.parametrize(
    ("path", "field"), [("/v1/images/generations", "prompt"), ("/v1/distribution", "values")]
)
def test_a_required_field_that_is_null_is_invalid_not_missing(
    client: httpx.Client, path: str, field: str
) -> None:
    check_error(client.post(path, json={}), 400, "missing", field)
    says = check_error(client.post(path, json={field: None}), 400, param=field)
    assert "must be a valid" in says


def test_many_wrong_values_make_one_error(client: httpx.Client) -> None:
    reply = client.post("/v1/distribution", json={"values": [-1] * 20_000})
    message = check_error(reply, 400, "greater_than_equal", "values")
    assert message.count("values") == 1
    with pytest.raises(ValidationError) as refused:
        DistributionRequest.model_validate({"values": [-1] * 20_000})
    assert refused.value.error_count() == 1


@pytest.mark.parametrize("path", ["/v1/samples", "/v1/images/generations", "/v1/images/edits"])
def test_many_unknown_fields_make_one_error(client: httpx.Client, path: str) -> None:
    reply = client.post(path, json={f"x{j}": 0 for j in range(900)})
    assert "900 fields" in check_error(reply, 400, "too_many_fields")


def test_large_json_is_checked_outside_the_event_loop(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    where: list[str] = []
    check = bodies._check_json_keys

    def record(body: bytes) -> None:
        where.append(threading.current_thread().name)
        check(body)

    monkeypatch.setattr(bodies, "_check_json_keys", record)
    monkeypatch.setattr(bodies, "LARGE_JSON_BYTES", 20)
    for model in ("grey", "grey" + " " * 20):
        client.post("/v1/samples", json={"model": model})
    assert len(set(where)) == 2


def test_null_and_defaults_count_as_left_out(client: httpx.Client) -> None:
    plain = client.post("/v1/samples", json={"seed": 1}).json()
    named = client.post(
        "/v1/samples",
        json={"seed": 1, "n": None, "model": None, "label": None, "temperature": None,
              "stream": None, "granularity": "auto", "output": "png"},
    )  # fmt: skip
    assert named.status_code == 200, named.text
    assert named.json()["images"] == plain["images"]
    as_png = client.post(
        "/v1/samples", json={"output": "png", "granularity": None}, headers={"Accept": "image/png"}
    )
    assert as_png.status_code == 200
    row = client.post("/v1/samples", json={"granularity": "row"})
    check_error(row, 400, param="granularity")
    check_error(client.post("/v1/samples", json={"colour": None}), 400, "extra_forbidden", "colour")
    check_error(client.post("/v1/distribution", json={"values": None}), 400, param="values")


def test_a_repeated_field_is_refused(client: httpx.Client) -> None:
    picture = ("a.png", encode(random_picture()), "image/png")
    twice = client.post(
        "/v1/completions", files=[("image", picture), ("image", picture)], data={"known_rows": "1"}
    )
    check_error(twice, 400, "too_many", "image")
    rows = client.post("/v1/completions", files={"image": picture}, data={"known_rows": ["1", "2"]})
    check_error(rows, 400, "too_many", "known_rows")
    both = client.post("/v1/score", files=[("image", picture)] * 2, data={"label": "one"})
    assert both.status_code == 200, both.text
    labels = client.post("/v1/score", files={"image": picture}, data={"label": ["one", "zero"]})
    check_error(labels, 400, "too_many", "label")


@pytest.mark.parametrize(
    ("path", "floats"),
    [
        ("samples", {"n": 2.0, "seed": 5.0, "label": 1.0, "output": "values"}),
        ("samples", {"seed": 2.0**53 - 1, "n": 1e0}),
        ("distribution", {"values": [0.0, 7, 255.0], "label": 2.0}),
        ("images/generations", {"prompt": "", "n": 2.0, "seed": 5.0, "output_compression": 9.0}),
        ("images/edits", {"prompt": "", "seed": 5.0, "partial_images": 0.0}),
    ],
)
def test_whole_floats_are_integers(client: httpx.Client, path: str, floats: dict[str, Any]) -> None:
    """Clients in Lua and Godot have no other numbers."""

    def answer(body: dict[str, Any]) -> Any:
        if path == "images/edits":
            png = base64.b64encode(encode(Image.new("RGBA", (5, 6)))).decode()
            body = body | {"images": [{"image_url": f"data:image/png;base64,{png}"}]}
        reply = client.post(f"/v1/{path}", json=body)
        assert reply.status_code == 200, reply.text
        return {
            name: v for name, v in reply.json().items() if name not in ("id", "created", "usage")
        }

    integers = json.loads(json.dumps(floats), parse_float=lambda text: int(float(text)))
    assert answer(floats) == answer(integers)


@pytest.mark.parametrize("value", [1.5, 2.0**53, 1e19, 1e300, True, "1", [1.0]])
def test_only_exact_floats_are_integers(client: httpx.Client, value: object) -> None:
    check_error(client.post("/v1/samples", json={"seed": value}), 400, param="seed")
    values = {"values": [1.0, value]}
    check_error(client.post("/v1/distribution", json=values), 400, param="values")


def test_query_parameters_that_others_add_are_ignored(client: httpx.Client) -> None:
    """Caches, trackers and gateways add parameters of their own, also repeatedly."""
    drawn = client.post("/v1/samples", json={"seed": 1}).json()["id"]
    for path in (
        "/v1/models", "/v1/models/grey", "/v1/samples/grey/1.png", f"/v1/generations/{drawn}",
        f"/v1/generations/{drawn}/events",
    ):  # fmt: skip
        reply = client.get(f"{path}?_=1&_=2&fbclid=x")
        assert reply.status_code == 200, reply.text
        assert client.head(f"{path}?_=1").status_code == 200
    assert client.delete(f"/v1/generations/{drawn}?_=1").status_code == 200
    openai = client.post("/v1/images/generations?api-version=2025-04-01", json={"prompt": ""})
    assert openai.status_code == 200, openai.text


def test_options_in_the_query_are_refused_where_they_belong_in_the_body(
    client: httpx.Client,
) -> None:
    picture = encode(random_picture())
    for reply in (
        client.post("/v1/samples?n=4", json={}),
        client.post("/v1/distribution?n=4", json={"values": []}),
        client.post("/v1/completions?n=4", files={"image": picture}),
        client.post("/v1/score?n=4", files={"image": picture}),
        client.post("/v1/verify?n=4", files={"image": picture}),
    ):
        assert "in the body" in check_error(reply, 400, "extra_forbidden", "n")


def test_a_query_parameter_of_the_route_is_sent_once(client: httpx.Client) -> None:
    drawn = client.post("/v1/samples", json={"seed": 1}).json()["id"]
    assert client.get(f"/v1/generations/{drawn}?output=values").status_code == 200
    reply = client.get(f"/v1/generations/{drawn}?output=values&output=png")
    check_error(reply, 400, "too_many", "output")
