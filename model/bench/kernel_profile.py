"""Which kernels a step's time goes to, as torch's profiler sees them on a device."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch.profiler import ProfilerActivity, profile

from scanline.model.bench.cpu import start_blank_images
from scanline.model.checkpoint import SamplingDefaults
from scanline.model.decoders.base import Decoder

PIXELS = 16  # two replays of the larger graph
_NAMED = 4  # kernels; what is left is one number
_LONGEST = 60  # letters of a name: those of C++ templates fill a page


def profile_decoder(decoder: Decoder, style: SamplingDefaults | None = None) -> dict[str, float]:
    """Give the microseconds that each kernel's launches take of a step of all slots together.

    ``style`` as ``begin`` has it. Profiled kernels do not overlap, so that their sum is a little
    more than a step takes.
    """
    slots = start_blank_images(decoder, style)
    decoder.step(slots, 1)
    pixels = min(PIXELS, decoder.config.pixels - 1)
    times = profile_kernels(lambda: decoder.step(slots, pixels))  # which waits for them
    steps = pixels * decoder.config.steps_per_pixel
    return {name: time / steps for name, time in times.items()}


def profile_kernels(run: Callable[[], object]) -> dict[str, float]:
    """Give the microseconds that each kernel takes of a run; none without a CUDA device."""
    if not torch.cuda.is_available():
        return {}
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        run()
        torch.cuda.synchronize()
    times = {row.key: row.self_device_time_total for row in profiled.key_averages()}
    return {name: time for name, time in times.items() if time > 0}  # what waits is named too


def format_kernel_times(times: Mapping[str, float]) -> str:
    """Say which kernels take the most of a run, and how much, in microseconds."""
    if not times:
        return "no kernel was seen"
    most = sorted(times.items(), key=lambda item: -item[1])
    parts = [f"{_short(name)} {time:.0f}" for name, time in most[:_NAMED]]
    if rest := sum(time for _, time in most[_NAMED:]):
        parts.append(f"others {rest:.0f}")
    return f"{', '.join(parts)} of {sum(times.values()):.0f} us in kernels"


def _short(name: str) -> str:
    name = name.removesuffix("_kernel").removeprefix("void ")
    return name if len(name) <= _LONGEST else f"{name[:_LONGEST]}…"
