"""Threads: the GIL is released, and idle ones sleep."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from scanline.model.decoders.native import NativeDecoder
from scanline.model.network import LinearTransformer
from tests.conftest import ROOT, tiny_config
from tests.kernels.native.fixtures import TINY
from tests.service.fixtures import until


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


FORK = """
import os
from scanline.model.decoders.base import InputBatch
from scanline.model.decoders.native import NativeDecoder
from tests.kernels.native.fixtures import TINY

decoder = NativeDecoder(TINY, 4, 3)
decoder.begin(range(4), InputBatch.empty(decoder.config, 4))
if child := os.fork():
    assert os.waitpid(child, 0)[1] == 0
    decoder.step(range(4), decoder.config.pixels)
    print(set(decoder.positions.tolist()) == {decoder.config.pixels})
else:
    for act in (lambda: decoder.step(range(4), 3), lambda: decoder.fork([0], [1])):
        try:
            act()
        except RuntimeError as error:
            print(error, flush=True)
    del decoder
    os._exit(0)
"""


def test_a_fork_is_told_to_open_its_own() -> None:
    """It has none of the threads, and would wait for them for ever, at work or at its end."""
    done = subprocess.run(
        [sys.executable, "-c", FORK], cwd=ROOT, capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("open a new one here") == 2
    assert done.stdout.endswith("True\n")
