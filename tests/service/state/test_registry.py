"""Requests for models that are replaced while the server runs."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from scanline.model import api
from scanline.model.checkpoint import load_checkpoint
from scanline.service.recipes.recipe import read_recipe
from scanline.service.state import registry as model_registry
from tests.service.fixtures import GREY, check_error, metric_value, until
from tests.service.state.fixtures import network, save
from tests.sse_client import parse_sse, rebuild


def expected(seed: int) -> NDArray[np.uint8]:
    """Return the images 0 to 9 that ``network(seed)`` draws, uint8 ``[10, T, C]``."""
    drawn = api.draw(network(seed), 10, backend="reference")
    return drawn.reshape(10, GREY.pixels, GREY.channels)


def test_ten_streams_end_on_the_weights_that_they_began_with(
    tmp_path: Path, serve: Callable[..., Any]
) -> None:
    save(tmp_path, 1)
    with serve(slots=4) as server, ThreadPoolExecutor(20) as pool:
        server.gate.clear()

        def stream(seed: int) -> NDArray[np.uint8]:
            body = {"model": "it", "seed": seed, "stream": True}
            return rebuild(parse_sse(server.client.post("/v1/samples", json=body).content), GREY)[0]

        def waiting() -> int:
            return sum(one.queue.waiting + one.running for one in server.app_state.registry.engines)

        old = [pool.submit(stream, seed) for seed in range(10)]
        until(lambda: waiting() == 10, "ten images of the old weights")
        save(tmp_path, 2)
        assert server.reload()["replaced"] == ["it"]
        assert server.weights() == {"it": server.digest()}
        new = [pool.submit(stream, seed) for seed in range(10)]
        until(lambda: waiting() == 20, "ten more images of the new weights")
        assert metric_value(server.client, 'scanline_slots{model="it"}') == 16
        server.gate.set()
        images = {weights: expected(weights) for weights in (1, 2)}
        np.testing.assert_array_equal([one.result() for one in old], images[1])
        np.testing.assert_array_equal([one.result() for one in new], images[2])
        until(lambda: len(server.app_state.registry.engines) == 1, "the end of the old engine")
        assert metric_value(server.client, 'scanline_slots{model="it"}') == 8
    assert all((images[1] != images[2]).any(axis=(1, 2)))


def test_replaced_model_frees_its_slots_and_keeps_its_results(
    tmp_path: Path, serve: Callable[..., Any]
) -> None:
    save(tmp_path, 1)
    old = load_checkpoint(tmp_path / "it.safetensors").digest
    with serve(keep_seconds=60) as server:
        key = {"Idempotency-Key": "one"}
        body = {"seed": 3, "output": "png"}
        drawn = server.client.post("/v1/samples", json=body, headers=key).json()
        picture = server.client.get("/v1/samples/it/3.png")
        decoder = weakref.ref(server.app_state.models["it"].engine.decoder)
        gc.disable()  # the objects of the start are excluded from collection in a real server
        try:
            save(tmp_path, 2)
            server.reload()
            until(lambda: decoder() is None, "a free decoder")
        finally:
            gc.enable()
        # By id, and by idempotency key, with the recipe of the weights that drew it.
        for kept in (
            server.client.get(f"/v1/generations/{drawn['id']}"),
            server.client.post("/v1/samples", json=body, headers=key),
        ):
            assert kept.json() == drawn
        png = server.client.get(
            f"/v1/generations/{drawn['id']}", headers={"Accept": "image/png"}
        ).content
        recipe = read_recipe(png)
        assert recipe is not None
        assert recipe.weights == old
        assert server.client.get(f"/v1/generations/{drawn['id']}/events").status_code == 200
        # Another picture has the same URL, with another ETag.
        again = server.client.get(
            "/v1/samples/it/3.png", headers={"If-None-Match": picture.headers["etag"]}
        )
        assert again.status_code == 200
        # The recipe of a picture of the old weights is known, but they cannot draw any more.
        verdict = server.client.post("/v1/verify", files={"image": picture.content}).json()
        assert verdict["verdict"] == "other_weights"
        verdict = server.client.post("/v1/verify", files={"image": again.content}).json()
        assert verdict["verdict"] == "same"


def test_results_of_a_replaced_model_expire(tmp_path: Path, serve: Callable[..., Any]) -> None:
    save(tmp_path, 1)
    with serve(keep_seconds=0.2) as server:
        drawn = server.client.post("/v1/samples", json={}).json()
        queue = weakref.ref(server.app_state.models["it"].engine.queue)
        save(tmp_path, 2)
        server.reload()
        until(lambda: gc.collect() >= 0 and queue() is None, "a forgotten queue")
        check_error(server.client.get(f"/v1/generations/{drawn['id']}"), 404)


def test_request_that_found_the_old_model_is_still_drawn(
    tmp_path: Path, serve: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A completion finds its model before its upload is read."""
    monkeypatch.setattr(model_registry, "SUBMIT_SECONDS", 60.0)
    save(tmp_path, 1)
    with serve() as server:
        loaded = server.app_state.models["it"]
        save(tmp_path, 2)
        server.reload()
        assert server.app_state.models["it"] is not loaded
        loaded.engine.queue.check_capacity(1)  # raises if it is closed


def test_a_stuck_engine_of_a_replaced_model_fails_the_health_check(
    tmp_path: Path, serve: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scanline.service.engine.engine.STUCK_SECONDS", 0.05)
    save(tmp_path, 1)
    with serve() as server:
        server.gate.clear()
        server.client.post("/v1/samples", json={}, headers={"Prefer": "respond-async"})
        until(lambda: server.client.get("/livez").status_code == 503)
        save(tmp_path, 2)
        assert server.reload()["replaced"] == ["it"]
        check_error(server.client.get("/livez"), 503, "not_ready")
        server.gate.set()
        until(lambda: server.client.get("/livez").status_code == 200)
