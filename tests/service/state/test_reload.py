"""Models that are added, replaced and removed while the server runs."""

from __future__ import annotations

import contextlib
import gc
import shutil
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import httpx
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from scanline.model import api
from scanline.model.checkpoint import CheckpointError, load_checkpoint, save_checkpoint
from scanline.model.decoders.base import Slots
from scanline.model.decoders.reference import ReferenceDecoder
from scanline.model.network import LinearTransformer
from scanline.service.recipes.recipe import read_recipe
from scanline.service.state import registry as model_registry
from scanline.service.state import reload as model_reload
from scanline.service.state.app_state import AppState
from scanline.service.state.reload import ModelReloader, ReloadResult
from tests.service.fixtures import (
    COLOUR,
    GREY,
    check_error,
    metric_value,
    reloading_server,
    tiny_model,
    until,
)
from tests.sse_client import parse_sse, rebuild


class Server(NamedTuple):
    """A server that watches a folder, and the gate that its decoders' steps wait for."""

    folder: Path
    app_state: AppState
    reloader: ModelReloader
    client: httpx.Client
    gate: threading.Event

    def reload(self) -> Any:
        reply = self.client.post("/v1/models/reload")
        assert reply.status_code == 200, reply.text
        return reply.json()

    def weights(self) -> dict[str, str]:
        return {one["id"]: one["weights"] for one in self.client.get("/v1/models").json()["data"]}

    def digest(self, name: str = "it") -> str:
        return load_checkpoint(self.folder / f"{name}.safetensors").digest


