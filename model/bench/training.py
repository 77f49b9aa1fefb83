"""How fast a CPU trains (``scanline bench --training``).

A step is forward, backward and both optimisers' on a batch of random pictures. The same step is
timed in as many processes as ``scanline train`` would start, and in one: with the native passes,
without them (plain torch), and without the short convolution, in turn, so that a busy machine hurts
all alike; a step that is not timed comes first each time, for the caches hold what another way
left. Figures are medians.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.distributed as dist

from scanline.kernels.native.abi import Peaks, load_library
from scanline.kernels.native.build import NativeBuildError
from scanline.kernels.native.cpu import cpu, cpu_isas, usable_cores
from scanline.kernels.native.training import library
from scanline.model.bench.roofline import Roofline, operations_per_step
from scanline.model.config import PRESETS, ModelConfig
from scanline.model.training.config import TrainingConfig
from scanline.model.training.distributed import choose_process_count, process_group
from scanline.model.training.host_tuning import frozen_gc
from scanline.model.training.train_state import TrainState

MODELS = ("mnist", "cifar10")
BATCH = 16


@dataclass(frozen=True)
class TrainingTiming:
    """One way to take a step; ``peak_share`` is of the machine's measured best, if known."""

    model: str
    way: str
    precision: str
    images_a_second: float
    gflops: float
    peak_share: float | None


@dataclass(frozen=True)
class TrainingReport:
    """All timings of a run, and what they were taken on."""

    hardware: dict[str, object]
    timings: list[TrainingTiming]


class _Steps:
    """Training that is taken a step at a time, in each of the processes that are joined."""

    def __init__(self, config: ModelConfig, batch: int, threads: int, native: bool = True) -> None:
        self.threads, self.native = threads, native
        training_config = TrainingConfig(steps=1_000_000, checkpoint_every=1_000_000, batch=batch)
        self.train_state = TrainState(config, training_config, torch.device("cpu"))
        draw = np.random.default_rng(0)
        canvas = draw.integers(0, 256, (batch, config.pixels, config.channels), np.uint8)
        self.images = torch.from_numpy(canvas)
        self.labels = torch.arange(batch) % max(1, len(config.classes))

    def seconds(self) -> float:
        """Take two steps, and time the second."""
        torch.set_num_threads(self.threads)
        if self.train_state.world_size > 1:
            dist.barrier()  # or the others would begin while another way is timed
        with contextlib.nullcontext() if self.native else library.disabled():
            self.train_state.take_step(self.images, self.labels)
            began = time.perf_counter()
            self.train_state.take_step(self.images, self.labels)
        return time.perf_counter() - began


def _help(
    device: torch.device, config: ModelConfig, batch: int, threads: int, repeats: int
) -> None:
    """Take another process's share of so many turns, and of one before."""
    steps = _Steps(config, batch, threads)
    steps.seconds()
    with frozen_gc():
        for _ in range(repeats):
            steps.seconds()


def _timed(
    config: ModelConfig, batch: int, threads: int, processes: int, repeats: int
) -> dict[str, tuple[float, bool]]:
    """Give each way's median seconds, and whether it multiplies bfloat16."""
    ways = {
        "native passes": _Steps(config, batch, threads),
        "plain torch": _Steps(config, batch, threads, native=False),
    }
    if config.short_conv != "none":
        bare = replace(config, short_conv="none")
        ways["native, no convolution"] = _Steps(bare, batch, threads)
    each = threads // processes
    shared = (config, batch, each)
    with process_group(processes, _help, *shared, repeats):
        if processes > 1:
            ways[f"native, {processes} processes"] = _Steps(*shared)
        for steps in ways.values():
            steps.seconds()  # memory is touched, code is built
        with frozen_gc():
            runs = [{way: steps.seconds() for way, steps in ways.items()} for _ in range(repeats)]
    return {
        way: (statistics.median(run[way] for run in runs), steps.train_state.bf16)
        for way, steps in ways.items()
    }


def run_training_bench(
    models: Sequence[str],
    threads: int | None,
    repeats: int,
    progress: Callable[[str], object],
    batch: int = BATCH,
) -> TrainingReport:
    """Time presets, by default ``mnist`` and ``cifar10``; raises ``ValueError`` on another."""
    if unknown := [name for name in models if name not in PRESETS]:
        raise ValueError(f"there is no preset {unknown[0]!r}; there are {', '.join(PRESETS)}")
    processes = choose_process_count(batch, None) if threads in (None, usable_cores()) else 1
    threads = threads or usable_cores()
    torch.set_num_threads(threads)
    hardware: dict[str, object] = {
        "cpu": cpu()[0], "threads": threads, "isa": cpu_isas()[0], "torch": torch.__version__,
    }  # fmt: skip
    peaks = None
    with contextlib.suppress(NativeBuildError):
        peaks = Roofline(load_library(), threads).peaks
    progress(f"{cpu()[0]}, {threads} threads, {cpu_isas()[0]}; batches of {batch}")
    progress(f"{'model':14} {'way':27} {'images/s':>9} {'GFLOP/s':>8}  of the peak")
    timings = []
    for name in models or MODELS:
        config = PRESETS[name]
        ways = _timed(config, batch, threads, processes, repeats)
        for way, (seconds, bf16) in ways.items():
            rate = batch / seconds
            flops = (
                3 * operations_per_step(config) * config.steps * rate
            )  # forward once, backward twice
            share = None
            if peaks is not None:
                share = flops / (_bf16_peak(peaks) if bf16 else peaks.float32_operations)
            precision = "bf16" if bf16 else "float32"
            timings.append(TrainingTiming(name, way, precision, rate, flops / 1e9, share))
            progress(format_row(timings[-1]))
        progress(compared(timings[-len(ways) :]))
    return TrainingReport(hardware, timings)


def _bf16_peak(peaks: Peaks) -> float:
    """Give torch's best: a tile of AMX multiplies half as many bfloat16 numbers as of 8 bits."""
    return peaks.int8_operations / 2 if cpu_isas()[0] == "amx" else peaks.bf16_operations


def format_row(t: TrainingTiming) -> str:
    """Give a timing as a line of the table."""
    share = "" if t.peak_share is None else f"{t.peak_share:9.0%} {t.precision}"
    return f"{t.model:14} {t.way:27} {t.images_a_second:9.2f} {t.gflops:8.1f} {share}"


def compared(timings: Sequence[TrainingTiming]) -> str:
    """Say what the passes gain, what processes do, and what the short convolution costs."""
    native, plain, *more = timings
    line = f"{native.model}: {native.images_a_second / plain.images_a_second:.2f} times plain torch"
    for timing in sorted(more, key=lambda timing: "processes" not in timing.way):
        if "processes" in timing.way:
            times = timing.images_a_second / plain.images_a_second
            line += f", {times:.2f} times in {timing.way.removeprefix('native, ')}"
        else:
            cost = 1 - native.images_a_second / timing.images_a_second
            line += f"; the short convolution takes {cost:.0%} of a step"
    return line
