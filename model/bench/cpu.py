"""How fast the decoders are here, beside what the machine can do (``scanline bench``).

Every backend is first checked against the reference; one that differs is not timed. Figures are
medians. A step costs the same at every position, so of large images some pixels are drawn and
the rest is extrapolated; the table says how many. Beside each figure stands how many times a step
takes what it would at the machine's own best, and whether computing or moving bytes sets that.
"""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from scanline.kernels.native import abi as native
from scanline.kernels.native.build import NativeBuildError, check_isa
from scanline.kernels.native.cpu import cpu, cpu_isas, usable_cores
from scanline.model.bench.models import PAPER
from scanline.model.bench.peer import Peer
from scanline.model.bench.roofline import Bound, Roofline, bytes_per_step, operations_per_step
from scanline.model.checkpoint import Checkpoint, SamplingDefaults
from scanline.model.config import ModelConfig
from scanline.model.decoders.base import BackendError, Decoder, InputBatch
from scanline.model.decoders.native import NativeDecoder
from scanline.model.decoders.reference import ReferenceDecoder
from scanline.model.network import LinearTransformer

SLOTS = (1, 8, 64, 256)
BACKENDS = ("native", "reference")
BITS_ERROR = 0.01  # bits/dim that a precision may change of a few images drawn

DecoderFactory = Callable[[LinearTransformer, int], Decoder]  # of so many slots


@dataclass(frozen=True)
class Timing:
    """One network in one backend with so many images at once; ``pixels`` were drawn of each.

    ``precision`` is what products were computed in; ``limit`` what bounds a step on this machine,
    ``compute`` or ``bytes``, and ``times_limit`` how many times that bound a step took; None where
    the bound is not known.
    """

    model: str
    backend: str
    slots: int
    pixels: int
    milliseconds_a_step: float
    seconds_an_image: float
    images_a_second: float
    gflops: float
    gbytes_a_second: float
    precision: str = "float32"
    limit: str | None = None
    times_limit: float | None = None

    def with_bound(self, bound: Bound) -> Timing:
        """Give this timing with the machine's limit."""
        times = self.milliseconds_a_step / 1e3 / bound.seconds
        return replace(self, limit=bound.name, times_limit=times)


@dataclass(frozen=True)
class Report:
    """All timings of a run, and what they were taken on."""

    hardware: dict[str, Any]
    peaks: dict[str, float]
    timings: list[Timing]
    notes: list[str]


def start_blank_images(
    decoder: Decoder, style: SamplingDefaults | None = None
) -> NDArray[np.int32]:
    """Put fresh images, of which nothing is known, into all slots; gives those of the images.

    Plain ones, or as ``style`` has it of each class in turn: guided, each has a twin.
    """
    c = decoder.config
    guided = style is not None and style.guidance != 1
    N = decoder.max_slots // 2 if guided else decoder.max_slots
    slots = np.arange(N, dtype=np.int32)
    inputs = InputBatch.empty(c, N)
    inputs.seed[:] = range(N)
    if style is not None:
        inputs.label[:] = slots % len(c.classes)
        inputs.top_p[:], inputs.guidance[:] = style.top_p, style.guidance
    if guided:
        inputs.twin[:] = N + slots
    decoder.begin(slots, inputs)
    return slots


def check_decoder(model: LinearTransformer, factory: DecoderFactory) -> None:
    """Raise ``RuntimeError`` unless a backend's bits are the network's, alone and among others."""
    pixels = min(64, model.config.pixels)
    decoder = factory(model, 5)
    decoder.step(start_blank_images(decoder), pixels)
    canvas = torch.from_numpy(decoder.canvas)
    with torch.no_grad():
        _, bits = model.prefill(canvas, torch.full((5,), pixels))
    dims = 5 * pixels * model.config.channels
    difference = abs(float(decoder.bits.sum() - bits.sum())) / dims
    if not difference <= BITS_ERROR:
        raise RuntimeError(
            f"{decoder.variant} is {difference:.4f} bits/dim from the reference: not timed"
        )
    alone = factory(model, 1)
    alone.step(start_blank_images(alone), pixels)
    if not np.array_equal(alone.canvas[0], decoder.canvas[0]):
        raise RuntimeError(f"{decoder.variant} draws other bytes alone than beside others")


