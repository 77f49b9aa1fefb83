"""Tests of API keys, and of limits per caller."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.service.fixtures import build, check_error, held_server, listening, until
from tests.service.http.protocol.raw_connections import REQUEST, connect, read_all, serve


def test_several_api_keys_each_have_a_name() -> None:
    app_state, app = build({"api_key": "one, zwei ,öß"})
    with listening(app, lambda: app_state.ready) as url:

        def ask(key: str, scheme: str = "Bearer") -> httpx.Response:
            given = f"{scheme} {key}".encode()
            headers = [(b"Authorization", given), (b"Idempotency-Key", b"k")]
            return httpx.post(f"{url}/v1/samples", json={}, headers=headers, timeout=60)

        ids = [ask(key).json()["id"] for key in ("one", "zwei", "öß", "one")]
        assert len(set(ids)) == 3
        assert ids[0] == ids[3]
        assert ask("one", "bearer").status_code == 200
        assert ask("  one").status_code == 200  # RFC 9110 allows several blanks
        for wrong in ("x", "one,zwei", "on", "one2", "three"):
            check_error(ask(wrong), 401, "invalid_api_key")
        check_error(ask("one", "Basic"), 401, "invalid_api_key")


def test_blanks_behind_the_keys_of_a_request_are_ignored() -> None:
    """Shell scripts and templates leave them; RFC 9112, section 5, removes them."""
    with serve(api_key="KEY") as client:
        ids = set()
        for blank in (b"", b" ", b" \t "):
            head = b"Authorization: Bearer KEY%b\r\nIdempotency-Key: k%b\r\n" % (blank, blank)
            request = REQUEST.replace(b"\r\n", b"\r\nConnection: close\r\n" + head, 1)
            with connect(client) as connection:
                connection.sendall(request)
                reply = read_all(connection)
            assert reply.startswith(b"HTTP/1.1 200 "), reply
            ids.add(json.loads(reply.partition(b"\r\n\r\n")[2])["id"])
        assert len(ids) == 1


def test_idempotency_keys_are_separate_per_caller() -> None:
    """Without API keys, the caller is the client's address."""
    app_state, app = build({"trusted_proxies": "127.0.0.1"})
    with listening(app, lambda: app_state.ready) as url:

        def ask(address: str, n: int) -> httpx.Response:
            headers = {"X-Forwarded-For": address, "Idempotency-Key": "1"}
            return httpx.post(f"{url}/v1/samples", json={"n": n}, headers=headers, timeout=60)

        first, other = ask("192.0.2.1", 1), ask("192.0.2.2", 2)
        assert (first.status_code, other.status_code) == (200, 200)
        assert ask("192.0.2.1", 1).json()["id"] == first.json()["id"]
        check_error(ask("192.0.2.1", 2), 422, "idempotency_key_reused")


@pytest.mark.parametrize("keys", ["a,b", None])
def test_images_in_flight_are_limited_per_caller(keys: str | None) -> None:
    fields = {
        "api_key": keys, "max_images": 4, "max_images_per_caller": 5, "trusted_proxies": "127.0.0.1"
    }  # fmt: skip
    with held_server(2, fields) as (app_state, client, go_on), ThreadPoolExecutor(4) as pool:

        def ask(who: str, n: int) -> httpx.Response:
            address = {"a": "192.0.2.1", "b": "192.0.2.2"}[who]
            headers = {"Authorization": f"Bearer {who}", "X-Forwarded-For": address}
            return client.post("/v1/samples", json={"n": n}, headers=headers)

        first = pool.submit(ask, "a", 4)
        engine = app_state.models["grey"].engine
        until(lambda: engine.queue.waiting == 2)
        refused = ask("a", 2)
        message = check_error(refused, 429, "too_many_in_flight")
        assert "you have 4 images in flight, and the limit is 5" in message
        assert refused.headers["retry-after"] == "1"
        others = [pool.submit(ask, "a", 1), pool.submit(ask, "b", 4)]
        until(lambda: engine.queue.waiting == 7)
        go_on.set()
        assert {one.result().status_code for one in (first, *others)} == {200}
        assert ask("a", 4).status_code == 200  # finished images do not count


def test_a_generation_belongs_to_its_key() -> None:
    app_state, app = build({"api_key": "a,b"})
    with (
        listening(app, lambda: app_state.ready) as url,
        httpx.Client(base_url=url, timeout=60) as client,
    ):
        a, b = ({"Authorization": f"Bearer {key}"} for key in "ab")
        started = client.post("/v1/samples", json={}, headers=a | {"Prefer": "respond-async"})
        path = started.headers["location"]
        for method, suffix in (("GET", ""), ("GET", "/events"), ("DELETE", "")):
            reply = client.request(method, path + suffix, headers=b)
            check_error(reply, 404, "generation_not_found")
        assert client.get(f"{path}/events", headers=a).status_code == 200
        assert client.get(path, headers=a).json()["status"] == "finished"


def test_the_api_key_is_checked_before_the_body() -> None:
    app_state, app = build({"api_key": "secret"}, None)
    with listening(app, lambda: app_state.ready) as url:
        broken = {"Content-Type": "application/json"}
        reply = httpx.post(f"{url}/v1/samples", content=b"{", headers=broken, timeout=60)
        assert reply.status_code == 401
        headers = broken | {"Authorization": "bearer secret"}
        assert (
            httpx.post(f"{url}/v1/samples", content=b"{", headers=headers, timeout=60).status_code
            == 400
        )
        headers = {"Authorization": "Bearer secret"}
        assert (
            httpx.post(f"{url}/v1/samples", json={}, headers=headers, timeout=60).status_code == 200
        )
