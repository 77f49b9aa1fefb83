"""The service on a real Ray cluster: failover, draining and reuse of replicas."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np
import pytest

from scanline.kernels.native.cpu import cpu_isas
from scanline.model.checkpoint import load_checkpoint
from scanline.model.decoders.native import ARITHMETIC
from scanline.service.distributed.heartbeats import LOST_SECONDS
from scanline.service.engine.engine import Engine
from scanline.service.engine.generation import GenerationSpec
from scanline.service.state.registry import open_engine
from tests.cluster.ray_service import (
    CONFIG,
    SLOTS,
    ClusterServer,
    expected,
    head_node,
    replicas_with,
    worker_node,
)
from tests.service.fixtures import (
    check_error,
    decode_png,
    encode,
    random_picture,
    save_tiny,
    settings,
    until,
)
from tests.sse_client import parse_sse, rebuild

pytest.importorskip("ray.serve", reason="Ray is not installed: pip install -e '.[cluster]'")
# These tests start dozens of processes.
pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(900)]

STREAMS = 18  # with two images each: twice as many as there are slots
BOTH_DRAW = 6  # simultaneous streams: more than one replica has slots for


def test_serve_with_a_cluster_of_its_own(tmp_path: Path, local_engine: Engine) -> None:
    """One test for all checks, because a cluster takes half a minute to start."""
    with ClusterServer(tmp_path, "serve") as served:
        check_endpoints(served, local_engine)
        check_full_queue_error(served)
        check_streams_survive_a_killed_replica(served, local_engine)
        check_a_large_request_uses_all_replicas(served, local_engine)
        check_a_silent_replica_does_not_stop_others(served)
        check_sigterm_lets_a_stream_finish(served, local_engine)


@pytest.mark.broad
def test_ray_serve_application(tmp_path: Path, local_engine: Engine) -> None:
    """Only what Ray Serve's proxy may change; at SIGTERM Ray's command ends with its cluster."""
    with ClusterServer(tmp_path, "proxy") as served:
        check_endpoints(served, local_engine)
        check_full_queue_error(served)
        check_streams_survive_a_killed_replica(served, local_engine)


@pytest.mark.broad
def test_a_frontend_reuses_replicas_of_an_earlier_one(tmp_path: Path) -> None:
    """It does not reuse replicas of another program, and no work of the killed one continues."""
    with head_node() as address:
        with ClusterServer(tmp_path, "serve", address=address) as first:
            before = {*first.metric_by_replica("scanline_slots")}
            ask = {"n": 400, "stream": True}
            with (
                httpx.Client(base_url=first.url, timeout=60) as client,
                client.stream("POST", "/v1/samples", json=ask) as stream,
            ):
                read = stream.iter_raw()
                next(read)
                first.process.kill()
        with ClusterServer(tmp_path, "serve", address=address) as second:
            assert {*second.metric_by_replica("scanline_slots")} == before
            assert "using the replicas that already run" in second.log()
            second.wait_idle()
            reply = httpx.post(f"{second.url}/v1/samples", json={"n": 3}, timeout=60)
            assert len(reply.json()["images"]) == 3
        with ClusterServer(tmp_path, "serve", address=address, slots=SLOTS // 2) as third:
            assert not {*third.metric_by_replica("scanline_slots")} & before


@pytest.mark.broad
def test_models_survive_a_lost_worker_node(tmp_path: Path) -> None:
    """A frontend started meanwhile uses the remaining nodes, and a new node is used too."""
    save_tiny(tmp_path, "other", config=CONFIG)
    each = {"replica_cpus": 1, "max_replicas_per_node": 1}

    def check_both_models(served: ClusterServer) -> None:
        for model in ("tiny", "other"):
            ask = {"model": model, "n": 3}
            reply = httpx.post(f"{served.url}/v1/samples", json=ask, timeout=60)
            assert len(reply.json()["images"]) == 3

    with head_node(cpus=0) as address, worker_node(address, 2), worker_node(address, 2) as lose:
        with ClusterServer(tmp_path, "serve", address, replicas=4, **each) as first:
            before = {*first.metric_by_replica("scanline_slots")}
            assert sorted(name.split("-")[0] for name in before) == [
                "other",
                "other",
                "tiny",
                "tiny",
            ]
            body = {"n": 40, "seed": 5}
            with (
                httpx.Client(base_url=first.url, timeout=120) as client,
                ThreadPoolExecutor() as threads,
            ):
                asked = threads.submit(client.post, "/v1/samples", json=body)
                until(lambda: sum(first.metric_by_replica("scanline_slots_in_use").values()) > 0)
                lose()
                assert len(asked.result().json()["images"]) == 40
            first.wait_ready(2)
            check_both_models(first)
        with ClusterServer(tmp_path, "serve", address, replicas=2, **each) as second:
            assert {*second.metric_by_replica("scanline_slots")} < before
            check_both_models(second)
            with worker_node(address, 2):
                second.wait_ready(4)


@pytest.mark.broad
@pytest.mark.skipif("avx2" not in cpu_isas()[1:], reason="this CPU has no ISA besides AVX2")
def test_replicas_on_different_isas_draw_the_same_streams(tmp_path: Path) -> None:
    """Each of two replicas is killed in turn, and the other continues its images."""
    isas = (cpu_isas()[0], "avx2")
    larger = replace(CONFIG, n_layers=4, d_model=128, d_ff=256)  # so that streams last a while
    path = save_tiny(tmp_path / "larger", config=larger)
    local_engine = open_engine(load_checkpoint(path), settings(backend="native", threads=1))
    with head_node(cpus=0) as address, contextlib.ExitStack() as nodes:
        for isa in isas:
            nodes.enter_context(worker_node(address, 1, SCANLINE_ISA=isa))
        with ClusterServer(
            tmp_path, "serve", address, weights=str(path.parent), backend="native",
            replica_cpus=1, max_replicas_per_node=1,
        ) as served:  # fmt: skip
            (model,) = httpx.get(f"{served.url}/v1/models", timeout=60).json()["data"]
            assert (model["backend"], model["arithmetic"]) == ("native", ARITHMETIC)
            for isa in isas:
                (victim,) = replicas_with(f"SCANLINE_ISA={isa}")
                received = asyncio.run(streams_with_a_killed_replica(served, victim, 30))
                for number, raw in enumerate(received):
                    check_stream(raw, local_engine, GenerationSpec(n=2, seed=1000 * number))
                served.wait_ready(2)
            assert "drawn again" in served.log()
            assert "different variants" not in served.log()
    local_engine.close(0.0)


def check_stream(raw: bytes, local_engine: Engine, spec: GenerationSpec) -> None:
    """Check that a stream is complete, sends each pixel once, and has a local engine's bytes."""
    events = parse_sse(raw)
    assert (events[0].name, events[-1].name) == ("started", "completed")
    pixels = rebuild(events, CONFIG)
    pngs = {e.data["index"]: base64.b64decode(e.data["png"]) for e in events if e.name == "image"}
    right = expected(local_engine, spec)
    assert pixels.keys() == pngs.keys() == right.keys()
    for index, picture in right.items():
        np.testing.assert_array_equal(pixels[index], picture)
        np.testing.assert_array_equal(decode_png(pngs[index], CONFIG), picture)


