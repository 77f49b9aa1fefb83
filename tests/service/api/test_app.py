"""API keys, CORS, request ids, metrics, the list of models, and the documentation."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.types import Receive, Scope, Send

from scanline.model.checkpoint import Checkpoint
from scanline.service.app import create_app
from scanline.service.http.middleware.api_key import ApiKeyMiddleware
from scanline.service.state.app_state import AppState
from tests.service.api.fixtures import LiveServer, serve
from tests.service.fixtures import (
    GREY,
    check_error,
    idle,
    listening,
    metric_value,
    settings,
    tiny_model,
    until,
)
from tests.sse_client import parse_sse


@pytest.mark.parametrize("prefix", ["", "/pictures"])
def test_api_key_protects_v1_below_a_prefix(prefix: str) -> None:
    """The service may be mounted in another application, or behind a proxy's path."""
    app = FastAPI()
    app.get("/v1/models")(lambda: "models")
    app.get("/livez")(lambda: "alive")
    guarded = ApiKeyMiddleware(app, ["secret"])

    async def stated(scope: Scope, receive: Receive, send: Send) -> None:
        scope["state"] = {}
        await guarded(scope, receive, send)

    async def ask() -> None:
        transport = httpx.ASGITransport(app=stated, root_path=prefix)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            assert (await client.get(f"{prefix}/v1/models")).status_code == 401
            right = {"Authorization": "Bearer secret"}
            assert (await client.get(f"{prefix}/v1/models", headers=right)).json() == "models"
            assert (await client.get(f"{prefix}/livez")).json() == "alive"

    asyncio.run(ask())


