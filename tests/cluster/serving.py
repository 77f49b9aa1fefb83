"""The whole service over a Ray cluster of its own, as processes, in both ways that there are."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import httpx
import numpy as np
import yaml
from numpy.typing import NDArray

from scanline.model.config import ModelConfig
from scanline.service.engine import Engine
from scanline.service.generation import Spec
from tests.cluster.fixtures import drawn
from tests.processes import free_port
from tests.service_fixtures import save_tiny

CONFIG = ModelConfig(height=16, width=16, n_layers=1, n_heads=2, d_model=8, d_ff=16)
SLOTS = 8
START_SECONDS = 280.0
SETTINGS: dict[str, Any] = {
    "backend": "reference", "slots": SLOTS, "max_waiting": 400, "min_replicas": 2,
    "max_replicas": 2, "replica_cpus": 0.25, "drain_seconds": 20,
}  # fmt: skip


@contextlib.contextmanager
def head() -> Iterator[str]:
    """Run a Ray cluster of this machine, and give its address."""
    folder, port = Path(tempfile.mkdtemp(prefix="r", dir="/tmp")), free_port()
    command = ["-m", "ray.scripts.scripts", "start", "--head", "--block", f"--port={port}",
               "--node-ip-address=127.0.0.1", "--num-cpus=2", "--include-dashboard=false",
               f"--object-store-memory={2**27}", f"--temp-dir={folder}"]  # fmt: skip
    clean = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    own = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_raylet_start_wait_time_s": "120",
           "RAY_AUTH_MODE": "disabled"}  # fmt: skip
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, *command], env=clean | own, stdout=log, stderr=log
        )
    try:
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(60)
        shutil.rmtree(folder, ignore_errors=True)


class Served:
    """A server as a process, its address, and what it says; ``way`` is ``serve`` or ``proxy``.

    ``serve`` is ``scanline serve --cluster``, in the cluster at ``address`` or one of its own, and
    ``proxy`` the application in a config file of Ray Serve, whose own proxy listens.
    """

    def __init__(self, folder: Path, way: str, address: str | None = None, **changes: Any) -> None:
        self.way = way
        save_tiny(folder, config=CONFIG)
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self._log = folder / "log"
        # A path of Ray's own must be short: its sockets are in it.
        self._ray = Path(tempfile.mkdtemp(prefix="r", dir="/tmp"))
        settings = SETTINGS | {"weights": str(folder)} | changes
        own = {
            "RAY_TMPDIR": str(self._ray), "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_raylet_start_wait_time_s": "120", "RAY_worker_niceness": "0",
        }  # fmt: skip
        if way == "serve":
            command = ["-m", "scanline.service", "serve", "--cluster", "--port", str(port)]
            own |= {f"SCANLINE_{name.upper()}": str(value) for name, value in settings.items()}
        else:
            command = ["-m", "ray.serve.scripts", "run", str(write_config(folder, port, settings))]
        clean = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
        own |= {"RAY_ADDRESS": address} if address else {}
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, *command], env=clean | own, stdout=log, stderr=log
            )
        try:
            self.wait_ready(settings["min_replicas"])
        except BaseException:
            self.end()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """End the process, in whatever state it is, and all that it began."""
        self.process.terminate()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self._ray, ignore_errors=True)

    def wait_ready(self, replicas: int) -> None:
        """Wait until so many replicas report."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            assert self.process.poll() is None, self.log()
            assert time.monotonic() < deadline, f"not ready: {self.log()}"
            try:
                if len(self.by_replica("scanline_slots")) == replicas:
                    break
            except httpx.TransportError:
                pass
            time.sleep(0.2)
        assert httpx.get(f"{self.url}/readyz", timeout=60).text == "ready\n"

    def wait_idle(self) -> None:
        """Wait until no replica draws anything, and all of them have told so."""
        deadline = time.monotonic() + 120
        before = None
        # A report tells of the second before it, and may be another second old.
        while any(self.by_replica("scanline_slots_in_use").values()) or before != (
            before := self.by_replica("scanline_pixels_total")
        ):
            assert time.monotonic() < deadline, "replicas still draw what nobody wants"
            time.sleep(2.5)

    def wait_drawn(self, before: dict[str, float], pixels: int) -> list[float]:
        """Wait until the replicas report so many pixels since then, and give the share of each."""
        deadline = time.monotonic() + 60
        while True:
            after = self.by_replica("scanline_pixels_total")
            shares = [count - before.get(replica, 0) for replica, count in after.items()]
            if sum(shares) >= pixels:
                assert sum(shares) == pixels
                return shares
            assert time.monotonic() < deadline, f"{sum(shares)} of {pixels} pixels are reported"
            time.sleep(0.2)

    def by_replica(self, metric: str) -> dict[str, float]:
        """Read a metric of one model off a scrape, by replica."""
        scraped = httpx.get(f"{self.url}/metrics", timeout=60).text
        found = re.findall(rf'^{metric}{{.*replica="([^"]+)".*}} (\S+)$', scraped, re.M)
        return {replica: float(value) for replica, value in found}

    def pids(self) -> list[int]:
        """Give the processes of the replicas, all of this server's own."""
        own, found = f"RAY_TMPDIR={self._ray}".encode(), []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it has ended meanwhile
                name = (process / "cmdline").read_bytes()
                ours = own in (process / "environ").read_bytes().split(b"\0")
                if ours and name.startswith(b"ray::ServeReplica") and b":tiny" in name:
                    found.append(int(process.name))
        return found

    def log(self) -> str:
        """Give all that the server wrote, wherever Ray keeps it."""
        kept = self._ray.glob("**/logs/**/*")
        texts = [one.read_text(errors="replace") for one in kept if one.is_file()]
        return "\n".join([self._log.read_text(), *texts])


def write_config(folder: Path, port: int, settings: dict[str, Any]) -> Path:
    """Write the project's config file of Ray Serve, with a port and settings of a test."""
    from scanline.service import cluster

    config = yaml.safe_load((Path(cluster.__file__).parent / "serve.yaml").read_text())
    config["http_options"]["port"] = port
    (application,) = config["applications"]
    application["args"] = settings
    path = folder / "serve.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def expected(alone: Engine, spec: Spec) -> dict[int, NDArray[np.uint8]]:
    """Give the images of a generation as one engine draws them, by index."""
    generation = drawn(alone, spec)
    return {image.index: image.read(0, CONFIG.pixels) for image in generation.images}
