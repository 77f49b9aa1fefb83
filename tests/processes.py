"""Servers in a process of their own."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
from collections.abc import Callable

import httpx


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
