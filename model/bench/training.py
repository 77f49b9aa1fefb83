"""Benchmark of training on a CPU (``scanline bench --training``).

A step is the forward pass, the backward pass and both optimizers on a batch of random images. It is
timed in as many processes as ``scanline train`` would start, and in one process with the native
passes, without them (plain torch), and without the short convolution. These variants take turns, so
that other load affects all of them equally, and each turn begins with an untimed step, because the
caches hold another variant's data. Results are medians.
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
from scanline.model.training.train_state import TrainState

MODELS = ("mnist", "cifar10")
BATCH = 16


@dataclass(frozen=True)
class TrainingTiming:
    """Timing of one variant; ``peak_share`` is relative to the measured peak, None if unknown."""

    model: str
    variant: str
    precision: str
    images_per_second: float
    gflops: float
    peak_share: float | None


@dataclass(frozen=True)
class TrainingReport:
    """All timings of a run, and the hardware."""

    hardware: dict[str, object]
    timings: list[TrainingTiming]


class _StepTimer:
    """Training of one variant, one timed step at a time, in this process of the group."""

    def __init__(self, config: ModelConfig, batch: int, threads: int, native: bool = True) -> None:
        self.threads, self.native = threads, native
        training_config = TrainingConfig(steps=1_000_000, checkpoint_every=1_000_000, batch=batch)
        self.train_state = TrainState(config, training_config, torch.device("cpu"))
        draw = np.random.default_rng(0)
        canvas = draw.integers(0, 256, (batch, config.pixels, config.channels), np.uint8)
        self.images = torch.from_numpy(canvas)
        self.labels = torch.arange(batch) % max(1, len(config.classes))

    def seconds(self) -> float:
        """Take two steps, and return the time of the second."""
        torch.set_num_threads(self.threads)
        if self.train_state.world_size > 1:
            dist.barrier()  # other processes must not start while another variant is timed
        with contextlib.nullcontext() if self.native else library.disabled():
            self.train_state.take_step(self.images, self.labels)
            began = time.perf_counter()
            self.train_state.take_step(self.images, self.labels)
        return time.perf_counter() - began


def _run_worker(
    device: torch.device, config: ModelConfig, batch: int, threads: int, repeats: int
) -> None:
    """Run a worker's share of the warm-up and of ``repeats`` turns."""
    steps = _StepTimer(config, batch, threads)
    steps.seconds()
    for _ in range(repeats):
        steps.seconds()


def _timed(
    config: ModelConfig, batch: int, threads: int, processes: int, repeats: int
) -> dict[str, tuple[float, bool]]:
    """Return each variant's median seconds, and whether it computes in bfloat16."""
    variants = {
        "native passes": _StepTimer(config, batch, threads),
        "plain torch": _StepTimer(config, batch, threads, native=False),
    }
    if config.short_conv != "none":
        bare = replace(config, short_conv="none")
        variants["native, no convolution"] = _StepTimer(bare, batch, threads)
    each = threads // processes
    shared = (config, batch, each)
    with process_group(processes, _run_worker, *shared, repeats):
        if processes > 1:
            variants[f"native, {processes} processes"] = _StepTimer(*shared)
        for steps in variants.values():
            steps.seconds()  # warm-up: touches memory and builds code
        runs = [
            {variant: steps.seconds() for variant, steps in variants.items()}
            for _ in range(repeats)
        ]
    return {
        variant: (statistics.median(run[variant] for run in runs), steps.train_state.bf16)
        for variant, steps in variants.items()
    }


def run_training_bench(
    models: Sequence[str],
    threads: int | None,
    repeats: int,
    progress: Callable[[str], object],
    batch: int = BATCH,
) -> TrainingReport:
    """Time the training of presets.

    Args:
        models: Names of presets; empty means ``mnist`` and ``cifar10``.
        threads: Number of threads; None means all cores.
        repeats: Number of turns.
        progress: Receives each line of the table as it is measured.
        batch: Images per step.

    Raises:
        ValueError: If a preset is unknown.
    """
    if unknown := [name for name in models if name not in PRESETS]:
        raise ValueError(f"unknown preset {unknown[0]!r}: choose {', '.join(PRESETS)}")
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
    progress(f"{'model':14} {'variant':27} {'images/s':>9} {'GFLOP/s':>8}  of the peak")
    timings = []
    for name in models or MODELS:
        config = PRESETS[name]
        variants = _timed(config, batch, threads, processes, repeats)
        for variant, (seconds, bf16) in variants.items():
            rate = batch / seconds
            flops = (
                3 * operations_per_step(config) * config.steps * rate
            )  # forward once, backward twice
            share = None
            if peaks is not None:
                share = flops / (_bf16_peak(peaks) if bf16 else peaks.float32_operations)
            precision = "bf16" if bf16 else "float32"
            timings.append(TrainingTiming(name, variant, precision, rate, flops / 1e9, share))
            progress(format_row(timings[-1]))
        progress(compared(timings[-len(variants) :]))
    return TrainingReport(hardware, timings)


def _bf16_peak(peaks: Peaks) -> float:
    """Return torch's peak rate; AMX has half as many bfloat16 operations as 8-bit ones."""
    return peaks.int8_operations / 2 if cpu_isas()[0] == "amx" else peaks.bf16_operations


def format_row(t: TrainingTiming) -> str:
    """Format a timing as a line of the table."""
    share = "" if t.peak_share is None else f"{t.peak_share:9.0%} {t.precision}"
    return f"{t.model:14} {t.variant:27} {t.images_per_second:9.2f} {t.gflops:8.1f} {share}"


def compared(timings: Sequence[TrainingTiming]) -> str:
    """Summarize the gain of native passes and processes, and the cost of the convolution."""
    native, plain, *more = timings
    line = f"{native.model}: {native.images_per_second / plain.images_per_second:.2f} × plain torch"
    for timing in sorted(more, key=lambda timing: "processes" not in timing.variant):
        if "processes" in timing.variant:
            times = timing.images_per_second / plain.images_per_second
            line += f", {times:.2f} × in {timing.variant.removeprefix('native, ')}"
        else:
            cost = 1 - native.images_per_second / timing.images_per_second
            line += f"; the short convolution takes {cost:.0%} of a step"
    return line
