"""Server processes."""

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

MNIST_OPTIONS = ("--models", "mnist")


def free_port() -> int:
    """Return a free port of the loopback interface."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def wait_ready(
    url: str,
    process: subprocess.Popen[bytes],
    output: Callable[[], str] = lambda: "",
) -> None:
    """Wait until a server is ready; fail with its output if it is not."""
    deadline = time.monotonic() + 120
    while True:
        assert process.poll() is None, f"the server ended: {output()}"
        assert time.monotonic() < deadline, f"the server is not ready: {output()}"
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(f"{url}/readyz").status_code == 200:
                return
        time.sleep(0.05)


def memory(pid: int) -> float:
    """Return the memory in MB of a process and all its children."""
    used, parents = dict[int, float](), dict[int, int]()
    for status in Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError):  # the process may have ended
            said = dict(line.split(":", 1) for line in status.read_text().splitlines())
            used[int(said["Pid"])] = float(said.get("VmRSS", "0").split()[0]) / 1000
            parents[int(said["Pid"])] = int(said["PPid"])
    family = {pid}
    while more := {one for one, parent in parents.items() if parent in family} - family:
        family |= more
    return sum(used[one] for one in family)


@contextlib.contextmanager
def server_process(*options: str) -> Iterator[tuple[str, int]]:
    """Serve the shipped mnist, or as the options say; yield the URL and the process id."""
    port = free_port()
    command = [sys.executable, "-m", "scanline.service", "serve", "--port", str(port)]
    environment = os.environ | {"SCANLINE_LOG_LEVEL": "error"}
    with subprocess.Popen([*command, *(options or MNIST_OPTIONS)], env=environment) as process:
        url = f"http://127.0.0.1:{port}"
        try:
            wait_ready(url, process)
            yield url, process.pid
        finally:
            process.send_signal(signal.SIGTERM)
