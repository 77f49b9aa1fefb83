"""Benchmark of drawing and training on a CUDA device (``scanline bench --device cuda``).

``python -m scanline.model.bench.cuda [MODEL …]`` runs it without the dependencies of the command
line.

As on the CPU, results are checked against the reference before they are timed, and figures are
medians. ``GB/s`` counts the bytes that a step has to move: the weights once, and the state of every
image. The bound beside each figure is the time of a memory copy of as many bytes.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import torch

from scanline.model.bench import cpu as bench
from scanline.model.bench.cuda_training import Training, median_seconds, time_training
from scanline.model.bench.kernel_profile import format_kernel_times, profile_decoder
from scanline.model.bench.models import find_models
from scanline.model.bench.roofline import Bound, bytes_per_step
from scanline.model.checkpoint import Checkpoint, SamplingDefaults
from scanline.model.config import ModelConfig
from scanline.model.decoders.base import BackendError
from scanline.model.decoders.factory import create_decoder

SLOTS = (1, 128, 1_024, 10_000)
TRAINING_IMAGES = {"mnist-paper": 64, "cifar10-paper": 16, "mnist": 64, "cifar10": 64}
COPY_BYTES = 1 << 30


@dataclass(frozen=True)
class CudaReport(bench.Report):
    """Timings of a run on a device; ``peaks`` is the rate of a copy in its memory."""

    training: list[Training]


def find_device() -> torch.device:
    """Return the CUDA device to benchmark.

    Raises:
        BackendError: There is no CUDA device.
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


def describe_drawing(
    setting: str, *, checkpoint: Checkpoint, slots: int, factory: bench.DecoderFactory,
    seconds: float, repeats: int, defaults: SamplingDefaults | None = None,
) -> str:  # fmt: skip
    """Time a decoder in a special setting and return a line of text with the result."""
    prefix = f"{checkpoint.name}, {setting}"
    try:
        decoder = factory(checkpoint.model, slots)
        timed = bench.time_decoder(checkpoint.name, decoder, seconds, repeats, defaults)
        kernels = format_kernel_times(profile_decoder(decoder, defaults))
    except (BackendError, torch.OutOfMemoryError) as error:
        torch.cuda.empty_cache()
        return f"{prefix}: {error}"
    milliseconds = timed.milliseconds_a_step
    return f"{prefix}: {milliseconds:.3f} ms per step of {slots} slots; {kernels}"


def run_bench(
    checkpoints: Sequence[Checkpoint],
    *,
    slots: Sequence[int] = SLOTS,
    seconds: float = 1.0,
    repeats: int = 5,
    plain: bool = False,
    progress: Callable[[str], object] = lambda line: None,
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
        BackendError: There is no CUDA device.
        RuntimeError: A result differs from the reference.
    """
    device = find_device()
    from scanline.model.decoders.triton import TritonDecoder  # Triton is optional

    without_overlap = partial(TritonDecoder, overlap=False)
    hardware = describe(device)
    rate = copy_rate(device, COPY_BYTES)
    progress(", ".join(f"{name} {value}" for name, value in hardware.items()))
    progress(f"memory copy: {rate / 1e9:.0f} GB/s")
    progress(bench.HEADER)
    timings: list[bench.Timing] = []
    notes: list[str] = []

    def note(line: str) -> None:
        notes.append(line)
        progress(line)

    factory: bench.DecoderFactory = partial(create_decoder, backend="triton")
    if plain:
        from scanline.model.bench.cuda_launch_modes import create_plain as factory

        note("kernels launched one by one, without graphs or overlap: slower than the server")
    for checkpoint in checkpoints:
        name, model = checkpoint.name, checkpoint.model
        try:
            bench.check_decoder(model, factory)
        except (BackendError, torch.OutOfMemoryError) as error:
            note(f"{name}: {error}")
            continue
        for count in slots:
            try:
                decoder = factory(model, count)
                timed = bench.time_decoder(name, decoder, seconds, repeats)
                kernels = format_kernel_times(profile_decoder(decoder))
                del decoder  # frees its memory for the next one
            except (BackendError, torch.OutOfMemoryError) as error:
                torch.cuda.empty_cache()
                note(f"{name}: {error}")
                continue
            moved = step_bytes(model.config, count)
            step = timed.milliseconds_a_step / 1e3
            timed = replace(timed, gbytes_a_second=moved / step / 1e9)
            timings.append(timed.with_bound(Bound("bytes", moved / rate, rate)))
            progress(bench.format_row(timings[-1]))
            note(
                f"{name}, {count} slots: {moved / 1e6:.1f} MB per step; a copy of as many bytes "
                f"takes {moved / rate / step:.0%} of the time; {kernels}"
            )
            special = partial(
                describe_drawing, checkpoint=checkpoint, seconds=seconds, repeats=repeats
            )
            if count == 1 and not plain:
                note(special("without overlap", slots=1, factory=without_overlap))
            if model.config.classes and count == max(slots):
                defaults = checkpoint.defaults
                setting = (
                    f"{count} labelled, guidance {defaults.guidance:g}, top_p {defaults.top_p:g}"
                )
                total = count if defaults.guidance == 1 else 2 * count  # with the twins
                note(special(setting, slots=total, factory=factory, defaults=defaults))
    training: list[Training] = []
    for checkpoint in checkpoints:
        name = checkpoint.name
        if name not in TRAINING_IMAGES:
            continue
        images = TRAINING_IMAGES[name]
        try:
            training.append(time_training(name, checkpoint.model, images, device, repeats))
        except torch.OutOfMemoryError as error:
            torch.cuda.empty_cache()
            note(f"{name}: training, batch {images}: {error}")
            continue
        timed_training = training[-1]
        note(
            f"{name}: training, batch {images}: {timed_training.milliseconds:.1f} ms forward and "
            f"backward, {timed_training.pixels_a_second:,.0f} pixels/s, "
            f"{timed_training.gigabytes:.1f} GB; "
            f"{timed_training.step_milliseconds:.1f} ms per step; "
            f"{format_kernel_times(timed_training.kernels)}"
        )
    return CudaReport(hardware, {"copy": round(rate / 1e9, 1)}, timings, notes, training)


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
