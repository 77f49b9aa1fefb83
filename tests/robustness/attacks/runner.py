"""Attackers in their own process, and a client that measures its waiting times."""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from multiprocessing.synchronize import Event

import httpx

from tests.robustness.attacks.catalog import ATTACKS, Attack
from tests.robustness.attacks.payloads import picture


def shoot(
    address: tuple[str, int], attack: Attack, stop: Event, begun: Event | None = None
) -> bytes:
    """Attack once over one connection, which sets ``begun``; return the reply, if any."""
    received = b""
    here = sys.platform == "linux" and address[0].startswith("127.")
    mine = ("127.0.0.2", 0) if here else None  # another caller
    with (
        contextlib.suppress(OSError),
        socket.create_connection(address, timeout=5, source_address=mine) as connection,
    ):
        if begun is not None:
            begun.set()
        with contextlib.suppress(OSError):
            connection.sendall(attack.first)
            for _ in range(attack.most // max(len(attack.again), 1)):
                if stop.is_set():
                    return received
                connection.sendall(attack.again)
        until = time.monotonic() + attack.patience
        connection.settimeout(0.05)
        while time.monotonic() < until and not stop.is_set():
            with contextlib.suppress(TimeoutError):
                if not (part := connection.recv(65536)):
                    break
                received = (received + part)[:4096]
    return received


def keep_attacking(
    address: tuple[str, int], name: str, connections: int | None, stop: Event, begun: Event
) -> None:
    """Repeat an attack over several connections at once until ``stop`` is set."""
    os.nice(10)  # real attackers do not share the server's CPU
    attack = ATTACKS[name]()

    def go_on() -> None:
        while not stop.is_set():
            shoot(address, attack, stop, begun)

    count = connections or attack.connections
    threads = [threading.Thread(target=go_on) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@contextlib.contextmanager
def under_attack(
    address: tuple[str, int], name: str, connections: int | None = None
) -> Iterator[None]:
    """Run an attack from its own process inside the block."""
    spawn = multiprocessing.get_context("spawn")
    stop, begun = spawn.Event(), spawn.Event()
    process = spawn.Process(target=keep_attacking, args=(address, name, connections, stop, begun))
    process.start()
    try:
        assert begun.wait(60), "the attack has not begun"
        yield
    finally:
        stop.set()
        process.join()


def measure_waits(url: str, seconds: float, body: dict[str, object]) -> list[float]:
    """Request one image repeatedly, over a new connection each; return the seconds of each.

    Every other request is a completion. A failed request counts as infinite.
    """
    waits: list[float] = []
    half = picture(28)
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        began = time.monotonic()
        try:
            if len(waits) % 2:
                reply = httpx.post(
                    f"{url}/v1/completions", files={"image": half},
                    data=body | {"known_rows": 14}, timeout=60,
                )  # fmt: skip
            else:
                reply = httpx.post(f"{url}/v1/samples", json=body, timeout=60)
            waits.append(time.monotonic() - began if reply.status_code == 200 else math.inf)
        except httpx.TransportError:
            waits.append(math.inf)
        time.sleep(0.02)
    return waits
