"""Benchmark of the decoders on a CPU, compared with the roofline (``scanline bench``).

Every backend is checked against the reference before it is timed. Results are medians. Steps take
the same time at every position, so only some pixels of large images are sampled and the rest is
extrapolated; the table shows how many. The bytes are those of weights and attention sums: what
``native`` counted, and for other backends the least that a step must move. ``share`` is their part
of the bandwidth measured when as much memory as weights and sums occupy is read repeatedly. The
last column is the time of a step divided by its roofline bound, and whether computing or moving
bytes sets that bound.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch

from scanline.kernels.native import abi as native
from scanline.kernels.native.build import NativeBuildError, check_isa
from scanline.kernels.native.cpu import cpu, cpu_isas, usable_cores
from scanline.model.bench.models import PAPER
from scanline.model.bench.roofline import Roofline
from scanline.model.bench.table import HEADER, LineCallback, Report, format_row, peer_ratios
from scanline.model.bench.timing import (
    DecoderFactory,
    Timing,
    check_decoder,
    time_decoder,
    time_peer,
)
from scanline.model.checkpoint import Checkpoint
from scanline.model.decoders.base import BackendError
from scanline.model.decoders.native import NativeDecoder
from scanline.model.decoders.reference import ReferenceDecoder

SLOTS = (1, 8, 64, 256)
BACKENDS = ("native", "reference")

TimeSlots = Callable[[int], Timing]  # times a number of slots


class _CpuBench:
    """Timings of networks in this CPU's backends; arguments as in ``run_bench``."""

    def __init__(
        self, backends: Sequence[str], threads: int, isa: str | None, precision: str | None,
        seconds: float, repeats: int, peer: bool,
    ) -> None:  # fmt: skip
        self.backends, self.threads, self.isa, self.precision = backends, threads, isa, precision
        self.seconds, self.repeats, self.peer = seconds, repeats, peer
        self.notes: list[str] = []

    def hardware(self) -> dict[str, Any]:
        """Return the names of the machine, the instruction set and the software."""
        return {
            "cpu": cpu()[0], "cores": usable_cores(), "threads": self.threads,
            "isa": self.isa or cpu_isas()[0], "system": platform.platform(),
            "torch": torch.__version__,
        }  # fmt: skip

    def roofline(self) -> Roofline | None:
        """Measure the machine's peak rates; None without a compiled library."""
        try:
            return Roofline(native.load_library(self.isa), self.threads)
        except NativeBuildError as error:
            self.notes.append(f"peak rates are unknown: {error}")
            return None

    def timings(self, checkpoint: Checkpoint, slots: Sequence[int]) -> Iterator[Timing]:
        """Yield the timings of a network in every backend; what cannot be timed is a note."""
        for time_slots in self._backends(checkpoint):
            for count in slots:
                try:
                    yield time_slots(count)
                except ModuleNotFoundError as error:
                    self.notes.append(
                        f"the peer is missing: {error}; install pytorch-fast-transformers"
                    )
                    break
                except BackendError as error:  # usually too little memory for this many slots
                    self.notes.append(f"{checkpoint.name}, {count} slots: {error}")

    def _backends(self, checkpoint: Checkpoint) -> Iterator[TimeSlots]:
        """Yield a function per backend, after comparing it with the reference."""
        name, model = checkpoint.name, checkpoint.model
        precision = self.precision or checkpoint.native_precision
        factories: dict[str, DecoderFactory] = {
            "native": partial(
                NativeDecoder, threads=self.threads, isa=self.isa, precision=precision
            ),
            "reference": ReferenceDecoder,
        }

        def time_backend(factory: DecoderFactory, count: int) -> Timing:
            return time_decoder(name, factory(model, count), self.seconds, self.repeats)

        for backend in self.backends:
            try:
                check_decoder(model, factories[backend])
            except BackendError as error:
                self.notes.append(f"{backend} does not run here: {error}")
                continue
            yield partial(time_backend, factories[backend])
        if self.peer and name not in PAPER:
            self.notes.append(f"{name} cannot be run by the peer, only {' and '.join(PAPER)}")
        elif self.peer:
            yield partial(time_peer, name, model, self.seconds, self.repeats)


def run_bench(
    checkpoints: Sequence[Checkpoint],
    *,
    backends: Sequence[str] = BACKENDS,
    slots: Sequence[int] = SLOTS,
    threads: int | None = None,
    isa: str | None = None,
    precision: str | None = None,
    seconds: float = 1.0,
    repeats: int = 5,
    peer: bool = False,
    progress: LineCallback = lambda line: None,
) -> Report:
    """Time networks in every backend that runs on this CPU.

    Args:
        checkpoints: Networks to time.
        backends: Names of the backends.
        slots: Numbers of images to sample in parallel.
        threads: Number of threads; None means all cores.
        isa: Instruction set of ``native``; None means the CPU's best.
        precision: Precision of ``native``; None means the checkpoint's, else the CPU's default.
        seconds: Time of a run.
        repeats: Number of runs.
        peer: Also time fast-transformers.
        progress: Receives each line of the table as it is measured.

    Raises:
        ValueError: If the precision or ISA is unknown.
        RuntimeError: If the CPU lacks the ISA, or a backend disagrees with the reference.
    """
    if precision is not None:
        native.precision_of(precision)
    if isa is not None:
        check_isa(isa)
    threads = threads or usable_cores()
    torch.set_num_threads(threads)
    bench = _CpuBench(backends, threads, isa, precision, seconds, repeats, peer)
    hardware = bench.hardware()
    progress(f"{hardware['cpu']}, {hardware['cores']} cores, {threads} threads, {hardware['isa']}")
    peaks: dict[str, float] = {}
    if roofline := bench.roofline():
        peaks = {name: round(value / 1e9, 1) for name, value in roofline.peaks._asdict().items()}
        named = ", ".join(f"{name.replace('_', ' ')} {value:.0f}" for name, value in peaks.items())
        progress(f"peaks in billions per second: {named}")
    progress(HEADER)
    timings: list[Timing] = []
    for checkpoint in checkpoints:
        for timing in bench.timings(checkpoint, slots):
            if roofline:
                bound = roofline.bound(checkpoint.model.config, timing.slots, timing.precision)
                timing = timing.with_bound(bound)
            timings.append(timing)
            progress(format_row(timing))
    notes = bench.notes + peer_ratios(timings)
    for note in notes:
        progress(note)
    return Report(hardware, peaks, timings, notes)
