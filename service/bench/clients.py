"""Clients that cost as little as clients can: one blocking socket each, nothing parsed."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

TIMEOUT = 600.0  # seconds without a byte


@dataclass(frozen=True)
class Asking:
    """What each client asks for, ``rounds`` times: ``POST /v1/samples`` for ``n`` images."""

    port: int
    accept: str
    body: dict[str, Any]
    n: int
    clients: int
    rounds: int


def ask(port: int, accept: str, body: dict[str, Any]) -> bytes:
    """Send one request, and give all that comes back: head and body."""
    content = json.dumps(body).encode()
    head = (
        "POST /v1/samples HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Accept: {accept}\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", port), TIMEOUT) as connection:
        connection.sendall(head.encode() + content)
        reply = bytearray()
        while part := connection.recv(1 << 18):
            reply += part
    if not reply.startswith(b"HTTP/1.1 200 "):
        raise RuntimeError(f"the server said {bytes(reply[:500])!r}")
    return bytes(reply)


def _ask_all(asking: Asking) -> tuple[int, float]:
    """Have all clients ask side by side, again and again; give the images drawn and the seconds.

    What each asks for first is of another size, and so they stay out of step: else all would be
    without images at once.
    """
    failures: list[Exception] = []
    drawn: list[int] = []

    def client(number: int) -> None:
        try:
            for turn in range(asking.rounds + 1):
                n = asking.n if turn else max(1, asking.n * (number + 1) // asking.clients)
                ask(asking.port, asking.accept, asking.body | {"n": n})
                drawn.append(n)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=client, args=(i,)) for i in range(asking.clients)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return sum(drawn), time.perf_counter() - began


@contextmanager
def other_process() -> Iterator[Callable[[Asking], tuple[int, float]]]:
    """Give a function that has clients ask from a process of their own.

    It gives the images drawn and the seconds, and raises ``RuntimeError`` where they fail.
    """
    command = [sys.executable, "-m", __name__]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        pipes = process.stdin, process.stdout

        def run(asking: Asking) -> tuple[int, float]:
            if pipes[0] is None or pipes[1] is None:
                raise RuntimeError("the clients' process has no pipes")
            pipes[0].write(json.dumps(asdict(asking)).encode() + b"\n")
            pipes[0].flush()
            if not (line := pipes[1].readline()):
                raise RuntimeError("the clients failed")
            images, seconds = json.loads(line)
            return images, seconds

        yield run


if __name__ == "__main__":
    for asked in sys.stdin:
        print(json.dumps(_ask_all(Asking(**json.loads(asked)))), flush=True)  # noqa: T201
