"""Tests of a server process's shutdown."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.server_processes import free_port
from tests.service.fixtures import check_error, until
from tests.service.server.server_process import COMMAND, environment, serving
from tests.sse_client import parse_sse


@pytest.mark.slow
def test_sigterm_finishes_running_images_and_exits_0(weights: Path, tmp_path: Path) -> None:
    with (
        serving(weights, tmp_path / "log", drain_seconds=60) as server,
        ThreadPoolExecutor(2) as pool,
        server.client.stream(
            "POST", "/v1/samples", json={"model": "slow", "n": 2, "seed": 7, "stream": True}
        ) as stream,
    ):
        body = {"model": "slow", "n": 1, "seed": 7}
        plain = pool.submit(server.client.post, "/v1/samples", json=body)
        until(lambda: server.gauge("scanline_running_images", "slow") == 3)
        with httpx.Client(base_url=server.url, timeout=60) as other:
            other.get("/livez")
            server.terminate()
            until(lambda: other.get("/readyz").status_code == 503, "draining")
            replies: list[httpx.Response] = []

            def refused() -> bool:
                replies.append(other.post("/v1/samples", json={"model": "tiny"}))
                return replies[-1].status_code != 200

            until(refused)
            check_error(replies[-1], 503, "closing")
            assert int(replies[-1].headers["retry-after"]) >= 1
            assert other.get("/livez").status_code == 200
        events = parse_sse(stream.read())
        assert events[-1].name == "completed"
        images = plain.result().json()["images"]
        assert images[0]["finish_reason"] == "length"
        same = [e.data for e in events if e.name == "image" and e.data["index"] == 0]
        assert same[0]["png"] == images[0]["png"]
        log = server.wait_for_exit()
    assert "SIGTERM: 3 images running, 0 waiting; finishing them within 60 s" in log
    assert "cut off" not in log


def test_sigterm_cancels_images_that_take_too_long_and_exits_0(
    weights: Path, tmp_path: Path
) -> None:
    with (
        serving(weights, tmp_path / "log", drain_seconds=0.3) as server,
        ThreadPoolExecutor(2) as pool,
        server.client.stream(
            "POST", "/v1/samples", json={"model": "slow", "n": 20, "stream": True}
        ) as stream,
    ):
        until(lambda: server.gauge("scanline_running_images", "slow") == 8)  # or refused
        plain = pool.submit(server.client.post, "/v1/samples", json={"model": "slow", "n": 20})
        until(lambda: server.gauge("scanline_waiting_images", "slow") == 32)
        server.terminate()
        events = parse_sse(stream.read())
        assert events[-1].name == "error"
        assert "shutting down" in events[-1].data["error"]["message"]
        assert events[-1].data["error"]["code"] == "closing"
        assert {e.data["finish_reason"] for e in events if e.name == "image"} == {"error"}
        check_error(plain.result(), 503, "closing")
        assert int(plain.result().headers["retry-after"]) >= 1
        log = server.wait_for_exit()
    assert "slow: stopped 40 unfinished images of 2 requests" in log


@pytest.mark.usefixtures("default_sighup")
def test_a_second_signal_cancels_running_images(weights: Path, tmp_path: Path) -> None:
    with (
        serving(weights, tmp_path / "log", drain_seconds=3600) as server,
        server.client.stream(
            "POST", "/v1/samples", json={"model": "slow", "n": 40, "stream": True}
        ) as stream,
    ):
        until(lambda: server.gauge("scanline_running_images", "slow") == 8)
        server.terminate(signal.SIGHUP)  # as a closing terminal does
        until(lambda: server.client.get("/readyz").status_code == 503)
        server.terminate()
        events = parse_sse(stream.read())
        assert events[-1].name == "error"
        assert events[-1].data["error"]["code"] == "closing"
        server.wait_for_exit()


def test_sigterm_ends_a_server_that_compiles(weights: Path, tmp_path: Path) -> None:
    """Otherwise a container would be killed after its grace period."""
    slow, log = tmp_path / "c++", tmp_path / "log"
    slow.write_text("#!/bin/sh\ntouch $0.began\nexec sleep 600\n")
    slow.chmod(0o755)
    port = free_port()
    given = {"backend": "native", "cache": tmp_path / "cache"}
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*COMMAND, "--port", str(port)],
            env=environment(weights, **given) | {"CXX": str(slow)},
            stderr=file, start_new_session=True,
        )  # fmt: skip
    try:
        until(Path(f"{slow}.began").exists)
        assert httpx.get(f"http://127.0.0.1:{port}/readyz", timeout=60).status_code == 503
        process.terminate()
        assert process.wait(60) == 0
        assert "ended while models were loading" in log.read_text()
        assert "Traceback" not in log.read_text()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # including the compiler
        process.wait()
