"""The service over a Ray cluster: replicas in processes of their own, killed, counted, drained."""

from __future__ import annotations

import asyncio
import base64
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import httpx
import numpy as np
import pytest

from scanline.service.distributed.heartbeats import LOST_SECONDS
from scanline.service.engine.engine import Engine
from scanline.service.engine.generation import GenerationSpec
from tests.cluster.ray_service import CONFIG, SLOTS, LoadedModel, expected, head, machine
from tests.service.fixtures import check_error, decode_png, encode, random_picture, save_tiny, until
from tests.sse_client import parse_sse, rebuild

pytest.importorskip("ray.serve", reason="Ray is not installed: pip install -e '.[cluster]'")
# Processes by the dozen begin.
pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(900)]

STREAMS = 18  # of two images: twice as many as there are slots
BOTH_DRAW = 6  # streams at once: more than one replica has slots for


def test_a_process_of_its_own(tmp_path: Path, alone: Engine) -> None:
    """All in one test, for a cluster takes half a minute to begin."""
    with LoadedModel(tmp_path, "serve") as served:
        check_it_is_the_same_service(served, alone)
        check_a_full_queue_is_told_in_the_services_own_words(served)
        check_a_killed_replica_is_missed_by_no_stream(served, alone)
        check_a_large_request_is_spread_over_all_replicas(served, alone)
        check_a_silent_replica_stops_no_other(served)
        check_sigterm_lets_a_stream_finish(served, alone)


@pytest.mark.broad
def test_an_application_of_ray_serve(tmp_path: Path, alone: Engine) -> None:
    """What its proxy may change; Ray's own command ends at SIGTERM, and its cluster with it."""
    with LoadedModel(tmp_path, "proxy") as served:
        check_it_is_the_same_service(served, alone)
        check_a_full_queue_is_told_in_the_services_own_words(served)
        check_a_killed_replica_is_missed_by_no_stream(served, alone)