def network(seed: int) -> LinearTransformer:
    """Return a small network that draws other pixels with another seed."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = tiny_model()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return model


def save(folder: Path, seed: int, name: str = "it", **facts: Any) -> Path:
    path = folder / f"{name}.safetensors"
    save_checkpoint(path, network(seed), facts)
    return path


@pytest.fixture
def serve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., contextlib.AbstractContextManager[Server]]:
    """Return a function that serves the models of a folder."""
    monkeypatch.setattr(model_registry, "SUBMIT_SECONDS", 0.05)
    gate = threading.Event()

    class GatedDecoder(ReferenceDecoder):
        def step(self, slots: Slots, n: int) -> None:
            gate.wait()
            super().step(slots, n)

    monkeypatch.setattr(
        model_registry, "create_decoder", lambda model, slots, *_: GatedDecoder(model, slots)
    )

    @contextlib.contextmanager
    def run(**fields: Any) -> Iterator[Server]:
        gate.set()
        with reloading_server(tmp_path, **fields) as (app_state, reloader, client):
            try:
                yield Server(tmp_path, app_state, reloader, client, gate)
            finally:
                gate.set()

    return run


def expected(seed: int) -> NDArray[np.uint8]:
    """Return the images 0 to 29 that ``network(seed)`` draws, uint8 ``[30, T, C]``."""
    drawn = api.draw(network(seed), 30, backend="reference")
    return drawn.reshape(30, GREY.pixels, GREY.channels)


def test_thirty_streams_end_on_the_weights_that_they_began_with(
    tmp_path: Path, serve: Callable[..., Any]
) -> None:
    save(tmp_path, 1)
    with serve(slots=4) as server, ThreadPoolExecutor(60) as pool:
        server.gate.clear()

        def stream(seed: int) -> NDArray[np.uint8]:
            body = {"model": "it", "seed": seed, "stream": True}
            return rebuild(parse_sse(server.client.post("/v1/samples", json=body).content), GREY)[0]

        def waiting() -> int:
            return sum(one.queue.waiting + one.running for one in server.app_state.registry.engines)

        old = [pool.submit(stream, seed) for seed in range(30)]
        until(lambda: waiting() == 30, "thirty images of the old weights")
        save(tmp_path, 2)
        assert server.reload()["replaced"] == ["it"]
        assert server.weights() == {"it": server.digest()}
        new = [pool.submit(stream, seed) for seed in range(30)]
        until(lambda: waiting() == 60, "thirty more images of the new weights")
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


def test_models_are_added_and_removed(tmp_path: Path, serve: Callable[..., Any]) -> None:
    save(tmp_path, 1, "b")
    with serve() as server, ThreadPoolExecutor() as pool:
        save(tmp_path, 2, "a")
        save_checkpoint(tmp_path / "c.safetensors", tiny_model(COLOUR), {})  # fewer steps
        assert server.reload() == {
            "object": "reload", "added": ["a", "c"], "replaced": [], "removed": [], "failed": [],
        }  # fmt: skip
        assert list(server.weights()) == ["c", "a", "b"]
        server.gate.clear()
        running = pool.submit(server.client.post, "/v1/samples", json={"model": "b", "seed": 4})
        until(lambda: server.app_state.models["b"].engine.running == 1, "a running image")
        (tmp_path / "b.safetensors").unlink()
        assert server.reload()["removed"] == ["b"]
        check_error(server.client.post("/v1/samples", json={"model": "b"}), 404, "model_not_found")
        server.gate.set()
        assert running.result().json()["images"][0]["status"] == "finished"
        assert list(server.weights()) == ["c", "a"]
        shutil.copy(tmp_path / "a.safetensors", tmp_path / "b.safetensors")
        assert server.reload()["added"] == ["b"]


def test_broken_files_change_nothing(
    tmp_path: Path, serve: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    path = save(tmp_path, 1)
    with serve() as server:
        before = server.weights()
        good = path.read_bytes()
        path.write_bytes(good[: len(good) // 2])  # as if it were still being written
        (tmp_path / "other.safetensors").write_bytes(b"nothing")
        (tmp_path / "loop.safetensors").symlink_to(tmp_path / "loop.safetensors")
        failed = server.reload()["failed"]
        assert [one["model"] for one in failed] == ["it", "other"]
        for one in failed:  # only the log has the folder
            assert one["message"].startswith(f"{one['model']}.safetensors ")
            assert str(tmp_path) not in one["message"]
            assert f"{tmp_path}/{one['message']}" in caplog.text
        assert server.weights() == before
        assert server.client.post("/v1/samples", json={}).status_code == 200
        change = 'scanline_model_changes_total{change="failed"}'
        assert metric_value(server.client, change) == 2
        path.write_bytes(good)
        (tmp_path / "other.safetensors").unlink()
        assert server.reload()["failed"] == []
        assert server.weights() == before
        # A folder without models is no reason to serve none.
        path.unlink()
        assert [one["model"] for one in server.reload()["failed"]] == [None]
        assert server.weights() == before


def test_model_that_does_not_fit_into_memory_changes_nothing(
    tmp_path: Path, serve: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 1)
    with serve() as server:
        before = server.weights()
        memory = server.app_state.models["it"].engine.memory
        monkeypatch.setattr(server.app_state.registry, "_budget", int(1.5 * memory))
        save(tmp_path, 2)
        (failure,) = server.reload()["failed"]
        assert "set SCANLINE_SLOTS to" in failure["message"]
        assert server.weights() == before
        assert len(server.app_state.registry.engines) == 1
        monkeypatch.setattr(server.app_state.registry, "_budget", 3 * memory)
        assert server.reload()["replaced"] == ["it"]


def test_touched_file_replaces_nothing_but_changed_facts_do(
    tmp_path: Path, serve: Callable[..., Any]
) -> None:
    path = save(tmp_path, 1)
    with serve() as server:
        path.touch()
        assert server.reload()["replaced"] == []
        save(tmp_path, 1, defaults={"guidance": 2.0})
        assert server.reload()["replaced"] == ["it"]
        assert server.client.get("/v1/models/it").json()["guidance"] == 2.0


def test_link_that_points_to_another_file_replaces_its_model(
    tmp_path: Path, serve: Callable[..., Any]
) -> None:
    """As a link named ``current``, or a ConfigMap of Kubernetes."""
    versions = [tmp_path / str(seed) for seed in (1, 2)]
    for seed, version in enumerate(versions, 1):
        version.mkdir()
        save(version, seed)
    link = tmp_path / "it.safetensors"
    link.symlink_to(versions[0] / "it.safetensors")
    with serve() as server:
        link.unlink()
        link.symlink_to(versions[1] / "it.safetensors")
        assert server.reload()["replaced"] == ["it"]
        assert server.weights() == {"it": server.digest()}


def test_only_the_chosen_models_are_reloaded_in_their_order(
    tmp_path: Path, serve: Callable[..., Any]
) -> None:
    for seed, name in enumerate("abc"):
        save(tmp_path, seed, name)
    with serve(models="c,a") as server:
        save(tmp_path, 7, "c")
        save(tmp_path, 8, "b")
        save(tmp_path, 9, "d")
        assert server.reload() == {
            "object": "reload", "added": [], "replaced": ["c"], "removed": [], "failed": [],
        }  # fmt: skip
        assert list(server.weights()) == ["c", "a"]


def test_watching_uses_a_file_once_it_no_longer_changes(
    tmp_path: Path, serve: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(tmp_path, 1)
    with serve() as server:
        assert server.client.get("/v1/models").json()["watched"] is True
        good = path.read_bytes()
        save(tmp_path, 2)
        new = path.read_bytes()
        path.write_bytes(good)
        listings = 0
        reloads: list[int] = []
        reload: Callable[[], ReloadResult] = server.reloader.reload

        def count_reloads() -> ReloadResult:
            reloads.append(listings)
            return reload()

        def pause(_: float) -> None:  # before each listing of the folder
            nonlocal listings
            listings += 1
            parts = {2: new[:100], 3: new[:1000], 4: new}
            if listings in parts:
                path.write_bytes(parts[listings])

        monkeypatch.setattr(server.reloader, "reload", count_reloads)
        monkeypatch.setattr(model_reload, "time", SimpleNamespace(sleep=pause))
        server.reloader.watch(0.01, lambda: listings == 8)
        assert reloads == [5]  # the first listing that equals the one before
        assert server.weights() == {"it": server.digest()}


def test_watching_tries_again_once_a_replaced_model_has_freed_its_memory(
    tmp_path: Path, serve: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 1)
    with serve() as server:
        engine = server.app_state.models["it"].engine
        monkeypatch.setattr(server.app_state.registry, "_budget", int(2.5 * engine.memory))
        failed = 'scanline_model_changes_total{change="failed"}'
        ended = threading.Event()
        watching = threading.Thread(target=server.reloader.watch, args=(0.01, ended.is_set))
        watching.start()
        try:
            server.gate.clear()
            server.client.post("/v1/samples", json={}, headers={"Prefer": "respond-async"})
            until(lambda: engine.slots_in_use)
            save(tmp_path, 2)
            until(lambda: server.weights() == {"it": server.digest()})
            save(tmp_path, 3)
            until(lambda: metric_value(server.client, failed) == 1)
            assert server.weights() != {"it": server.digest()}
            server.gate.set()
            until(lambda: server.weights() == {"it": server.digest()})
            assert metric_value(server.client, failed) == 1  # not tried in vain meanwhile
        finally:
            ended.set()
            watching.join()


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


def test_reload_of_a_cluster_is_refused(tmp_path: Path, serve: Callable[..., Any]) -> None:
    save(tmp_path, 1)
    with serve() as server:
        server.app_state.reloader = None
        check_error(server.client.post("/v1/models/reload"), 409, "not_reloadable")
        assert server.client.get("/v1/models").json()["watched"] is False
        check_error(server.client.post("/v1/models/reload?x=1"), 400)


def test_start_without_models_fails(tmp_path: Path) -> None:
    for models in ("", "x"):
        with pytest.raises(CheckpointError), reloading_server(tmp_path, models=models):
            pass
