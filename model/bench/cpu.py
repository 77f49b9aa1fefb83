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
MAX_BITS_ERROR = 0.01  # bits/dim by which a precision may change a few images

DecoderFactory = Callable[[LinearTransformer, int], Decoder]  # network, slots


@dataclass(frozen=True)
class Timing:
    """Timing of one network in one backend.

    Args:
        model: name of the network.
        backend: name of the backend.
        slots: number of images sampled in parallel.
        pixels: pixels sampled of each.
        milliseconds_a_step: time of a step of all slots.
        seconds_an_image: time until all slots have a whole image.
        images_a_second: throughput.
        gflops: billion operations/s.
        gbytes_a_second: GB/s of weights and attention sums.
        precision: type of the products.
        limit: what bounds a step on this machine, ``compute`` or ``bytes``; None if unknown.
        times_limit: time of a step divided by its bound; None if unknown.
        bandwidth_share: ``gbytes_a_second`` as a part of the measured bandwidth; None if unknown.
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
    bandwidth_share: float | None = None

    @property
    def mbytes_a_step(self) -> float:
        """MB of weights and attention sums that a step of all slots moves."""
        return self.gbytes_a_second * self.milliseconds_a_step

    def with_bound(self, bound: Bound) -> Timing:
        """Return this timing with the roofline bound."""
        times_limit = self.milliseconds_a_step / 1e3 / bound.seconds
        share = self.gbytes_a_second * 1e9 / bound.bytes_a_second
        return replace(self, limit=bound.name, times_limit=times_limit, bandwidth_share=share)


@dataclass(frozen=True)
class Report:
    """All timings of a run, with the hardware, its peak rates, and remarks."""

    hardware: dict[str, Any]
    peaks: dict[str, float]
    timings: list[Timing]
    notes: list[str]


def start_blank_images(
    decoder: Decoder, style: SamplingDefaults | None = None
) -> NDArray[np.int32]:
    """Start an image without known pixels in every slot, and return the slots of the images.

    Args:
        decoder: decoder to use.
        style: sampling options; images then have the classes in turn, and with guidance every image
            needs a second slot for its unconditional twin. None means unconditional sampling.
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
    """Raise ``RuntimeError`` if a backend differs from the reference, or by its number of slots."""
    pixels = min(64, model.config.pixels)
    decoder = factory(model, 5)
    decoder.step(start_blank_images(decoder), pixels)
    canvas = torch.from_numpy(decoder.canvas)
    with torch.no_grad():
        _, bits = model.prefill(canvas, torch.full((5,), pixels))
    dims = 5 * pixels * model.config.channels
    difference = abs(float(decoder.bits.sum() - bits.sum())) / dims
    if not difference <= MAX_BITS_ERROR:
        raise RuntimeError(
            f"{decoder.variant} differs by {difference:.4f} bits/dim from the reference, so it is "
            "not timed"
        )
    alone = factory(model, 1)
    alone.step(start_blank_images(alone), pixels)
    if not np.array_equal(alone.canvas[0], decoder.canvas[0]):
        raise RuntimeError(
            f"{decoder.variant} samples other bytes for one image than for several, so it is not "
            "timed"
        )


def measure(
    draw: Callable[[int], object], pixels: int, seconds: float,
    finish: Callable[[], object] = lambda: None,
) -> tuple[int, float]:  # fmt: skip
    """Sample pixels for some time, and return their number and the seconds per pixel.

    Args:
        draw: samples the next n pixels of every image.
        pixels: number of pixels to sample at most.
        seconds: time to spend, approximately.
        finish: waits until all pixels are sampled.
    """
    done, n, began = 0, 1, time.perf_counter()
    while True:
        draw(n)
        done += n
        elapsed = time.perf_counter() - began
        if done == pixels or elapsed >= seconds:
            finish()
            return done, (time.perf_counter() - began) / done
        # At most a row of pixels per call, as in the engine, and little more than the time left.
        n = min(28, 2 * n, pixels - done, max(1, int((seconds - elapsed) * done / elapsed)))


def time_backend(
    name: str,
    model: LinearTransformer,
    factory: DecoderFactory,
    seconds: float,
    repeats: int,
    slots: int,
) -> Timing:
    """Time a backend with all slots in use; return the median of ``repeats`` runs."""
    return time_decoder(name, factory(model, slots), seconds, repeats)


