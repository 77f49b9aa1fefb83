"""Benchmark of drawing and training on a CUDA device (``scanline bench --device cuda``).

``python -m scanline.model.bench.cuda [MODEL …]`` runs it without the dependencies of the command
line.

As on the CPU, results are checked against the reference before they are timed, and figures are
medians. ``GB/s`` counts the bytes that a step has to move: the weights once, and the state of every
image. The bound beside each figure is the time of a memory copy of as many bytes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import platform
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import torch

from scanline.model.bench.cuda_training import CudaTrainingTiming, median_seconds, time_training
from scanline.model.bench.kernel_profile import format_kernel_times, profile_decoder
from scanline.model.bench.models import find_models
from scanline.model.bench.roofline import Bound, bytes_per_step
from scanline.model.bench.table import HEADER, LineCallback, Report, format_row
from scanline.model.bench.timing import DecoderFactory, Timing, check_decoder, time_decoder
from scanline.model.checkpoint import Checkpoint, SamplingDefaults
from scanline.model.config import ModelConfig
from scanline.model.decoders.base import BackendError, Decoder
from scanline.model.decoders.factory import create_decoder

SLOTS = (1, 128, 1_024, 10_000)
TRAINING_IMAGES = {"mnist-paper": 64, "cifar10-paper": 16, "mnist": 64, "cifar10": 64}
COPY_BYTES = 1 << 30


@dataclass(frozen=True)
class CudaReport(Report):
    """Timings of a run on a device; ``peaks`` is the rate of a copy in its memory."""

    training: list[CudaTrainingTiming]


def cuda_device() -> torch.device:
    """Return the CUDA device to benchmark.

    Raises:
        BackendError: If there is no CUDA device.
    """
    if not torch.cuda.is_available():
        raise BackendError(
            "no CUDA device found: install a CUDA build of PyTorch on a machine with an NVIDIA "
            "GPU, or omit --device cuda"
        )
    return torch.device("cuda", torch.cuda.current_device())


def describe(device: torch.device) -> dict[str, Any]:
    """Return the names and versions of the hardware and the software."""
    hardware: dict[str, Any] = {
        "device": str(device), "system": platform.platform(), "torch": torch.__version__,
    }  # fmt: skip
    if device.type == "cuda":
        import triton

        properties = torch.cuda.get_device_properties(device)
        hardware |= {
            "device": properties.name, "memory_gb": round(properties.total_memory / 1e9, 1),
            "multiprocessors": properties.multi_processor_count,
            "capability": f"{properties.major}.{properties.minor}", "cuda": torch.version.cuda,
            "triton": triton.__version__,
        }  # fmt: skip
    return hardware


def copy_rate(device: torch.device, size: int) -> float:
    """Measure the bytes per second, read and written, of a copy in the device's memory."""
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size / median_seconds(lambda: target.copy_(source), device, 20)


def step_bytes(config: ModelConfig, slots: int) -> float:
    """Return the bytes that one step moves: the bf16 weights once, and the state of each slot."""
    from scanline.kernels.cuda.decode_config import state_bytes
    from scanline.model.decoders.packing import decode_config_for

    return bytes_per_step(config, 0, "bf16") + slots * state_bytes(decode_config_for(config))


def _drawing(
    decoder: Decoder, name: str, seconds: float, repeats: int, style: SamplingDefaults | None = None
) -> tuple[Timing, str]:
    """Time a decoder, and describe where the time of a step goes."""
    timing = time_decoder(name, decoder, seconds, repeats, style)
    return timing, format_kernel_times(profile_decoder(decoder, style))


