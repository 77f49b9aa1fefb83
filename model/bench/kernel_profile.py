"""Time per CUDA kernel, from torch's profiler."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch.profiler import ProfilerActivity, profile

from scanline.model.bench.timing import start_blank_images
from scanline.model.checkpoint import SamplingDefaults
from scanline.model.decoders.base import Decoder

PIXELS = 16  # two replays of the larger graph
_LISTED_KERNELS = 4  # the others are summed up
_MAX_NAME = 60  # characters; names of C++ templates are very long


def profile_decoder(decoder: Decoder, defaults: SamplingDefaults | None = None) -> dict[str, float]:
    """Return the microseconds per kernel of a step of all slots.

    ``defaults`` are the sampling options, as in ``start_blank_images``. Kernels do not overlap
    while they are profiled, so their sum is slightly more than the time of a step.
    """
    slots = start_blank_images(decoder, defaults)
    decoder.step(slots, 1)
    pixels = min(PIXELS, decoder.config.pixels - 1)
    times = profile_kernels(lambda: decoder.step(slots, pixels))
    steps = pixels * decoder.config.steps_per_pixel
    return {name: time / steps for name, time in times.items()}


def profile_kernels(run: Callable[[], object]) -> dict[str, float]:
    """Return the microseconds per kernel of ``run``; empty without a CUDA device."""
    if not torch.cuda.is_available():
        return {}
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        run()
        torch.cuda.synchronize()
    times = {row.key: row.self_device_time_total for row in profiled.key_averages()}
    return {
        name: time for name, time in times.items() if time > 0
    }  # events without device time are listed too


def format_kernel_times(times: Mapping[str, float]) -> str:
    """Return a line of text with the kernels that take the most time, in microseconds."""
    if not times:
        return "no kernels were profiled"
    ranked = sorted(times.items(), key=lambda item: -item[1])
    parts = [f"{_shorten(name)} {time:.0f}" for name, time in ranked[:_LISTED_KERNELS]]
    if rest := sum(time for _, time in ranked[_LISTED_KERNELS:]):
        parts.append(f"others {rest:.0f}")
    return f"{', '.join(parts)} of {sum(times.values()):.0f} us in kernels"


def _shorten(name: str) -> str:
    name = name.removesuffix("_kernel").removeprefix("void ")
    return name if len(name) <= _MAX_NAME else f"{name[:_MAX_NAME]}…"
