"""Models that are added, replaced and removed while the server runs."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scanline.model.checkpoint import CheckpointError, save_checkpoint
from scanline.service.state import reload as model_reload
from scanline.service.state.reload import ReloadResult
from tests.service.fixtures import (
    COLOUR,
    check_error,
    metric_value,
    reloading_server,
    tiny_model,
    until,
)
from tests.service.state.fixtures import save


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