class _CudaBench:
    """Timings of networks on a device; arguments as in ``run_bench``, and the copy's ``rate``."""

    def __init__(
        self, device: torch.device, rate: float, slots: Sequence[int], seconds: float,
        repeats: int, progress: LineCallback,
    ) -> None:  # fmt: skip
        self.device, self.rate, self.slots = device, rate, slots
        self.seconds, self.repeats, self.progress = seconds, repeats, progress
        self.timings: list[Timing] = []
        self.training: list[CudaTrainingTiming] = []
        self.notes: list[str] = []

    def note(self, line: str) -> None:
        """Add a remark to the report, and show it."""
        self.notes.append(line)
        self.progress(line)

    @contextlib.contextmanager
    def noting_failure(self, prefix: str) -> Iterator[None]:
        """Turn the failure of a timing, usually for want of memory, into a remark."""
        try:
            yield
        except (BackendError, torch.OutOfMemoryError) as error:
            torch.cuda.empty_cache()
            self.note(f"{prefix}: {error}")

    def check(self, checkpoint: Checkpoint, factory: DecoderFactory) -> bool:
        """Compare a network with the reference; return False if it does not run here."""
        with self.noting_failure(checkpoint.name):
            check_decoder(checkpoint.model, factory)
            return True
        return False

    def time_drawing(self, checkpoint: Checkpoint, factory: DecoderFactory) -> None:
        """Time a network with every number of slots."""
        for count in self.slots:
            with self.noting_failure(checkpoint.name):
                self._time_slots(checkpoint, factory, count)

    def _time_slots(self, checkpoint: Checkpoint, factory: DecoderFactory, count: int) -> None:
        name, model = checkpoint.name, checkpoint.model
        timing, kernels = _drawing(factory(model, count), name, self.seconds, self.repeats)
        moved, rate = step_bytes(model.config, count), self.rate
        step = timing.milliseconds_per_step / 1e3
        timing = replace(timing, gbytes_per_second=moved / step / 1e9)
        timing = timing.with_bound(Bound("bytes", moved / rate, rate))
        self.timings.append(timing)
        self.progress(format_row(timing))
        self.note(
            f"{name}, {count} slots: {moved / 1e6:.1f} MB per step; a copy of as many bytes "
            f"takes {moved / rate / step:.0%} of the time; {kernels}"
        )

    def time_special(
        self, setting: str, checkpoint: Checkpoint, factory: DecoderFactory, slots: int,
        style: SamplingDefaults | None = None,
    ) -> None:  # fmt: skip
        """Time a network in a special setting, and note the result."""
        prefix = f"{checkpoint.name}, {setting}"
        with self.noting_failure(prefix):
            decoder = factory(checkpoint.model, slots)
            timing, kernels = _drawing(decoder, checkpoint.name, self.seconds, self.repeats, style)
            milliseconds = timing.milliseconds_per_step
            self.note(f"{prefix}: {milliseconds:.3f} ms per step of {slots} slots; {kernels}")

    def time_labelled(self, checkpoint: Checkpoint, factory: DecoderFactory) -> None:
        """Time a network with classes at its defaults, in the largest number of slots."""
        count, style = max(self.slots), checkpoint.defaults
        slots = count if style.guidance == 1 else 2 * count  # with the twins
        setting = f"{count} labelled, guidance {style.guidance:g}, top_p {style.top_p:g}"
        self.time_special(setting, checkpoint, factory, slots, style)

    def time_training(self, checkpoint: Checkpoint) -> None:
        """Time training steps of a network, and note the result."""
        name, images = checkpoint.name, TRAINING_IMAGES[checkpoint.name]
        prefix = f"{name}: training, batch {images}"
        with self.noting_failure(prefix):
            timing = time_training(name, checkpoint.model, images, self.device, self.repeats)
            self.training.append(timing)
            self.note(
                f"{prefix}: {timing.milliseconds:.1f} ms forward and backward, "
                f"{timing.pixels_per_second:,.0f} pixels/s, {timing.gigabytes:.1f} GB; "
                f"{timing.step_milliseconds:.1f} ms per step; {format_kernel_times(timing.kernels)}"
            )


def run_bench(
    checkpoints: Sequence[Checkpoint],
    *,
    slots: Sequence[int] = SLOTS,
    seconds: float = 1.0,
    repeats: int = 5,
    plain: bool = False,
    progress: LineCallback = lambda line: None,
) -> CudaReport:
    """Time networks on the CUDA device.

    Args:
        checkpoints: The networks.
        slots: Numbers of images at a time.
        seconds: Minimum duration of one measurement.
        repeats: Number of measurements, of which the median counts.
        plain: Whether the host launches each kernel, without graphs or overlap.
        progress: Callback for each line of the tables.

    Raises:
        BackendError: If there is no CUDA device.
        RuntimeError: If a result differs from the reference.
    """
    device = cuda_device()
    from scanline.model.decoders.triton import TritonDecoder  # Triton is optional

    hardware = describe(device)
    rate = copy_rate(device, COPY_BYTES)
    progress(", ".join(f"{name} {value}" for name, value in hardware.items()))
    progress(f"memory copy: {rate / 1e9:.0f} GB/s")
    progress(HEADER)
    bench = _CudaBench(device, rate, slots, seconds, repeats, progress)
    factory: DecoderFactory = partial(create_decoder, backend="triton")
    if plain:
        from scanline.model.bench.cuda_launch_modes import create_plain as factory

        bench.note("kernels launched one by one, without graphs or overlap: slower than the server")
    for checkpoint in checkpoints:
        if not bench.check(checkpoint, factory):
            continue
        bench.time_drawing(checkpoint, factory)
        if 1 in slots and not plain:
            without_overlap = partial(TritonDecoder, overlap=False)
            bench.time_special("without overlap", checkpoint, without_overlap, 1)
        if checkpoint.model.config.classes:
            bench.time_labelled(checkpoint, factory)
    for checkpoint in checkpoints:
        if checkpoint.name in TRAINING_IMAGES:
            bench.time_training(checkpoint)
    peaks = {"copy": round(rate / 1e9, 1)}
    return CudaReport(hardware, peaks, bench.timings, bench.notes, bench.training)


def main() -> None:
    """Print the tables while they are measured, then the report as one JSON line."""
    parser = argparse.ArgumentParser(prog="bench.cuda", description=__doc__)
    parser.add_argument("models", nargs="*", help="shipped models or presets (default: all)")
    parser.add_argument("--seconds", type=float, default=1.0, help="seconds per measurement")
    parser.add_argument("--repeats", type=int, default=5, help="measurements per figure (median)")
    parser.add_argument("--slots", type=int, nargs="+", default=SLOTS, help="images at a time")
    parser.add_argument(
        "--plain", action="store_true", help="launch kernels one by one, if graphs or overlap fail"
    )
    options = parser.parse_args()

    def progress(line: str) -> None:
        print(line, flush=True)  # noqa: T201

    try:
        report = run_bench(
            find_models(options.models), slots=options.slots, seconds=options.seconds,
            repeats=options.repeats, plain=options.plain, progress=progress,
        )  # fmt: skip
    except (RuntimeError, ValueError) as error:
        sys.exit(str(error))
    progress(json.dumps(asdict(report)))


if __name__ == "__main__":
    main()