def measure(
    draw: Callable[[int], object], pixels: int, seconds: float,
    finish: Callable[[], object] = lambda: None,
) -> tuple[int, float]:  # fmt: skip
    """Draw up to ``pixels`` pixels for about ``seconds``; give how many, and seconds for each.

    ``draw(n)`` draws the next n pixels of every image, and ``finish()`` waits until all are there.
    """
    done, n, began = 0, 1, time.perf_counter()
    while True:
        draw(n)
        done += n
        elapsed = time.perf_counter() - began
        if done == pixels or elapsed >= seconds:
            finish()
            return done, (time.perf_counter() - began) / done
        # Calls as long as the engine's, a row of pixels, but none that overshoots by far.
        n = min(28, 2 * n, pixels - done, max(1, int((seconds - elapsed) * done / elapsed)))


def time_backend(
    name: str,
    model: LinearTransformer,
    factory: DecoderFactory,
    seconds: float,
    repeats: int,
    slots: int,
) -> Timing:
    """Time a backend with all its slots busy; the median of ``repeats`` runs."""
    return time_decoder(name, factory(model, slots), seconds, repeats)


def time_decoder(
    name: str, decoder: Decoder, seconds: float, repeats: int, style: SamplingDefaults | None = None
) -> Timing:
    """Time a decoder with all its slots busy; the median of ``repeats`` runs.

    As the engine does, it launches the next steps before the last have landed. ``style`` as
    ``begin`` has it.
    """
    numbers = start_blank_images(decoder, style)
    decoder.step(numbers, 1)  # pages are touched, threads are there

    def draw(n: int) -> None:
        decoder.launch(numbers, n)
        decoder.synchronize(decoder.max_in_flight - 1)

    runs = []
    for _ in range(repeats):
        start_blank_images(decoder, style)
        runs.append(measure(draw, decoder.config.pixels, seconds, decoder.synchronize))
    return _timing(name, decoder, decoder.config, decoder.max_slots, runs)


def _timing(
    name: str, drawer: Decoder | Peer, config: ModelConfig, slots: int,
    runs: list[tuple[int, float]],
) -> Timing:  # fmt: skip
    pixel = statistics.median(time for _, time in runs)
    step = pixel / config.steps_per_pixel
    return Timing(
        name, drawer.backend, slots, min(done for done, _ in runs), step * 1e3,
        pixel * config.pixels, slots / (pixel * config.pixels),
        operations_per_step(config) * slots / step / 1e9,
        bytes_per_step(config, slots, drawer.precision) / step / 1e9, drawer.precision,
    )  # fmt: skip


