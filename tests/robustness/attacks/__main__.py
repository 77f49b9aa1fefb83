"""Command ``python -m tests.robustness.attacks``.

Starts a server with the shipped ``mnist`` on the loopback interface, or uses the one of ``--url``
and ``--pid``. Runs each attack for a few seconds and prints a table: how long requests of one image
by another client took meanwhile, and the server's memory.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time

import httpx

from tests.robustness.attacks.catalog import ATTACKS
from tests.robustness.attacks.runner import measure_waits, under_attack
from tests.server_processes import memory, server_process


def report(url: str, pid: int, names: list[str], seconds: float) -> None:
    """Print a row for each attack: median and longest wait, number of requests, memory."""
    address = httpx.URL(url)
    where = (address.host, address.port or 80)

    def line(name: str, waits: list[float]) -> None:
        middle, longest = statistics.median(waits), max(waits)
        print(f"| {name} | {middle:.3f} | {longest:.3f} | {len(waits)} | {memory(pid):,.0f} |")

    print("| attack | median wait, s | longest wait, s | requests | memory, MB |")
    print("|---|---|---|---|---|", flush=True)
    measure_waits(url, 1, {"seed": 1})
    line("none", measure_waits(url, seconds, {"seed": 1}))
    for name in names:
        with under_attack(where, name):
            time.sleep(1)  # let the attack begin
            line(name, measure_waits(url, seconds, {"seed": 1}))
        sys.stdout.flush()
        time.sleep(1)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="a server that runs already")
    parser.add_argument("--pid", type=int, help="its process")
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("names", nargs="*", help="some attacks only")
    given = parser.parse_args()
    names = given.names or list(ATTACKS)
    if given.url:
        report(given.url, given.pid, names, given.seconds)
    else:
        with server_process() as (url, pid):
            report(url, pid, names, given.seconds)


if __name__ == "__main__":
    main()
