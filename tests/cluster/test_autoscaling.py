"""Autoscaling of replicas on a real Ray cluster."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import httpx
import pytest

from scanline.service.engine.engine import Engine
from scanline.service.engine.generation import GenerationSpec
from tests.cluster.ray_service import SLOTS, ClusterServer, expected

pytest.importorskip("ray.serve", reason="Ray is not installed: pip install -e '.[cluster]'")
# These tests start dozens of processes.
pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.broad, pytest.mark.timeout(900)]


async def ask(client: httpx.AsyncClient, seed: int) -> httpx.Response:
    return await client.post("/v1/samples", json={"n": 8, "seed": seed, "output": "values"})


async def load_until(
    served: ClusterServer, clients: int, replicas: int
) -> dict[int, httpx.Response]:
    """Send requests until there are ``replicas`` replicas, and return all replies by seed."""
    replies: dict[int, httpx.Response] = {}
    seeds = iter(range(0, 10**9, 8))
    deadline = time.monotonic() + 400

    async def send_requests() -> None:
        while len(await asyncio.to_thread(served.metric_by_replica, "scanline_slots")) != replicas:
            assert time.monotonic() < deadline, f"not {replicas} replicas: {served.log()[-2000:]}"
            seed = next(seeds)
            replies[seed] = await ask(client, seed)

    async with httpx.AsyncClient(base_url=served.url, timeout=300) as client:
        await asyncio.gather(*(send_requests() for _ in range(clients)))
    return replies


def test_replicas_follow_the_load_without_lost_requests(
    tmp_path: Path, local_engine: Engine
) -> None:
    with ClusterServer(
        tmp_path, "serve", min_replicas=1, max_replicas=2, replica_images=SLOTS,
        scale_up_seconds=1, scale_down_seconds=4,
    ) as here:  # fmt: skip
        rising = asyncio.run(load_until(here, clients=8, replicas=2))
        falling = asyncio.run(load_until(here, clients=1, replicas=1))
    replies = [*rising.items(), *falling.items()]
    assert {reply.status_code for _, reply in replies} <= {200, 429}
    drawn_ones = {seed: reply.json()["images"] for seed, reply in replies if reply.is_success}
    assert len(drawn_ones) >= 8  # at least one per client
    for seed in [*drawn_ones][:3] + [*drawn_ones][-3:]:
        right = expected(local_engine, GenerationSpec(n=8, seed=seed))
        for image in drawn_ones[seed]:
            assert image["values"] == right[image["index"]].ravel().tolist()
    for _, reply in replies:
        assert reply.is_success or int(reply.headers["retry-after"]) > 0