def time_decoder(
    name: str, decoder: Decoder, seconds: float, repeats: int, style: SamplingDefaults | None = None
) -> Timing:
    """Time a decoder with all slots in use, with steps in flight as in the engine.

    Args:
        name: name of the network.
        decoder: decoder to time.
        seconds: time of a run.
        repeats: number of runs, whose median is returned.
        style: sampling options, as for ``start_blank_images``.
    """
    numbers = start_blank_images(decoder, style)
    decoder.step(numbers, 1)  # warm-up: touches memory and starts threads

    def draw(n: int) -> None:
        decoder.launch(numbers, n)
        decoder.synchronize(decoder.max_in_flight - 1)

    runs = []
    native = decoder if isinstance(decoder, NativeDecoder) else None
    before = native.bytes_moved if native else 0
    for _ in range(repeats):
        start_blank_images(decoder, style)
        runs.append(measure(draw, decoder.config.pixels, seconds, decoder.synchronize))
    steps = sum(done for done, _ in runs) * decoder.config.steps_per_pixel
    moved = (native.bytes_moved - before) / steps if native else None
    return _timing(name, decoder, decoder.config, decoder.max_slots, runs, moved)


def _timing(
    name: str, sampler: Decoder | Peer, config: ModelConfig, slots: int,
    runs: list[tuple[int, float]], moved: float | None = None,
) -> Timing:  # fmt: skip
    """Summarise runs; ``moved`` is the bytes of a step, by default the least possible."""
    moved = bytes_per_step(config, slots, sampler.precision) if moved is None else moved
    pixel = statistics.median(time for _, time in runs)
    step = pixel / config.steps_per_pixel
    return Timing(
        name, sampler.backend, slots, min(done for done, _ in runs), step * 1e3,
        pixel * config.pixels, slots / (pixel * config.pixels),
        operations_per_step(config) * slots / step / 1e9,
        moved / step / 1e9, sampler.precision,
    )  # fmt: skip


def time_peer(
    name: str, model: LinearTransformer, seconds: float, repeats: int, slots: int
) -> Timing:
    """Check and time fast-transformers on the same network.

    It is timed with one thread and with all, and the faster result is returned: torch synchronizes
    its threads after every operation, which costs more than they gain in small ones.
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
    """Time networks in every backend that runs on this CPU.

    Args:
        checkpoints: networks to time.
        backends: names of the backends.
        slots: numbers of images to sample in parallel.
        threads: number of threads; None means all cores.
        isa: instruction set of ``native``; None means the CPU's best.
        precision: precision of ``native``; None means the checkpoint's, else the CPU's default.
        seconds: time of a run.
        repeats: number of runs.
        peer: also time fast-transformers.
        progress: receives each line of the table as it is measured.

    Raises:
        ValueError: the precision or ISA is unknown.
        RuntimeError: the CPU lacks the ISA, or a backend disagrees with the reference.
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
        progress("peaks in billions per second: " + ", ".join(
            f"{name.replace('_', ' ')} {value:.0f}" for name, value in peaks.items()
        ))  # fmt: skip
    except NativeBuildError as error:
        notes.append(f"peak rates are unknown: {error}")
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
            notes.append(f"{name} cannot be run by the peer, only {' and '.join(PAPER)}")
        elif peer:
            runners.append(partial(time_peer, name, model, seconds, repeats))
        for runner in runners:
            for count in slots:
                try:
                    timing = runner(count)
                except ModuleNotFoundError as error:
                    notes.append(f"the peer is missing: {error}; install pytorch-fast-transformers")
                    break
                except BackendError as error:  # usually too little memory for this many slots
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
    f"{'images/s':>9} {'GFLOP/s':>8} {'MB/step':>8} {'GB/s':>6} {'share':>5}  of the bound"
)


def format_row(t: Timing) -> str:
    """Format a timing as a line below ``HEADER``."""
    limit = f"{t.times_limit:6.2f} × {t.limit}" if t.times_limit else ""
    share = "" if t.bandwidth_share is None else f"{t.bandwidth_share:.0%}"
    backend = f"{t.backend} {t.precision}"
    return (
        f"{t.model:14} {backend:25} {t.slots:5} {t.pixels:6} {t.milliseconds_a_step:9.4f} "
        f"{t.seconds_an_image:9.3g} {t.images_a_second:9.2f} {t.gflops:8.1f} "
        f"{t.mbytes_a_step:8.1f} {t.gbytes_a_second:6.1f} {share:>5} {limit}"
    )


def peer_ratios(timings: Sequence[Timing]) -> list[str]:
    """Compare ``native`` with the peer: latency with one slot, and best throughput."""
    lines = []
    for name in dict.fromkeys(t.model for t in timings):
        ours = [t for t in timings if (t.model, t.backend) == (name, "native")]
        theirs = [t for t in timings if (t.model, t.backend) == (name, Peer.backend)]
        if not ours or not theirs:
            continue
        best = max(t.images_a_second for t in ours) / max(t.images_a_second for t in theirs)
        lines.append(f"{name}: the throughput of native is {best:.1f} times the peer's")
        single = [[t.seconds_an_image for t in side if t.slots == 1] for side in (ours, theirs)]
        if all(single):
            ratio = single[1][0] / single[0][0]
            lines.append(
                f"{name}: the latency of native is {ratio:.1f} times shorter than the peer's"
            )
    return lines
