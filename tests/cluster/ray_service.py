"""Processes of a Ray cluster and of the service, in both modes of deployment."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self
from uuid import uuid4

import httpx
import numpy as np
import yaml
from numpy.typing import NDArray

from scanline.model.config import ModelConfig
from scanline.service.engine.engine import Engine
from scanline.service.engine.generation import GenerationSpec
from tests.server_processes import free_port
from tests.service.distributed.fixtures import drawn
from tests.service.fixtures import save_tiny, until

CONFIG = ModelConfig(height=16, width=16, n_layers=1, n_heads=2, d_model=8, d_ff=16)
SLOTS = 8
START_SECONDS = 280.0
SETTINGS: dict[str, Any] = {
    "backend": "reference", "slots": SLOTS, "max_waiting": 400, "min_replicas": 2,
    "max_replicas": 2, "replica_cpus": 0.25, "drain_seconds": 20,
}  # fmt: skip


@contextlib.contextmanager
def head_node(cpus: int = 2) -> Iterator[str]:
    """Run the head node of a Ray cluster, and yield its address."""
    folder, port = _make_ray_folder(), free_port()
    process = _start(
        cpus, "--head", f"--port={port}", "--include-dashboard=false", f"--temp-dir={folder}"
    )
    try:
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(60)
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def worker_node(address: str, cpus: int, **variables: str) -> Iterator[Callable[[], None]]:
    """Run a worker node, and yield a function that kills it like a power failure.

    Args:
        address: Address of the cluster.
        cpus: The node's CPUs.
        variables: Environment variables of the node and its replicas.
    """
    mark = f"TEST_MACHINE={uuid4()}"

    def lose() -> None:
        for one in processes_with(mark):
            with contextlib.suppress(OSError):  # it may have ended meanwhile
                os.kill(one, signal.SIGKILL)

    with tempfile.NamedTemporaryFile() as log:
        process = _start(
            cpus, f"--address={address}", mark=mark, output=log.fileno(), variables=variables
        )
        try:
            # If two start at once on one machine, one hangs.
            started = "Ray runtime started"
            until(lambda: started in Path(log.name).read_text(), "the worker node")
            yield lose
        finally:
            lose()
            process.wait(60)


def _start(
    cpus: int,
    *options: str,
    mark: str = "",
    output: int = subprocess.DEVNULL,
    variables: Mapping[str, str] = MappingProxyType({}),
) -> subprocess.Popen[bytes]:
    command = ["-m", "ray.scripts.scripts", "start", "--block", "--node-ip-address=127.0.0.1",
               f"--num-cpus={cpus}", f"--object-store-memory={2**27}", *options]  # fmt: skip
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    environment |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_raylet_start_wait_time_s": "120",
                    "RAY_AUTH_MODE": "disabled"}  # fmt: skip
    environment |= variables
    if mark:
        name, _, value = mark.partition("=")
        environment[name] = value
    return subprocess.Popen(
        [sys.executable, *command], env=environment, stdout=output, stderr=output
    )


def _make_ray_folder() -> Path:
    """Create a folder with a short path for Ray, because it has Unix sockets there."""
    return Path(tempfile.mkdtemp(prefix="r", dir="/tmp"))


def processes_with(variable: str) -> Iterator[int]:
    """Return the processes that have ``NAME=value`` in their environment."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it may have ended meanwhile
            if variable.encode() in (process / "environ").read_bytes().split(b"\0"):
                yield int(process.name)


class ClusterServer:
    """A server process.

    Args:
        folder: Folder for weights, logs and config.
        way: ``serve`` for ``scanline serve --cluster``, or ``proxy`` for the application in a Ray
            Serve config, whose own proxy listens.
        address: Address of an existing cluster, or None to start one.
        replicas: Number of replicas of all models to wait for; by default the minimum of one model.
        changes: Settings that differ from the defaults here.
    """

    def __init__(
        self,
        folder: Path,
        way: str,
        address: str | None = None,
        replicas: int | None = None,
        **changes: Any,
    ) -> None:
        self.way = way
        save_tiny(folder, config=CONFIG)
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self._log = folder / "log"
        self._ray = _make_ray_folder()
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
            self.wait_ready(settings["min_replicas"] if replicas is None else replicas)
        except BaseException:
            self.end()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Kill the process and everything that it started."""
        self.process.terminate()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self._ray, ignore_errors=True)

    def wait_ready(self, replicas: int) -> None:
        """Wait until the expected number of replicas report, and every model has one."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            assert self.process.poll() is None, self.log()
            assert time.monotonic() < deadline, f"not ready: {self.log()}"
            try:
                found = len(self.metric_by_replica("scanline_slots"))
                if found == replicas and httpx.get(f"{self.url}/readyz", timeout=60).is_success:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.2)

    def wait_idle(self) -> None:
        """Wait until all replicas report that they are idle."""
        deadline = time.monotonic() + 120
        before = None
        # A report covers the second before it, and may be one second old.
        while any(self.metric_by_replica("scanline_slots_in_use").values()) or before != (
            before := self.metric_by_replica("scanline_pixels_total")
        ):
            assert time.monotonic() < deadline, "replicas still draw what nobody wants"
            time.sleep(2.5)

    def wait_drawn(self, before: dict[str, float], pixels: int) -> list[float]:
        """Wait until the replicas have drawn that many pixels, and return each one's pixels."""
        deadline = time.monotonic() + 60
        while True:
            after = self.metric_by_replica("scanline_pixels_total")
            shares = [count - before.get(replica, 0) for replica, count in after.items()]
            if sum(shares) >= pixels:
                assert sum(shares) == pixels
                return shares
            assert time.monotonic() < deadline, f"{sum(shares)} of {pixels} pixels are reported"
            time.sleep(0.2)

    def metric_by_replica(self, metric: str) -> dict[str, float]:
        """Read a model's metric, by replica."""
        scraped = httpx.get(f"{self.url}/metrics", timeout=60).text
        found = re.findall(rf'^{metric}{{.*replica="([^"]+)".*}} (\S+)$', scraped, re.M)
        return {replica: float(value) for replica, value in found}

    def pids(self) -> list[int]:
        """Return the process ids of this server's replicas."""
        return replicas_with(f"RAY_TMPDIR={self._ray}")

    def log(self) -> str:
        """Return all logs of the server, including Ray's."""
        kept = self._ray.glob("**/logs/**/*")
        texts = [one.read_text(errors="replace") for one in kept if one.is_file()]
        return "\n".join([self._log.read_text(), *texts])


def replicas_with(variable: str) -> list[int]:
    """Return the replicas that have ``NAME=value`` in their environment."""
    found = []
    for process in processes_with(variable):
        with contextlib.suppress(OSError):  # it may have ended meanwhile
            name = Path(f"/proc/{process}/cmdline").read_bytes()
            if name.startswith(b"ray::ServeReplica") and b":tiny" in name:
                found.append(process)
    return found


def write_config(folder: Path, port: int, settings: dict[str, Any]) -> Path:
    """Write the project's Ray Serve config with a test's port and settings."""
    from scanline.service import distributed

    config = yaml.safe_load((Path(distributed.__file__).parent / "serve.yaml").read_text())
    config["http_options"]["port"] = port
    (application,) = config["applications"]
    application["args"] = settings
    path = folder / "serve.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def expected(local_engine: Engine, spec: GenerationSpec) -> dict[int, NDArray[np.uint8]]:
    """Return a generation's images as a local engine draws them, by index."""
    generation = drawn(local_engine, spec)
    return {image.index: image.read(0, CONFIG.pixels) for image in generation.images}
