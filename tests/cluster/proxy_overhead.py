"""Benchmark of the cluster's HTTP frontends: ``python -m tests.cluster.proxy_overhead``.

Serves the shipped ``mnist`` in three modes: one process without a cluster, ``scanline serve
--cluster`` with one replica, and the Ray Serve application with one replica behind Ray Serve's
proxy. Requests images in every reply format from each, and prints the median images/s and the
ratio to the first mode.
"""

from __future__ import annotations

import contextlib
import statistics
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx

from scanline.kernels.native.cpu import cpu, usable_cores
from scanline.model.checkpoint import SHIPPED_WEIGHTS
from scanline.service.bench.http_clients import send_request
from scanline.service.bench.http_overhead import REPLY_FORMATS
from tests.cluster.ray_service import ClusterServer
from tests.server_processes import server_process

CLIENTS, IMAGES, ROUNDS, REPEATS = 4, 16, 2, 3
MODES = {"one process": None, "serve --cluster": "serve", "Ray Serve's proxy": "proxy"}


@contextlib.contextmanager
def serve(mode: str | None) -> Iterator[int]:
    """Serve in a mode, and yield the port."""
    if mode is None:
        with server_process() as (url, _):
            yield httpx.URL(url).port or 80
        return
    settings: dict[str, Any] = {
        "weights": str(SHIPPED_WEIGHTS),
        "models": "mnist",
        "backend": "native",
        "slots": 64,
    }
    with tempfile.TemporaryDirectory() as folder:
        served = ClusterServer(
            Path(folder), mode, **settings, max_waiting=1024, min_replicas=1, max_replicas=1,
            replica_cpus=2,
        )  # fmt: skip
        try:
            yield httpx.URL(served.url).port or 80
        finally:
            served.end()


def images_per_second(port: int, accept: str, body: dict[str, Any]) -> float:
    """Measure images/s of several simultaneous clients."""

    def client(_: int) -> None:
        for _ in range(ROUNDS):
            send_request(port, accept, body | {"n": IMAGES})

    began = time.perf_counter()
    with ThreadPoolExecutor(CLIENTS) as pool:
        list(pool.map(client, range(CLIENTS)))
    return CLIENTS * IMAGES * ROUNDS / (time.perf_counter() - began)


def main() -> None:
    """Measure every reply format in every mode."""
    rates: dict[str, dict[str, float]] = {}
    for name, mode in MODES.items():
        with serve(mode) as port:
            seen: dict[str, list[float]] = {form: [] for form in REPLY_FORMATS}
            for _ in range(REPEATS + 1):  # the first round warms up
                for form, (accept, body) in REPLY_FORMATS.items():
                    seen[form].append(images_per_second(port, accept, body))
            rates[name] = {form: statistics.median(each[1:]) for form, each in seen.items()}
    print(f"mnist, {cpu()[0]}, {usable_cores()} cores; images/s, and the share of one process")
    print(f"| form | {' | '.join(MODES)} |\n|---|{'---|' * len(MODES)}")
    for form in REPLY_FORMATS:
        first, *others = (rates[name][form] for name in MODES)
        cells = [f"{first:.1f}", *(f"{one:.1f} ({one / first:.0%})" for one in others)]
        print(f"| {form} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
