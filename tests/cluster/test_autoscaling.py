"""Replicas that come and go with the load, under Ray."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import httpx
import pytest

from scanline.service.engine.engine import Engine
from scanline.service.engine.generation import GenerationSpec
from tests.cluster.ray_service import SLOTS, LoadedModel, expected

pytest.importorskip("ray.serve", reason="Ray is not installed: pip install -e '.[cluster]'")
# Processes by the dozen begin.
pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.broad, pytest.mark.timeout(900)]


async def ask(client: httpx.AsyncClient, seed: int) -> httpx.Response:
    return await client.post("/v1/samples", json={"n": 8, "seed": seed, "output": "values"})


async def load_until(served: LoadedModel, clients: int, replicas: int) -> dict[int, httpx.Response]:
    """Ask again and again until there are so many replicas, and give every reply by its seed."""
    replies: dict[int, httpx.Response] = {}
    seeds = iter(range(0, 10**9, 8))
    deadline = time.monotonic() + 400

    async def go_on() -> None:
        while len(await asyncio.to_thread(served.by_replica, "scanline_slots")) != replicas:
            assert time.monotonic() < deadline, f"not {replicas} replicas: {served.log()[-2000:]}"
            seed = next(seeds)
            replies[seed] = await ask(client, seed)

    async with httpx.AsyncClient(base_url=served.url, timeout=300) as client:
        await asyncio.gather(*(go_on() for _ in range(clients)))
    return replies


def test_replicas_follow_the_load_and_nothing_is_lost(tmp_path: Path, alone: Engine) -> None:
    with LoadedModel(
        tmp_path, "serve", min_replicas=1, max_replicas=2, replica_images=SLOTS,
        scale_up_seconds=1, scale_down_seconds=4,
    ) as here:  # fmt: skip
        rising = asyncio.run(load_until(here, clients=8, replicas=2))
        falling = asyncio.run(load_until(here, clients=1, replicas=1))
    replies = [*rising.items(), *falling.items()]
    assert {reply.status_code for _, reply in replies} <= {200, 429}
    drawn_ones = {seed: reply.json()["images"] for seed, reply in replies if reply.is_success}
    assert len(drawn_ones) >= 8  # one of each client at least
    for seed in [*drawn_ones][:3] + [*drawn_ones][-3:]:
        right = expected(alone, GenerationSpec(n=8, seed=seed))
        for image in drawn_ones[seed]:
            assert image["values"] == right[image["index"]].ravel().tolist()
    for _, reply in replies:
        assert reply.is_success or int(reply.headers["retry-after"]) > 0