def time_peer(
    name: str, model: LinearTransformer, seconds: float, repeats: int, slots: int
) -> Timing:
    """Time fast-transformers on the same network, once it is checked to compute the same.

    On one thread and on all, of which the faster counts: torch's threads wait for each other
    after every operation, which small ones do not repay.
    """
    peer = Peer(model, slots)
    peer.check()
    threads = torch.get_num_threads()
    timings = []
    try:
        for count in sorted({1, threads}):
            torch.set_num_threads(count)
            runs = []
            for _ in range(repeats):
                peer.restart()
                runs.append(measure(peer.draw, model.config.pixels, seconds))
            timings.append(_timing(name, peer, model.config, slots, runs))
    finally:
        torch.set_num_threads(threads)
    return min(timings, key=lambda timing: timing.seconds_an_image)


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
    progress: Callable[[str], object] = lambda line: None,
) -> Report:
    """Time networks in every backend that runs here.

    ``native`` runs in ``precision``, by default a checkpoint's own or else the CPU's, and with the
    instructions of ``isa``, the CPU's best by default.
    ``progress`` is told each line of the table as it is measured. Raises ``ValueError`` on an
    unknown precision or ISA, and ``RuntimeError`` on one that the CPU lacks, and where a backend
    does not agree with the reference.
    """
    if precision is not None:
        native.precision_of(precision)
    if isa is not None:
        check_isa(isa)
    threads = threads or usable_cores()
    torch.set_num_threads(threads)
    hardware: dict[str, Any] = {
        "cpu": cpu()[0], "cores": usable_cores(), "threads": threads,
        "isa": isa or cpu_isas()[0], "system": platform.platform(), "torch": torch.__version__,
    }  # fmt: skip
    notes: list[str] = []
    peaks: dict[str, float] = {}
    progress(f"{hardware['cpu']}, {hardware['cores']} cores, {threads} threads, {hardware['isa']}")
    roofline = None
    try:
        roofline = Roofline(native.load_library(isa), threads)
        peaks = {name: round(value / 1e9, 1) for name, value in roofline.peaks._asdict().items()}
        progress("peaks, in thousand millions a second: " + ", ".join(
            f"{name.replace('_', ' ')} {value:.0f}" for name, value in peaks.items()
        ))  # fmt: skip
    except NativeBuildError as error:
        notes.append(f"no peaks: {error}")
    progress(HEADER)
    timings: list[Timing] = []
    for checkpoint in checkpoints:
        name, model = checkpoint.name, checkpoint.model
        wanted = precision or checkpoint.native_precision
        factories: dict[str, DecoderFactory] = {
            "native": partial(NativeDecoder, threads=threads, isa=isa, precision=wanted),
            "reference": ReferenceDecoder,
        }
        runners: list[Callable[[int], Timing]] = []
        for backend in backends:
            try:
                check_decoder(model, factories[backend])
            except BackendError as error:
                notes.append(f"{backend} does not run here: {error}")
                continue
            runners.append(partial(time_backend, name, model, factories[backend], seconds, repeats))
        if peer and name not in PAPER:
            notes.append(f"{name} has no peer, which draws {' and '.join(PAPER)} alone")
        elif peer:
            runners.append(partial(time_peer, name, model, seconds, repeats))
        for runner in runners:
            for count in slots:
                try:
                    timing = runner(count)
                except ModuleNotFoundError as error:
                    notes.append(f"no peer: {error}; install pytorch-fast-transformers")
                    break
                except BackendError as error:  # so many slots, as a rule: fewer may be had
                    notes.append(f"{name}, {count} slots: {error}")
                    continue
                if roofline:
                    timing = timing.with_bound(
                        roofline.bound(model.config, count, timing.precision)
                    )
                timings.append(timing)
                progress(format_row(timing))
    notes += peer_ratios(timings)
    for note in notes:
        progress(note)
    return Report(hardware, peaks, timings, notes)


HEADER = (
    f"{'model':14} {'backend':25} {'slots':>5} {'pixels':>6} {'ms/step':>9} {'s/image':>9} "
    f"{'images/s':>9} {'GFLOP/s':>8} {'GB/s':>6}  of the limit"
)


def format_row(t: Timing) -> str:
    """Give a timing as a line under ``HEADER``."""
    limit = f"{t.times_limit:6.2f} × {t.limit}" if t.times_limit else ""
    backend = f"{t.backend} {t.precision}"
    return (
        f"{t.model:14} {backend:25} {t.slots:5} {t.pixels:6} {t.milliseconds_a_step:9.4f} "
        f"{t.seconds_an_image:9.3g} {t.images_a_second:9.2f} {t.gflops:8.1f} "
        f"{t.gbytes_a_second:6.1f} {limit}"
    )


def peer_ratios(timings: Sequence[Timing]) -> list[str]:
    """Set native beside the peer: latency at one slot, and each one's best throughput."""
    lines = []
    for name in dict.fromkeys(t.model for t in timings):
        ours = [t for t in timings if (t.model, t.backend) == (name, "native")]
        theirs = [t for t in timings if (t.model, t.backend) == (name, Peer.backend)]
        if not ours or not theirs:
            continue
        best = max(t.images_a_second for t in ours) / max(t.images_a_second for t in theirs)
        lines.append(f"{name}: native draws {best:.1f} times as many images a second as the peer")
        single = [[t.seconds_an_image for t in both if t.slots == 1] for both in (ours, theirs)]
        if all(single):
            ratio = single[1][0] / single[0][0]
            lines.append(f"{name}: native draws one image {ratio:.1f} times as fast as the peer")
    return lines