def test_links_contain_the_root_path_that_a_proxy_strips(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with serve({"root_path": "/our/pictures/", "api_key": "secret"}) as api:
        key, prefer = {"Authorization": "Bearer secret"}, {"Prefer": "respond-async"}
        check_error(api.client.post("/v1/samples", json={}), 401)
        begun = api.client.post("/v1/samples", json={}, headers=key | prefer)
        where = begun.headers["location"]
        assert where == f"/our/pictures/v1/generations/{begun.json()['id']}"
        passed_on = where.removeprefix("/our/pictures")
        assert api.client.get(passed_on, headers=key).status_code == 200
        with caplog.at_level(logging.DEBUG, "scanline.access"):
            assert api.client.get("/livez").status_code == 200
            until(lambda: [r for r in caplog.records if "/livez" in r.getMessage()])
        quiet = {r.levelno for r in caplog.records if "/livez" in r.getMessage()}
        assert quiet == {logging.DEBUG}  # probes are logged at this level without a proxy, too
        docs = api.client.get("/docs").text
        places = re.findall(r"""(?:href|src)="(.*?)"|url: '(.*?)'""", docs)
        assert len(places) >= 3
        for place in places:
            (address,) = filter(None, place)
            assert address.startswith("/our/pictures/")
            assert api.client.get(address.removeprefix("/our/pictures")).status_code == 200
        servers = api.client.get("/openapi.json").json()["servers"]
        assert servers == [{"url": "/our/pictures"}]


def test_api_key_protects_v1_only() -> None:
    with serve({"api_key": "clé-secrète"}) as api:
        paths = {
            (method.upper(), re.sub(r"{.*?}", "x", path))
            for path, methods in api.client.get("/openapi.json").json()["paths"].items()
            for method in methods
            if path.startswith("/v1/")
        }
        assert {("POST", "/v1/score"), ("POST", "/v1/models/reload")} < paths
        wrong: list[dict[str, str | bytes]] = [
            {}, {"Authorization": "Bearer wrong"}, {"Authorization": "Bearer"},
            {"Authorization": "Basic abc"}, {"Authorization": b"Bearer \xff\xfe"},
            {"Authorization": "Bearer cle-secrete"},
        ]  # fmt: skip
        for method, path in paths:
            for headers in wrong:
                encoded = {k: v if isinstance(v, bytes) else v.encode() for k, v in headers.items()}
                raw = [(k.encode(), v) for k, v in encoded.items()]
                reply = api.client.request(
                    method, path, json={} if method == "POST" else None, headers=raw
                )
                check_error(reply, 401, "invalid_api_key")
                assert reply.json()["error"]["type"] == "authentication_error"
                assert reply.headers["www-authenticate"] == "Bearer"
        right = [(b"Authorization", "Bearer clé-secrète".encode())]
        assert api.client.post("/v1/samples", json={}, headers=right).status_code == 200
        for path in ("/livez", "/readyz", "/metrics", "/docs", "/openapi.json", "/"):
            assert api.client.get(path).status_code == 200


def test_cors_allows_the_configured_origins_only() -> None:
    with serve({"cors_origins": "https://a.example, https://b.example"}) as api:
        ask = {"Origin": "https://b.example", "Access-Control-Request-Method": "POST",
               "Access-Control-Request-Headers": "authorization,content-type"}  # fmt: skip
        allowed = api.client.options("/v1/samples", headers=ask)
        assert allowed.status_code == 200
        assert allowed.headers["access-control-allow-origin"] == "https://b.example"
        assert "authorization" in allowed.headers["access-control-allow-headers"].lower()
        refused = api.client.options("/v1/samples", headers=ask | {"Origin": "https://c.example"})
        assert "access-control-allow-origin" not in refused.headers
        assert (
            "Origin" in refused.headers["vary"]
        )  # or a cache would serve this refusal to other origins
        assert (refused.status_code, refused.text) == (400, "Disallowed CORS origin")
        for origin, there in (("https://a.example", True), ("https://c.example", False)):
            reply = api.client.post("/v1/samples", json={}, headers={"Origin": origin})
            assert ("access-control-allow-origin" in reply.headers) is there
        wrong = api.client.post("/v1/x", headers={"Origin": "https://a.example"})
        assert wrong.headers["access-control-allow-origin"] == "https://a.example"
        exposed = reply.headers.get("access-control-expose-headers", "") + wrong.headers.get(
            "access-control-expose-headers", "")  # fmt: skip
        for name in ("X-Request-ID", "X-Generation-ID", "X-Seed", "Retry-After", "Location", "ETag",
                     "Preference-Applied"):  # fmt: skip
            assert name in exposed


def test_cors_is_off_by_default(api: LiveServer) -> None:
    reply = api.client.get("/v1/models", headers={"Origin": "https://a.example"})
    assert "access-control-allow-origin" not in reply.headers


def test_every_reply_has_a_request_id(api: LiveServer) -> None:
    for path in ("/livez", "/v1/models", "/v1/nothing", "/", "/metrics"):
        one, other = (api.client.get(path).headers["x-request-id"] for _ in range(2))
        assert one != other
    good = "trace-1234/abc=~" + "x" * 100
    assert api.client.get("/livez", headers={"X-Request-ID": good}).headers["x-request-id"] == good
    junk: list[bytes] = [b"", b"two words", b"x" * 129, "é".encode(), b"tab\tin", b"\xff"]
    for value in junk:
        reply = api.client.get("/livez", headers=[(b"X-Request-ID", value)])
        assert reply.headers["x-request-id"].startswith("req_")


def test_a_path_cannot_forge_a_log_line(api: LiveServer, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "scanline.access"):
        api.client.get("/x%0a12:00:00 INFO forged%1b[31m")
        until(lambda: any("forged" in r.getMessage() for r in caplog.records))
    (line,) = [r.getMessage() for r in caplog.records if "forged" in r.getMessage()]
    assert "\n" not in line
    assert "\x1b" not in line


def wait_for_pixels(api: LiveServer, count: int) -> None:
    """Wait until a model's pixels are counted and its engine is idle."""
    until(lambda: metric_value(api.client, 'scanline_pixels_total{model="grey"}') == count)
    until(lambda: idle(api.app_state))


def test_metrics_count_requests_with_a_bounded_number_of_labels() -> None:
    with serve() as api:
        api.samples(n=3, model="grey")
        parse_sse(api.samples(n=1, model="grey", stream=True).content)
        api.samples(model="colour", n=0)

        def labels(client: httpx.Client = api.client) -> set[str]:
            lines = client.get("/metrics").text.splitlines()
            return {line.rpartition(" ")[0] for line in lines if not line.startswith("#")}

        # Some are counted after the reply.
        wait_for_pixels(api, 4 * GREY.pixels)
        text = api.client.get("/metrics").text
        assert api.client.get("/metrics").headers["content-type"].startswith("text/plain")
        for line in (
            'scanline_images_total{finish_reason="length",model="grey"} 4.0',
            'scanline_images_total{finish_reason="error",model="colour"} 0.0',
            f'scanline_pixels_total{{model="grey"}} {4.0 * GREY.pixels}',
            'scanline_queue_seconds_count{model="grey"} 2.0',
            'scanline_first_pixel_seconds_count{model="grey"} 2.0',
            'scanline_running_images{model="grey"} 0.0',
            'scanline_waiting_images{model="colour"} 0.0',
            'scanline_slots{model="grey"} 16.0',  # 8 of them reserved for small requests
            'scanline_requests_total{method="POST",route="/v1/samples",status="400"} 1.0',
        ):
            assert line in text, f"{line}\n\n{text}"
        assert 'scanline_step_seconds_count{model="grey"}' in text
        for path in ("/v1/generations/x", "/v1/generations/x/events", "/v1/models/x", "/nothing",
                     "/static/x"):  # fmt: skip
            api.client.get(path)
        before = labels()
        for j in range(5):
            api.client.get(f"/v1/generations/{j}")
            api.client.get(f"/v1/generations/{j}/events")
            api.client.get(f"/v1/models/{j}")
            api.client.get(f"/{j}")
            api.client.get(f"/static/{j}")
            api.samples(seed=j)
        assert labels() == before


def test_list_models(api: LiveServer) -> None:
    body = api.client.get("/v1/models").json()
    assert body["object"] == "list"
    assert [m["id"] for m in body["data"]] == ["grey", "colour"]
    grey, colour = body["data"]
    assert grey["object"] == "model"
    assert grey["owned_by"] == "scanline"
    assert (grey["width"], grey["height"], grey["channels"]) == (5, 6, 1)
    assert grey["classes"] == ["zero", "one", "a frog"]
    assert grey["bits_per_dim"] == 5.5
    assert grey["steps"] == 30
    assert grey["backend"] == "reference"
    assert grey["arithmetic"] is None
    assert grey["slow"] is False
    assert grey["slots"] == 8
    assert grey["parameters"] == sum(p.numel() for p in tiny_model().parameters())
    assert abs(grey["created"] - time.time()) < 3600
    assert colour["classes"] == []
    assert colour["bits_per_dim"] is None
    assert api.client.get("/v1/models/colour").json() == colour
    assert api.samples(seed=1).json()["model"] == "grey"  # the default is the first


@pytest.mark.parametrize(
    ("facts", "bits_per_dim"),
    [
        ({}, None),
        ({"validation": []}, None),
        ({"validation": [{"bits_per_dim": 5.0}, {"bits_per_dim": 4.0}]}, 4.0),
        ({"validation": [{"bits_per_dim": 4.0}], "test": {"bits_per_dim": 4.5}}, 4.5),
        ({"test": {"bits_per_dim": 4.5}, "test_with_label": {"bits_per_dim": 4.4}}, 4.5),
    ],
    ids=["nothing", "none yet", "the last validation", "the test above it", "without a label"],
)
def test_bits_per_dim_of_a_model(facts: dict[str, Any], bits_per_dim: float | None) -> None:
    app_state = AppState(settings())
    app = create_app(app_state, lambda: app_state.open([Checkpoint("grey", tiny_model(), facts)]))
    with listening(app, lambda: app_state.ready) as url:
        assert httpx.get(f"{url}/v1/models/grey", timeout=60).json()["bits_per_dim"] == bits_per_dim
