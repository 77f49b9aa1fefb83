"""A server with two small models in its own process."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import httpx

from tests.server_processes import free_port, wait_ready
from tests.service.fixtures import GREY

SLOW = replace(GREY, height=40, width=40)  # takes seconds per image


@dataclass
class Running:
    """A server process, a client and the log."""

    process: subprocess.Popen[bytes]
    client: httpx.Client
    url: str
    log: Path

    @property
    def address(self) -> tuple[str, int]:
        url = httpx.URL(self.url)
        assert url.port is not None
        return url.host, url.port

    def gauge(self, name: str, model: str) -> float:
        text = self.client.get("/metrics").text
        found = re.search(rf'^{name}{{model="{model}"}} (\S+)$', text, re.MULTILINE)
        assert found, text
        return float(found[1])

    def idle(self) -> bool:
        return all(
            self.gauge(f"scanline_{what}_images", model) == 0
            for what in ("running", "waiting") for model in ("slow", "tiny")
        )  # fmt: skip

    def terminate(self, how: int = signal.SIGTERM) -> None:
        self.process.send_signal(how)

    def wait_for_exit(self) -> str:
        """Wait for the process to exit with status 0, and return its log."""
        assert self.process.wait(60) == 0
        log = self.log.read_text()
        assert "Traceback" not in log, log
        return log


def environment(folder: Path, **settings: object) -> dict[str, str]:
    """Return this process's environment with these settings and no others."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("SCANLINE_")}
    given = {f"SCANLINE_{k.upper()}": str(v) for k, v in settings.items()}
    return clean | {"SCANLINE_WEIGHTS": str(folder), "OMP_NUM_THREADS": "1"} | given


COMMAND = [sys.executable, "-m", "scanline.service", "serve"]


@contextlib.contextmanager
def serving(
    folder: Path, log: Path, command: Sequence[str] = COMMAND, **settings: object
) -> Iterator[Running]:
    """Serve the models of a folder, by default with the ``reference`` backend."""
    port = free_port()
    given: dict[str, object] = {
        "backend": "reference",
        "slots": 8,
        "max_waiting": 40,
        "max_images": 40,
    }
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*command, "--port", str(port)],
            env=environment(folder, **given | settings),
            stderr=file,
        )
    url = f"http://127.0.0.1:{port}"
    try:
        wait_ready(url, process, output=log.read_text)
        with httpx.Client(base_url=url, timeout=60) as client:
            yield Running(process, client, url, log)
    finally:
        process.kill()
        process.wait()
