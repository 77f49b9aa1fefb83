"""Servers in a process of their own."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx

SHIPPED_WEIGHTS = ("--models", "mnist")


def free_port() -> int:
    """Give a port of the loopback that nothing listens at just now."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def wait_ready(
    url: str,
    process: subprocess.Popen[bytes],
    said: Callable[[], str] = lambda: "",
) -> None:
    """Wait until a server answers that it is ready; fails, with what it said, where it does not."""
    deadline = time.monotonic() + 120
    while True:
        assert process.poll() is None, f"the server ended: {said()}"
        assert time.monotonic() < deadline, f"the server is not ready: {said()}"
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(f"{url}/readyz").status_code == 200:
                return
        time.sleep(0.05)


def memory(pid: int) -> float:
    """Give the memory now, in MB, of a process and of all that it began."""
    used, parents = dict[int, float](), dict[int, int]()
    for status in Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            said = dict(line.split(":", 1) for line in status.read_text().splitlines())
            used[int(said["Pid"])] = float(said.get("VmRSS", "0").split()[0]) / 1000
            parents[int(said["Pid"])] = int(said["PPid"])
    family = {pid}
    while more := {one for one, parent in parents.items() if parent in family} - family:
        family |= more
    return sum(used[one] for one in family)


@contextlib.contextmanager
def server_process(*options: str) -> Iterator[tuple[str, int]]:
    """Serve the shipped mnist, or as told, in a process of its own: its address and number."""
    port = free_port()
    command = [sys.executable, "-m", "scanline.service", "serve", "--port", str(port)]
    environment = os.environ | {"SCANLINE_LOG_LEVEL": "error"}
    with subprocess.Popen([*command, *(options or SHIPPED_WEIGHTS)], env=environment) as process:
        url = f"http://127.0.0.1:{port}"
        try:
            wait_ready(url, process)
            yield url, process.pid
        finally:
            process.send_signal(signal.SIGTERM)
