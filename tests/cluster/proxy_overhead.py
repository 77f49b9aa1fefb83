"""What a cluster's ways in cost: ``python -m tests.cluster.proxy_overhead``.

Serves the shipped ``mnist`` three times: by one process without a cluster, by a process before one
replica (``scanline serve --cluster``), and by Ray Serve's own proxy before the application and one
replica. Asks each for images in every form of a reply, several times in turn, and prints the median
images/s of each, and its share of the first's.
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
from tests.cluster.ray_service import LoadedModel
from tests.server_processes import server_process

CLIENTS, IMAGES, ROUNDS, REPEATS = 4, 16, 2, 3
WAYS = {"one process": None, "serve --cluster": "serve", "Ray Serve's proxy": "proxy"}


@contextlib.contextmanager
def serving(way: str | None) -> Iterator[int]:
    """Serve in one of the ways, and give the port."""
    if way is None:
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
        served = LoadedModel(
            Path(folder), way, **settings, max_waiting=1024, min_replicas=1, max_replicas=1,
            replica_cpus=2,
        )  # fmt: skip
        try:
            yield httpx.URL(served.url).port or 80
        finally:
            served.end()


def rate(port: int, accept: str, body: dict[str, Any]) -> float:
    """Have clients ask side by side, some times each, and give images a second."""

    def client(_: int) -> None:
        for _ in range(ROUNDS):
            send_request(port, accept, body | {"n": IMAGES})

    began = time.perf_counter()
    with ThreadPoolExecutor(CLIENTS) as pool:
        list(pool.map(client, range(CLIENTS)))
    return CLIENTS * IMAGES * ROUNDS / (time.perf_counter() - began)


def main() -> None:
    """Measure every form in every way."""
    rates: dict[str, dict[str, float]] = {}
    for name, way in WAYS.items():
        with serving(way) as port:
            seen: dict[str, list[float]] = {form: [] for form in REPLY_FORMATS}
            for _ in range(REPEATS + 1):  # the first is to warm it
                for form, (accept, body) in REPLY_FORMATS.items():
                    seen[form].append(rate(port, accept, body))
            rates[name] = {form: statistics.median(each[1:]) for form, each in seen.items()}
    print(f"mnist, {cpu()[0]}, {usable_cores()} cores; images/s, and the share of one process")
    print(f"| form | {' | '.join(WAYS)} |\n|---|{'---|' * len(WAYS)}")
    for form in REPLY_FORMATS:
        first, *others = (rates[name][form] for name in WAYS)
        cells = [f"{first:.1f}", *(f"{one:.1f} ({one / first:.0%})" for one in others)]
        print(f"| {form} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
