"""The decoder's threads: the GIL, idle threads and forks."""

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
    """Another thread runs Python code during a long call."""
    config = tiny_config(height=64, width=64, d_model=64, n_layers=4)
    decoder = NativeDecoder(LinearTransformer(config), 8, 1)
    iterations = 0
    begun, finished = threading.Event(), threading.Event()

    def run() -> None:
        begun.set()
        decoder.step(np.arange(8, dtype=np.int32), config.pixels)
        finished.set()

    worker = threading.Thread(target=run)
    worker.start()
    begun.wait()
    while not finished.is_set():
        iterations += 1
        time.sleep(0)
    worker.join()
    assert iterations > 10


def test_idle_threads_sleep() -> None:
    tasks = Path("/proc/self/task")
    if not tasks.is_dir():
        pytest.skip("only Linux reports the state of threads")
    before = set(tasks.iterdir())
    decoder = NativeDecoder(TINY, 8, 4)
    decoder.step(np.arange(8, dtype=np.int32), 5)
    workers = set(tasks.iterdir()) - before
    assert len(workers) == 3  # the fourth is the caller's

    def context_switches() -> list[int] | None:
        """Return each thread's number of context switches; None while one of them runs."""
        counts = []
        for worker in workers:
            status = (worker / "status").read_text()
            if "\nState:\tS" not in status:
                return None
            counts.append(sum(int(n) for n in re.findall(r"ctxt_switches:\t(\d+)", status)))
        return counts

    asleep: list[list[int]] = []

    def all_sleep() -> bool:
        counts = context_switches()
        if counts is not None:
            asleep.append(counts)
        return counts is not None

    until(all_sleep, "sleep")  # the threads spin for a moment first
    time.sleep(0.3)
    assert context_switches() == asleep[-1]


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


def test_forked_decoder_raises() -> None:
    """A fork lacks the threads, and would wait for them forever in a call or at exit."""
    done = subprocess.run(
        [sys.executable, "-c", FORK], cwd=ROOT, capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("open a new one here") == 2
    assert done.stdout.endswith("True\n")