def check_endpoints(served: ClusterServer, local_engine: Engine) -> None:
    with httpx.Client(base_url=served.url, timeout=120) as client:
        (model,) = client.get("/v1/models").json()["data"]
        assert (model["backend"], model["slots"]) == ("reference", 2 * SLOTS)
        sent = client.post(
            "/v1/samples", json={"n": 5, "seed": 7}, headers={"X-Request-ID": "mine"}
        )
        assert sent.headers.get_list("x-request-id") == ["mine"]
        reply = sent.json()
        right = expected(local_engine, GenerationSpec(n=5, seed=7))
        for image in reply["images"]:
            png = decode_png(base64.b64decode(image["png"]), CONFIG)
            np.testing.assert_array_equal(png, right[image["index"]])
        found = client.get(f"/v1/generations/{reply['id']}").json()
        assert found["images"] == reply["images"]
        picture = encode(random_picture(CONFIG))
        form = {"known_rows": "7", "n": "2", "seed": "3", "output": "values"}
        sent = client.post("/v1/completions", data=form, files={"image": picture}).json()
        values = np.asarray(random_picture(CONFIG)).reshape(-1, 1)
        known = np.arange(CONFIG.pixels) < 7 * CONFIG.width
        right = expected(local_engine, GenerationSpec(n=2, seed=3, canvas=values, known=known))
        for image in sent["images"]:
            assert image["values"] == right[image["index"]].ravel().tolist()
        (score,) = client.post("/v1/score", files={"image": picture}).json()["data"]
        assert score["bits_per_dim"] > 0
        reply = client.post("/v1/samples", json={"n": 401})
        check_error(reply, 400, "too_many")


