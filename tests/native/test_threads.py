"""Threads: the GIL is released, and idle ones sleep."""

from __future__ import annotations

import re
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from scanline.model.decoders.native import NativeDecoder
from scanline.model.network import LinearTransformer
from tests.conftest import tiny_config
from tests.native.fixtures import TINY
from tests.service_fixtures import until


def test_the_gil_is_released() -> None:
    """Another thread goes on in Python while one long call runs."""
    config = tiny_config(height=64, width=64, d_model=64, n_layers=4)
    decoder = NativeDecoder(LinearTransformer(config), 8, 1)
    turns = 0
    begun, finished = threading.Event(), threading.Event()

    def run() -> None:
        begun.set()
        decoder.step(np.arange(8, dtype=np.int32), config.pixels)
        finished.set()

    worker = threading.Thread(target=run)
    worker.start()
    begun.wait()
    while not finished.is_set():
        turns += 1
        time.sleep(0)
    worker.join()
    assert turns > 10


def test_the_threads_of_an_idle_decoder_sleep() -> None:
    tasks = Path("/proc/self/task")
    if not tasks.is_dir():
        pytest.skip("only Linux tells what a thread does")
    before = set(tasks.iterdir())
    decoder = NativeDecoder(TINY, 8, 4)
    decoder.step(np.arange(8, dtype=np.int32), 5)
    workers = set(tasks.iterdir()) - before
    assert len(workers) == 3  # the fourth is the caller's

    def woken() -> list[int] | None:
        """Count how often each thread has been put on a core; None while one of them runs."""
        counts = []
        for worker in workers:
            status = (worker / "status").read_text()
            if "\nState:\tS" not in status:
                return None
            counts.append(sum(int(n) for n in re.findall(r"ctxt_switches:\t(\d+)", status)))
        return counts

    until(woken, "sleep")  # the threads spin for a moment in case there is more
    asleep = woken()
    time.sleep(0.3)
    assert woken() == asleep
