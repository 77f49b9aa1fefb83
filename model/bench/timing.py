"""Timing of decoders and of the peer, checked against the reference before."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from scanline.model.bench.peer import Peer
from scanline.model.bench.roofline import Bound, bytes_per_step, operations_per_step
from scanline.model.checkpoint import SamplingDefaults
from scanline.model.config import ModelConfig
from scanline.model.decoders.base import Decoder, InputBatch
from scanline.model.decoders.native import NativeDecoder
from scanline.model.network import LinearTransformer

MAX_BITS_ERROR = 0.01  # bits/dim by which a precision may change a few images
WARM_UP = 0.3  # seconds until the clocks of a GPU are high

DecoderFactory = Callable[[LinearTransformer, int], Decoder]  # network, slots


@dataclass(frozen=True)
class Timing:
    """Timing of one network in one backend.

    Attributes:
        model: Name of the network.
        backend: Name of the backend.
        slots: Number of images sampled in parallel.
        pixels: Pixels sampled of each, at most a whole image.
        milliseconds_per_step: Time of a step of all slots.
        seconds_per_image: Time until all slots have a whole image.
        images_per_second: Throughput.
        gflops: Billion operations/s.
        gbytes_per_second: GB/s of weights and attention sums.
        precision: Type of the products.
        limit: What bounds a step on this machine, ``compute`` or ``bytes``; None if unknown.
        limit_ratio: Time of a step divided by its bound; None if unknown.
        bandwidth_share: ``gbytes_per_second`` as a part of the measured bandwidth; None if unknown.
    """

    model: str
    backend: str
    slots: int
    pixels: int
    milliseconds_per_step: float
    seconds_per_image: float
    images_per_second: float
    gflops: float
    gbytes_per_second: float
    precision: str = "float32"
    limit: str | None = None
    limit_ratio: float | None = None
    bandwidth_share: float | None = None

    @property
    def mbytes_per_step(self) -> float:
        """MB of weights and attention sums that a step of all slots moves."""
        return self.gbytes_per_second * self.milliseconds_per_step

    def with_bound(self, bound: Bound) -> Timing:
        """Return this timing with the roofline bound."""
        limit_ratio = self.milliseconds_per_step / 1e3 / bound.seconds
        share = self.gbytes_per_second * 1e9 / bound.bytes_per_second
        return replace(self, limit=bound.name, limit_ratio=limit_ratio, bandwidth_share=share)


def start_blank_images(
    decoder: Decoder, style: SamplingDefaults | None = None
) -> NDArray[np.int32]:
    """Start an image without known pixels in every slot, and return the slots of the images.

    Args:
        decoder: Decoder to use.
        style: Sampling options; images then have the classes in turn, and with guidance every image
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
        draw: Samples the next n pixels of every image.
        pixels: Number of pixels to sample at most.
        seconds: Time to spend, approximately.
        finish: Waits until all pixels are sampled.
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


def measure_images(
    start: Callable[[], object], draw: Callable[[int], object], pixels: int, seconds: float,
    finish: Callable[[], object] = lambda: None,
) -> tuple[int, float]:  # fmt: skip
    """Sample images one after another, and return the number of pixels and the seconds per pixel.

    An image that takes longer than ``seconds`` is not finished; shorter ones are repeated.

    Args:
        start: Starts a new image in every slot, which is not timed.
        draw, pixels, seconds, finish: As in ``measure``; ``pixels`` is the number of an image.
    """
    total, spent = 0, 0.0
    while True:
        start()
        done, pixel = measure(draw, pixels, seconds, finish)
        total += done
        spent += done * pixel
        if done < pixels or spent >= seconds:
            return total, spent / total


def time_decoder(
    name: str, decoder: Decoder, seconds: float, repeats: int, style: SamplingDefaults | None = None
) -> Timing:
    """Time a decoder with all slots in use, with steps in flight as in the engine.

    Args:
        name: Name of the network.
        decoder: Decoder to time.
        seconds: Time of a run; images that take less are repeated.
        repeats: Number of runs, whose median is returned.
        style: Sampling options, as for ``start_blank_images``.
    """
    numbers = start_blank_images(decoder, style)
    decoder.step(numbers, 1)  # touches memory and starts threads

    def draw(n: int) -> None:
        decoder.launch(numbers, n)
        decoder.synchronize(decoder.max_in_flight - 1)

    def run(seconds: float) -> tuple[int, float]:
        return measure_images(
            lambda: start_blank_images(decoder, style), draw, decoder.config.pixels, seconds,
            decoder.synchronize,
        )  # fmt: skip

    run(WARM_UP)
    native = decoder if isinstance(decoder, NativeDecoder) else None
    before = native.bytes_moved if native else 0
    runs = [run(seconds) for _ in range(repeats)]
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
        name, sampler.backend, slots, min(config.pixels, *(done for done, _ in runs)), step * 1e3,
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
    Peer(model, 2).check()  # computes whole images: many of them may not fit into memory
    peer = Peer(model, slots)
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
    return min(timings, key=lambda timing: timing.seconds_per_image)