@pytest.mark.broad
def test_an_entrance_goes_on_with_the_replicas_that_another_left(tmp_path: Path) -> None:
    """And with none that run something else; one that is killed leaves nothing to be drawn."""
    with head() as address:
        with LoadedModel(tmp_path, "serve", address=address) as first:
            before = {*first.by_replica("scanline_slots")}
            ask = {"n": 400, "stream": True}
            with (
                httpx.Client(base_url=first.url, timeout=60) as client,
                client.stream("POST", "/v1/samples", json=ask) as stream,
            ):
                read = stream.iter_raw()
                next(read)
                first.process.kill()
        with LoadedModel(tmp_path, "serve", address=address) as second:
            assert {*second.by_replica("scanline_slots")} == before
            assert "its replicas are there, and go on" in second.log()
            second.wait_idle()
            reply = httpx.post(f"{second.url}/v1/samples", json={"n": 3}, timeout=60)
            assert len(reply.json()["images"]) == 3
        with LoadedModel(tmp_path, "serve", address=address, slots=SLOTS // 2) as third:
            assert not {*third.by_replica("scanline_slots")} & before


@pytest.mark.broad
def test_a_lost_machine_takes_no_model_with_it(tmp_path: Path) -> None:
    """And a frontend begun meanwhile serves with what is left; a machine that comes is used."""
    save_tiny(tmp_path, "other", config=CONFIG)
    each = {"replica_cpus": 1, "max_replicas_per_node": 1}

    def check_both_draw(served: LoadedModel) -> None:
        for model in ("tiny", "other"):
            ask = {"model": model, "n": 3}
            reply = httpx.post(f"{served.url}/v1/samples", json=ask, timeout=60)
            assert len(reply.json()["images"]) == 3

    with head(cpus=0) as address, machine(address, 2), machine(address, 2) as lose:
        with LoadedModel(tmp_path, "serve", address, replicas=4, **each) as first:
            before = {*first.by_replica("scanline_slots")}
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
                until(lambda: sum(first.by_replica("scanline_slots_in_use").values()) > 0)
                lose()
                assert len(asked.result().json()["images"]) == 40
            first.wait_ready(2)
            check_both_draw(first)
        with LoadedModel(tmp_path, "serve", address, replicas=2, **each) as second:
            assert {*second.by_replica("scanline_slots")} < before
            check_both_draw(second)
            with machine(address, 2):
                second.wait_ready(4)


def check_stream(raw: bytes, alone: Engine, spec: GenerationSpec) -> None:
    """Check that a stream is whole, each pixel sent once, and every byte as drawn alone."""
    events = parse_sse(raw)
    assert (events[0].name, events[-1].name) == ("started", "completed")
    pixels = rebuild(events, CONFIG)
    pngs = {e.data["index"]: base64.b64decode(e.data["png"]) for e in events if e.name == "image"}
    right = expected(alone, spec)
    assert pixels.keys() == pngs.keys() == right.keys()
    for index, picture in right.items():
        np.testing.assert_array_equal(pixels[index], picture)
        np.testing.assert_array_equal(decode_png(pngs[index], CONFIG), picture)


def check_it_is_the_same_service(served: LoadedModel, alone: Engine) -> None:
    with httpx.Client(base_url=served.url, timeout=120) as client:
        (model,) = client.get("/v1/models").json()["data"]
        assert (model["backend"], model["slots"]) == ("reference", 2 * SLOTS)
        sent = client.post(
            "/v1/samples", json={"n": 5, "seed": 7}, headers={"X-Request-ID": "mine"}
        )
        assert sent.headers.get_list("x-request-id") == ["mine"]
        reply = sent.json()
        right = expected(alone, GenerationSpec(n=5, seed=7))
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
        right = expected(alone, GenerationSpec(n=2, seed=3, canvas=values, known=known))
        for image in sent["images"]:
            assert image["values"] == right[image["index"]].ravel().tolist()
        (score,) = client.post("/v1/score", files={"image": picture}).json()["data"]
        assert score["bits_per_dim"] > 0
        reply = client.post("/v1/samples", json={"n": 401})
        check_error(reply, 400, "too_many")


def check_a_full_queue_is_told_in_the_services_own_words(served: LoadedModel) -> None:
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
                assert cancelled["status"] == "finished"
        served.wait_idle()


async def stream(client: httpx.AsyncClient, number: int, drawing: set[int]) -> bytes:
    """Read one stream to its end; it is among those ``drawing`` while there are pixels to come."""
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


async def streams_with_a_death(served: LoadedModel) -> list[bytes]:
    """Ask for many streams, and kill a replica while both draw."""
    drawing = set[int]()
    async with httpx.AsyncClient(base_url=served.url, timeout=300) as client:
        asking = [asyncio.create_task(stream(client, j, drawing)) for j in range(STREAMS)]
        victim = served.pids()[0]
        while len(drawing) < BOTH_DRAW:
            assert not all(task.done() for task in asking)
            await asyncio.sleep(0.001)
        os.kill(victim, signal.SIGKILL)
        return await asyncio.gather(*asking)


def check_a_killed_replica_is_missed_by_no_stream(served: LoadedModel, alone: Engine) -> None:
    received = asyncio.run(streams_with_a_death(served))
    assert "drawn again" in served.log()
    for number, raw in enumerate(received):
        check_stream(raw, alone, GenerationSpec(n=2, seed=1000 * number))
    served.wait_ready(2)  # Ray has begun another


def check_a_large_request_is_spread_over_all_replicas(served: LoadedModel, alone: Engine) -> None:
    served.wait_idle()
    before = served.by_replica("scanline_pixels_total")
    with httpx.Client(base_url=served.url, timeout=300) as client:
        headers = {"Accept": "application/x-npy"}
        reply = client.post("/v1/samples", json={"n": 32, "seed": 0}, headers=headers)
    assert reply.status_code == 200
    shares = served.wait_drawn(before, 32 * CONFIG.pixels)
    assert len(shares) == 2
    assert min(shares) >= SLOTS * CONFIG.pixels  # the faster one is given more, but not at first
    first = expected(alone, GenerationSpec(n=1, seed=0))[0]
    assert reply.content.index(first.tobytes()) > 0


def check_a_silent_replica_stops_no_other(served: LoadedModel) -> None:
    with httpx.Client(base_url=served.url, timeout=300) as client, ThreadPoolExecutor(4) as pool:
        silent = served.pids()[0]
        os.kill(silent, signal.SIGSTOP)
        try:
            time.sleep(LOST_SECONDS + 3)  # and the last report is old
            assert client.get("/readyz").status_code == 200
            asked = []
            for seed in range(4):
                asked.append(pool.submit(client.post, "/v1/samples", json={"n": 1, "seed": seed}))
                wait(asked[-1:], timeout=5)  # it may have been the silent one's, as no other is
            until(lambda: sum(one.done() for one in asked) >= 3, "three of four")
        finally:
            os.kill(silent, signal.SIGCONT)
        assert [one.result().status_code for one in asked] == [200] * 4


def check_sigterm_lets_a_stream_finish(served: LoadedModel, alone: Engine) -> None:
    body = {"n": 4, "seed": 5, "stream": True}
    with httpx.stream("POST", f"{served.url}/v1/samples", json=body, timeout=120) as reply:
        chunks = reply.iter_raw()
        raw = next(chunks)
        served.process.send_signal(signal.SIGTERM)
        raw += b"".join(chunks)
    check_stream(raw, alone, GenerationSpec(n=4, seed=5))
    assert served.process.wait(60) == 0