def check_full_queue_error(served: ClusterServer) -> None:
    with httpx.Client(base_url=served.url, timeout=120) as client:
        begun = [
            client.post("/v1/samples", json={"n": 200}, headers={"Prefer": "respond-async"})
            for _ in range(4)
        ]
        refused = [reply for reply in begun if reply.status_code != 202]
        assert refused
        for reply in refused:
            check_error(reply, 429, "queue_full")
            assert int(reply.headers["retry-after"]) > 0
        for reply in begun:
            if reply.status_code == 202:
                cancelled = client.delete(reply.headers["location"]).json()
                assert cancelled["status"] == "cancelled"
        served.wait_idle()


async def stream(client: httpx.AsyncClient, number: int, drawing: set[int]) -> bytes:
    """Read one stream to its end; its number is in ``drawing`` while pixels arrive."""
    body = {"n": 2, "seed": 1000 * number, "stream": True}
    raw = b""
    async with client.stream("POST", "/v1/samples", json=body) as reply:
        async for chunk in reply.aiter_raw():
            raw += chunk
            if b"event: pixels" in raw and b"event: image" not in raw:
                drawing.add(number)
            else:
                drawing.discard(number)
    return raw


async def streams_with_a_killed_replica(
    served: ClusterServer, victim: int, streams: int = STREAMS
) -> list[bytes]:
    """Read many streams, and kill a replica while both draw."""
    drawing = set[int]()
    async with httpx.AsyncClient(base_url=served.url, timeout=300) as client:
        asking = [asyncio.create_task(stream(client, j, drawing)) for j in range(streams)]
        while len(drawing) < BOTH_DRAW:
            assert not all(task.done() for task in asking)
            await asyncio.sleep(0.001)
        os.kill(victim, signal.SIGKILL)
        return await asyncio.gather(*asking)


def check_streams_survive_a_killed_replica(served: ClusterServer, local_engine: Engine) -> None:
    received = asyncio.run(streams_with_a_killed_replica(served, served.pids()[0]))
    assert "drawn again" in served.log()
    for number, raw in enumerate(received):
        check_stream(raw, local_engine, GenerationSpec(n=2, seed=1000 * number))
    served.wait_ready(2)  # Ray has started another one


def check_a_large_request_uses_all_replicas(served: ClusterServer, local_engine: Engine) -> None:
    served.wait_idle()
    before = served.metric_by_replica("scanline_pixels_total")
    with httpx.Client(base_url=served.url, timeout=300) as client:
        headers = {"Accept": "application/x-npy"}
        reply = client.post("/v1/samples", json={"n": 32, "seed": 0}, headers=headers)
    assert reply.status_code == 200
    shares = served.wait_drawn(before, 32 * CONFIG.pixels)
    assert len(shares) == 2
    assert min(shares) >= SLOTS * CONFIG.pixels  # the faster one gets more, but not at first
    first = expected(local_engine, GenerationSpec(n=1, seed=0))[0]
    assert reply.content.index(first.tobytes()) > 0


def check_a_silent_replica_does_not_stop_others(served: ClusterServer) -> None:
    with httpx.Client(base_url=served.url, timeout=300) as client, ThreadPoolExecutor(4) as pool:
        silent = served.pids()[0]
        os.kill(silent, signal.SIGSTOP)
        try:
            time.sleep(LOST_SECONDS + 3)  # the last report is old then
            assert client.get("/readyz").status_code == 200
            asked = []
            for seed in range(4):
                asked.append(pool.submit(client.post, "/v1/samples", json={"n": 1, "seed": seed}))
                wait(asked[-1:], timeout=5)  # only one of them may be at the silent replica
            until(lambda: sum(one.done() for one in asked) >= 3, "three of four")
        finally:
            # Ray kills a replica that is silent for long.
            with contextlib.suppress(ProcessLookupError):
                os.kill(silent, signal.SIGCONT)
        assert [one.result().status_code for one in asked] == [200] * 4


def check_sigterm_lets_a_stream_finish(served: ClusterServer, local_engine: Engine) -> None:
    body = {"n": 4, "seed": 5, "stream": True}
    with httpx.stream("POST", f"{served.url}/v1/samples", json=body, timeout=120) as reply:
        chunks = reply.iter_raw()
        raw = next(chunks)
        served.process.send_signal(signal.SIGTERM)
        raw += b"".join(chunks)
    check_stream(raw, local_engine, GenerationSpec(n=4, seed=5))
    assert served.process.wait(60) == 0
